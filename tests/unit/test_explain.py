"""A failure in one line: what happened, and what to do next."""

import errno
import logging
import os
import subprocess
import sys
from pathlib import Path

import pytest

from speedmatrix import explain, job

SCRIPTS = Path(__file__).parents[2] / "scripts"


@pytest.mark.parametrize(
    ("error", "said"),
    [
        (
            OSError(errno.ENOSPC, "x", "results/a.json"),
            "results/a.json: No space left on device: make room on that disk",
        ),
        (OSError(errno.ENOSPC, "x"), "No space left on device: make room on that disk"),
        (
            PermissionError(errno.EACCES, "x", "results"),
            "results: Permission denied: give this user the right to write",
        ),
        (OSError(errno.EROFS, "x", "logs/a"), "logs/a: Read-only file system: give this user the right"),
        (OSError(errno.EFBIG, "x", "a"), "a: File too large: raise the limit on file sizes (ulimit -f)"),
        (OSError(errno.EMFILE, "x", "a"), "a: Too many open files: raise the limit on open files (ulimit -n)"),
        (MemoryError(), "the memory is full: free some memory"),
        (ModuleNotFoundError("No module named 'numpy'", name="numpy"), "the Python package numpy is missing here"),
        (ValueError("two\nlines\x1b[2J"), "two lines [2J"),
        (ValueError(), "ValueError"),
    ],
)
def test_what_happened_and_what_to_do(error, said):
    line = explain.line(error)
    assert line.startswith(said) and line.isprintable()


def test_a_directory_that_cant_be_written_is_named(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert explain.unwritable(explain.BY_A_SWEEP) is None
    (tmp_path / "results").mkdir()
    closed = {tmp_path / "results"}
    monkeypatch.setattr(os, "access", lambda path, mode: path.absolute() not in closed)
    said = f"{tmp_path}/results can't be written: give this user the right to write there"
    assert explain.unwritable(explain.BY_A_SWEEP).startswith(said)
    assert explain.unwritable(explain.BY_SNAKEMAKE) is None
    closed.add(tmp_path)  # where nothing is there yet, the directory that it would be made in counts
    assert explain.unwritable(explain.BY_SNAKEMAKE).startswith(f"{tmp_path}/logs can't be written")


def test_a_lock_without_anybody_is_that_of_a_killed_run(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert "a run that was killed left its lock here: the same command with --unlock" in explain.locked()


@pytest.mark.parametrize("error", [OSError(errno.ENOSPC, "x", "results/a"), KeyError("a"), UnicodeError("\ud800")])
def test_a_job_that_fails_prints_one_line_and_logs_the_traceback(error, tmp_path, capsys):
    try:
        with pytest.raises(SystemExit) as ended, job.job(str(tmp_path / "logs/a.log")):
            raise error
    finally:
        logging.shutdown()
        logging.basicConfig(force=True)
    assert ended.value.code == 1
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith("error: ") and line.endswith(f"(more in {tmp_path}/logs/a.log)")
    assert "Traceback" in (tmp_path / "logs/a.log").read_text(encoding="utf-8")


def test_a_log_that_cannot_be_written_hides_no_reason():
    program = "from speedmatrix import job\nwith job.job('/dev/full'):\n    raise ValueError('what went wrong')"
    ran = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, cwd=SCRIPTS)
    assert (ran.returncode, ran.stdout, ran.stderr) == (1, "", "error: what went wrong (more in /dev/full)\n")

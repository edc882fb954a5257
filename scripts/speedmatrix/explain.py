"""A failure in one line: what happened, where to look, and what to do next."""

from __future__ import annotations

import contextlib
import errno
import os
from pathlib import Path

import psutil

from speedmatrix import untrusted

_LONGEST = 1000
BY_SNAKEMAKE = ("logs", ".snakemake")
BY_A_SWEEP = (*BY_SNAKEMAKE, "results", ".speedmatrix")
_ELSEWHERE = "give this user the right to write there, or choose another place with --directory"
_ADVICE = {
    errno.ENOSPC: "make room on that disk; what is measured is kept, and the same command goes on from there",
    errno.EDQUOT: "make room within your quota; what is measured is kept, and the same command goes on from there",
    errno.EFBIG: "raise the limit on file sizes (ulimit -f), then run again",
    errno.EMFILE: "raise the limit on open files (ulimit -n), then run again",
    errno.ENOMEM: "free some memory, then run again",
    errno.EACCES: _ELSEWHERE,
    errno.EPERM: _ELSEWHERE,
    errno.EROFS: _ELSEWHERE,
}


def line(error: BaseException) -> str:
    """The error in one line; those of the system with what to do about them."""
    if isinstance(error, ModuleNotFoundError):
        return missing_package(error)
    if isinstance(error, MemoryError):
        return f"the memory is full: {_ADVICE[errno.ENOMEM]}"
    if isinstance(error, OSError) and error.errno in _ADVICE:
        where = f"{error.filename}: " if error.filename else ""
        return f"{where}{os.strerror(error.errno)}: {_ADVICE[error.errno]}"
    return untrusted.line(str(error), _LONGEST) or type(error).__name__


def missing_package(error: ModuleNotFoundError) -> str:
    """Which package is not installed, and how it gets there."""
    return f"the Python package {error.name} is missing here: `make report` installs everything into .venv"


def unwritable(names: tuple[str, ...]) -> str | None:
    """A line if anything of these in the working directory can't be written; else None."""
    for name in names:
        there = Path(name) if Path(name).exists() else Path()
        if not os.access(there, os.W_OK | os.X_OK):
            return f"{Path(name).absolute()} can't be written: {_ELSEWHERE}"
    return None


def locked() -> str:
    """Why Snakemake finds this directory locked: another run is at work here, or one was killed."""
    if other := _other_run():
        return f"another run is at work in this directory (process {other}): let it end, or choose another --directory"
    return (
        "a run that was killed left its lock here: the same command with --unlock takes it away, and without it goes on"
        " from where it was"
    )


def _other_run() -> int | None:
    """The process of another Snakemake that works in this directory."""
    own = {os.getpid(), *(parent.pid for parent in psutil.Process().parents())}
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.Error, OSError):
            is_one = process.pid not in own and any(Path(word).name == "snakemake" for word in process.cmdline()[:4])
            if is_one and process.name().startswith(("python", "snakemake")) and Path(process.cwd()) == Path.cwd():
                return int(process.pid)
    return None

"""Keys planted in every place they can come from are found nowhere in what a sweep writes, prints or runs."""

import base64
import os
import re
import signal
import threading
import time
import zipfile
from pathlib import Path
from urllib.parse import quote

import psutil
import pytest

from tests.accuracy.truth import serving
from tests.workflow.conftest import PAGE, Sweep
from tests.workflow.doing import wait_for, whole

KEYS = {"PLANTED": "planted/variable+3-4f1e0b9c7a", "CLIENT_KEY": "planted/client+5-90d3a8e6b2"}
LITERALS = ("planted-literal-1", "planted-env-2", "planted-env-4", "planted-url-6", "planted-request-7", "planted-8")
ALL = (*KEYS.values(), *LITERALS)


def forms(key: str) -> list[bytes]:
    """The key as it may be found: as it is, for a URL, in Base64 wherever it begins, each of its halves."""
    half = len(key) // 2
    found = [key, quote(key, safe=""), *((key[:half], key[half:]) if half > 10 else ())]
    encoded = [base64.b64encode(b"-" * before + key.encode())[4:-4] for before in range(3)]
    return [form.encode() for form in found] + encoded


def contents(path: Path) -> bytes:
    """A file's bytes, and those of what is packed in it."""
    content = path.read_bytes()
    if path.suffix == ".npz":
        with zipfile.ZipFile(path) as packed:
            content += b"".join(packed.read(name) for name in packed.namelist())
    return content


def written_with_a_key(sweep: Sweep) -> list[tuple[str, str]]:
    files = [path for path in sweep.directory.rglob("*") if path.is_file() and path != sweep.config_file]
    assert len(files) > 15
    held = {path: contents(path) for path in files}
    return [(path.name, key) for key in ALL for path in files if any(form in held[path] for form in forms(key))]


def printed_with_a_key(output: str) -> list[str]:
    return [key for key in ALL if any(form in output.encode() for form in forms(key))]


class CommandLines(threading.Thread):
    """Watches for a key in the command line of what runs for a directory, the launched server apart."""

    def __init__(self, directory: Path) -> None:
        super().__init__(daemon=True)
        self.directory, self.seen, self.with_a_key, self.over = str(directory), set[str](), set[str](), False

    def run(self) -> None:
        while not self.over:
            for process in psutil.process_iter():
                self._look_at(process)
            time.sleep(0.05)

    def _look_at(self, process: psutil.Process) -> None:
        try:
            if process.cwd() != self.directory or "SPEEDMATRIX_SERVER" in process.environ():
                return
            line = " ".join(process.cmdline())
        except (psutil.Error, OSError):
            return
        self.seen.add(line)
        if any(key in line for key in ALL):
            self.with_a_key.add(line)


def plant(fresh) -> None:
    """Keys in the command, in `env`, in the environment, in an address, in a request; the server prints what it has."""
    server = fresh.config["servers"]["tiny"]
    command = " ".join(map(str, server["launch"]["command"])).replace("{python}", '"{python}"')
    told = 'echo "$HF_TOKEN $OWN_KEY $GIVEN"; echo "$GIVEN" | base64; echo "${GIVEN%????????}"; echo planted-8 is mine'
    server["launch"]["command"] = (
        f"HF_TOKEN=planted-literal-1; {told}; : --api-key planted-8 {{env:PLANTED}}; {command}"
    )
    server["launch"]["env"] = {"OWN_KEY": "planted-env-2", "GIVEN": "{env:PLANTED}", "HF_TOKEN": "planted-env-4"}
    server["facts"] = {"repository": "https://me:planted-url-6@example.org/model"}
    server["api_key_env"] = "CLIENT_KEY"
    fresh.config["measure"]["request"] = {"api_key": "planted-request-7"}
    fresh.config["matrix"] = {"prefill": {"contexts": [256]}, "decode": {"contexts": [256], "concurrency": [1]}}


@pytest.mark.fault(
    "keys in the config, the environment and the server's own output",
    "in no file, no line that is printed, no command line of ours",
)
def test_planted_keys_are_written_nowhere(fresh):
    plant(fresh)
    watched = CommandLines(fresh.directory)
    watched.start()
    code, output = fresh.run(PAGE, **KEYS)
    watched.over = True
    assert code == 0, output
    assert printed_with_a_key(output) == []
    assert written_with_a_key(fresh) == []
    assert watched.with_a_key == set() and sum("supervising" in line for line in watched.seen) == 1
    assert any("cell.py" in line for line in watched.seen)
    log = (fresh.directory / "logs/server-tiny.log").read_text()
    assert "<redacted> <redacted> <redacted>" in log and "<redacted> is mine" in log


def test_nor_after_the_sweep_was_killed(fresh):
    plant(fresh)
    process = fresh.start(**KEYS)
    wait_for(process, fresh.cell("prefill-256").exists)
    time.sleep(0.5)
    os.kill(process.pid, signal.SIGKILL)
    process.communicate(timeout=30)
    assert fresh.wait_for_end(5) == []
    assert written_with_a_key(fresh) == []


@pytest.mark.fault(
    "a server that repeats the key in its errors, as it is, for a URL, in Base64, in parts",
    "the reason is kept, without it",
)
def test_nor_where_a_server_repeats_them_in_its_errors(tmp_path):
    matrix = {"prefill": {"contexts": [512]}, "decode": {"contexts": [512], "concurrency": [2]}}
    with serving(20) as truth:
        server = {"engine": "vllm", "url": truth.url, "api_key_env": "CLIENT_KEY"}
        sweep = Sweep(tmp_path, {"servers": {"tiny": server}, "matrix": matrix})
        process = sweep.start(PAGE, **KEYS)
        wait_for(process, lambda: list(sweep.directory.glob("results/servers/tiny/*/health.json")))
        truth.faults(echoes=True)
        output, _ = process.communicate(timeout=60)
        assert process.returncode == 0, output
        (reason,) = {cell["reason"].partition("no such key: ")[2] for cell in whole(sweep).values()}
        assert re.fullmatch(r"<redacted>; \?key=<redacted>;? dXNlcj\w*<redacted>\S*; <redacted> <redacted>", reason)
        assert "no such key: <redacted>" in output and printed_with_a_key(output) == []
        assert written_with_a_key(sweep) == []
        (sweep.directory / "results/servers").rename(tmp_path / "before")
        code, output = sweep.run(**KEYS)  # refused before there are any facts
        assert code != 0 and "no such key: <redacted>" in output and printed_with_a_key(output) == []
        assert written_with_a_key(sweep) == []


def test_a_missing_variable_stops_the_sweep_before_anything_is_launched(fresh):
    plant(fresh)
    code, output = fresh.run(PLANTED=KEYS["PLANTED"])
    assert code != 0 and fresh.launches() == 0
    assert "config: servers.tiny.api_key_env: the variable CLIENT_KEY is not set" in output
    assert "Traceback" not in output

"""Keys planted in every place they can come from are found nowhere in what a sweep writes or prints."""

import signal
import time

import pytest


def written_with(fresh, needle: bytes) -> list[str]:
    files = [path for path in fresh.directory.rglob("*") if path.is_file() and path != fresh.config_file]
    assert len(files) > 15
    return [str(path) for path in files if needle in path.read_bytes()]


def plant(fresh) -> None:
    """A literal key in a shell string, one in `env`, one resolved from the environment; the server prints them all."""
    server = fresh.config["servers"]["tiny"]
    command = " ".join(map(str, server["launch"]["command"])).replace("{python}", '"{python}"')
    server["launch"]["command"] = f'echo "$HF_TOKEN $OWN_KEY $GIVEN" && HF_TOKEN=planted-literal-1 exec {command}'
    server["launch"]["env"] = {"OWN_KEY": "planted-env-2", "GIVEN": "{env:PLANTED}", "HF_TOKEN": "planted-env-4"}
    server["api_key_env"] = "CLIENT_KEY"
    fresh.config["matrix"] = {"prefill": {"contexts": [256]}, "decode": {"contexts": [256], "concurrency": [1]}}


KEYS = {"PLANTED": "planted-variable-3", "CLIENT_KEY": "planted-client-5"}


@pytest.mark.fault(
    "keys in the config, the environment and the server's own output", "in no file and no line that is printed"
)
def test_planted_keys_are_written_nowhere(fresh):
    plant(fresh)
    code, output = fresh.run(**KEYS)
    assert code == 0, output
    assert "planted-" not in output
    assert written_with(fresh, b"planted-") == []
    log = (fresh.directory / "logs/server-tiny.log").read_text()
    assert "<redacted> <redacted> <redacted>" in log


def test_nor_after_the_sweep_was_killed(fresh):
    plant(fresh)
    process = fresh.start(**KEYS)
    deadline = time.monotonic() + 60
    while not fresh.cell("prefill-256").exists():
        assert process.poll() is None and time.monotonic() < deadline
        time.sleep(0.05)
    time.sleep(0.5)
    process.send_signal(signal.SIGKILL)
    process.communicate(timeout=30)
    assert fresh.wait_for_end(5) == []
    assert written_with(fresh, b"planted-") == []


def test_a_missing_variable_stops_the_sweep_before_anything_is_launched(fresh):
    plant(fresh)
    code, output = fresh.run(PLANTED="planted-variable-3")
    assert code != 0 and fresh.launches() == 0
    assert "config: servers.tiny.api_key_env: the variable CLIENT_KEY is not set" in output
    assert "Traceback" not in output

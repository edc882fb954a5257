"""The server's process, for real: it starts, is found again, and nothing of it outlives what started it."""

import json
import os
import re
import signal
import socket
import subprocess
import sys
import threading
import time
from pathlib import Path

import psutil
import pytest

from speedmatrix import processes, supervising
from speedmatrix.serverstate import LaunchSpec, ending, server_state
from speedmatrix.supervisor import ServerError, ensure_server, stop_server

TARGET = str(Path(__file__).parents[1] / "supervisor_target.py")


@pytest.fixture
def port() -> int:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return int(listener.getsockname()[1])


@pytest.fixture(autouse=True)
def _own_directory(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv(processes.OWNER_ENV, processes.identity())
    yield
    stop_server()


def spec(port: int, *more: str, **changes) -> LaunchSpec:
    fields = {
        "server": "target",
        "url": f"http://127.0.0.1:{port}",
        "command": ["{python}", TARGET, str(port), *more],
        "env": {},
        "ready_timeout_s": 10,
        "stop_grace_s": 1,
        "max_launches": 2,
    }
    return LaunchSpec(**fields | changes)


def listening(port: int):
    def ready() -> bool:
        with socket.socket() as client:
            return client.connect_ex(("127.0.0.1", port)) == 0

    return ready


def of_this_directory() -> list[psutil.Process]:
    found = []
    for process in psutil.process_iter():
        try:
            if process.cwd() == str(Path.cwd()) and process.pid != os.getpid() and process.status() != "zombie":
                found.append(process)
        except psutil.Error:
            continue
    return found


def gone_within(seconds: float) -> bool:
    deadline = time.monotonic() + seconds
    while of_this_directory():
        if time.monotonic() > deadline:
            return False
        time.sleep(0.02)
    return True


def test_it_starts_is_found_again_and_stops(port):
    state = ensure_server(spec(port), listening(port))
    assert state.status == "up" and state.ready_s < 10
    assert ensure_server(spec(port), listening(port)) == state
    stop_server()
    assert gone_within(2) and not listening(port)()
    assert server_state().status == "stopped"


def test_another_spec_replaces_what_is_up(port):
    first = ensure_server(spec(port), listening(port))
    second = ensure_server(spec(port, "--workers"), listening(port))
    assert second.boot_id != first.boot_id and not processes.is_alive(first.boot_id)


def test_an_end_at_start_tells_code_place_and_last_line(port):
    with pytest.raises(
        ServerError,
        match=r"ended at start with code 3: see logs/server-target\.log, mend its launch command, run again; .*cannot",
    ) as e:
        ensure_server(spec(port, "--exit", "3"), listening(port))
    assert e.value.log_tail[-1] == "cannot load the model"
    assert "\n" not in str(e.value)


def test_a_program_that_is_not_there(port):
    with pytest.raises(ServerError, match=r"code 127.*No such file.*no-such-program"):
        ensure_server(spec(port, command=["no-such-program"]), listening(port))


@pytest.mark.fault("a server that fails to start twice in a row", "given up after max_launches, in one line")
def test_it_is_given_up_after_max_launches(port):
    for _ in range(2):
        with pytest.raises(ServerError, match="ended at start"):
            ensure_server(spec(port, "--exit", "1"), listening(port))
    with pytest.raises(ServerError, match="failed to start 2 times in a row") as caught:
        ensure_server(spec(port, "--exit", "1"), listening(port))
    assert "cannot load the model" in str(caught.value) and "\n" not in str(caught.value)


def coming_back(port: int, fails: int) -> LaunchSpec:
    """A server that starts, and after that fails to so many times."""
    count = "n=$(cat starts 2>/dev/null || echo 0); echo $((n + 1)) > starts"
    shell = (
        f"{count}; [ $n -ge 1 ] && [ $n -le {fails} ] && echo no memory yet && exit 5; exec {{python}} {TARGET} {port}"
    )
    return spec(port, command=shell)


def killed(state) -> None:
    os.kill(state.pid, signal.SIGKILL)
    deadline = time.monotonic() + 5
    while server_state().status != "exited" and time.monotonic() < deadline:
        time.sleep(0.02)


@pytest.mark.fault("a server that dies and fails once to come back", "tried again, up to max_launches in a row")
def test_one_that_was_up_is_tried_again_and_failures_count_only_in_a_row(port):
    first = ensure_server(coming_back(port, 1), listening(port))
    killed(first)
    assert ensure_server(coming_back(port, 1), listening(port)).status == "up"
    Path("starts").write_text("1")
    killed(server_state())
    assert ensure_server(coming_back(port, 1), listening(port)).status == "up"


def test_one_that_was_up_and_does_not_come_back_is_given_up(port):
    killed(ensure_server(coming_back(port, 9), listening(port)))
    with pytest.raises(ServerError, match=r"failed to start 2 times in a row.*no memory yet"):
        ensure_server(coming_back(port, 9), listening(port))
    assert Path("starts").read_text().strip() == "3"


STATE = {
    "server": "target", "digest": "0", "owner": "1:2", "boot_id": "1:2", "pid": None, "status": "up",
    "started_at": "", "log_path": "l", "stop_grace_s": 1,
}  # fmt: skip
DAMAGED = ["", "{", "{}", "[]", "null", '"up"', "\ufeff1", *(json.dumps(STATE | {key: []}) for key in STATE)]
DAMAGED = [*DAMAGED, json.dumps(STATE | {"boot_id": "x"}), json.dumps(STATE | {"owner": 7})]


@pytest.mark.parametrize("name", ["state.json", "failed_launches.json"])
@pytest.mark.parametrize("text", DAMAGED)
def test_a_damaged_file_of_ours_is_as_none(port, name, text):
    Path(".speedmatrix").mkdir()
    Path(".speedmatrix", name).write_text(text)
    with pytest.raises(ServerError, match="ended at start"):
        ensure_server(spec(port, command=["false"], max_launches=1), listening(port))
    with pytest.raises(ServerError, match="failed to start 1 times in a row"):
        ensure_server(spec(port, command=["false"], max_launches=1), listening(port))


def test_one_that_is_never_ready_is_stopped(port):
    with pytest.raises(ServerError, match=r"not ready within 0\.5 s"):
        ensure_server(spec(port, "--never-ready", ready_timeout_s=0.5), listening(port))
    assert gone_within(2)


def test_the_last_words_are_those_of_the_launch_that_ended(port):
    with pytest.raises(ServerError, match=r"run again; its last line: no such model$"):
        ensure_server(spec(port, command="echo no such model\nexit 2"), listening(port))
    with pytest.raises(ServerError, match=r"run again; it printed nothing$") as e:
        ensure_server(spec(port, command="sleep 0\nexit 3"), listening(port))
    assert e.value.log_tail == []


def test_one_that_ignores_sigterm_is_killed_after_its_grace(port):
    ensure_server(spec(port, "--ignore-term", stop_grace_s=0.5), listening(port))
    began = time.monotonic()
    stop_server()
    assert 0.5 <= time.monotonic() - began < 2.5
    assert gone_within(0.5)


def test_workers_in_sessions_of_their_own_end_too(port):
    ensure_server(spec(port, "--workers"), listening(port))
    assert len(of_this_directory()) == 4  # supervisor, server, two workers
    stop_server()
    assert gone_within(1)


def test_a_killed_supervisor_takes_its_server_along(port):
    state = ensure_server(spec(port), listening(port))
    os.kill(processes.pid_of(state.boot_id), signal.SIGKILL)
    assert gone_within(2)
    assert ensure_server(spec(port), listening(port)).boot_id != state.boot_id


def test_the_server_ends_when_its_owner_is_killed(port, monkeypatch):
    owner = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(1000)"], cwd="/")
    monkeypatch.setenv(processes.OWNER_ENV, processes.identity(owner.pid))
    ensure_server(spec(port, "--workers"), listening(port))
    owner.kill()
    owner.wait()
    assert gone_within(2)


def test_a_dead_server_is_started_again(port):
    state = ensure_server(spec(port), listening(port))
    os.kill(state.pid, signal.SIGKILL)
    deadline = time.monotonic() + 5
    while server_state().status != "exited" and time.monotonic() < deadline:
        time.sleep(0.02)
    assert (server_state().status, server_state().returncode) == ("exited", -9)
    assert ending(-9) == "signal 9 (SIGKILL)"
    assert ensure_server(spec(port), listening(port)).boot_id != state.boot_id


def test_a_log_that_cannot_be_written_does_not_stop_the_server_from_talking():
    read, write = os.pipe()
    copying = threading.Thread(target=supervising._copy_log, args=(os.fdopen(read, "rb"), Path("/dev/full")))
    copying.start()
    with os.fdopen(write, "wb") as server:
        for _ in range(100):
            server.write(b"x" * 10_000 + b"\n")  # more than a pipe holds
    copying.join(10)
    assert not copying.is_alive()


def test_a_taken_port_is_refused(port):
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", port))
        listener.listen()
        with pytest.raises(ServerError, match=rf"127\.0\.0\.1:{port} is already in use by .* \(pid {os.getpid()}, "):
            ensure_server(spec(port), listening(port))


def test_secrets_reach_the_server_and_nothing_that_is_written(port, monkeypatch, tmp_path):
    monkeypatch.setenv("MY_SECRET", "s3cr3t-value-of-the-key")
    wanted = spec(port, "--print-env", "API_KEY", env={"API_KEY": "{env:MY_SECRET}"})
    ensure_server(wanted, listening(port))
    deadline = time.monotonic() + 5
    log = tmp_path / "logs/server-target.log"
    while "the key is" not in log.read_text() and time.monotonic() < deadline:
        time.sleep(0.02)
    assert re.search(r"^the key is <redacted>$", log.read_text(), re.M)
    written = [path for path in tmp_path.rglob("*") if path.is_file()]
    assert len(written) >= 3
    assert not [path for path in written if b"s3cr3t" in path.read_bytes()]


def test_a_missing_variable_is_named(port, monkeypatch):
    monkeypatch.delenv("NOT_THERE", raising=False)
    with pytest.raises(ServerError, match="the variable NOT_THERE is not set"):
        ensure_server(spec(port, env={"A": "{env:NOT_THERE}"}), listening(port))


def test_a_shell_string_is_run_by_a_shell(port):
    ensure_server(spec(port, command=f"X=1 exec {{python}} {TARGET} {port}"), listening(port))
    stop_server()
    assert gone_within(1)


def test_the_server_stays_in_the_sweeps_session_and_out_of_its_process_group(port):
    # Linux schedules sessions as groups, and Ctrl-C reaches process groups: see docs/decisions.md.
    pid = processes.pid_of(ensure_server(spec(port), listening(port)).boot_id)
    assert os.getsid(pid) == os.getsid(0) and os.getpgid(pid) == pid != os.getpgid(0)

"""One sweep at a time on a server, by whatever name, between two of its cells too."""

import os
import socket
import subprocess
import sys

import pytest

from speedmatrix import hosts, occupancy, processes

URL = "http://127.0.0.1:9/of-these-tests"


def test_a_server_is_measured_by_one_sweep_at_a_time():
    url = "http://127.0.0.1:9/of-this-test"
    with occupancy.sole_use(url):
        with pytest.raises(occupancy.Occupied, match="another sweep is measuring"), occupancy.sole_use(url):
            pass
        with occupancy.sole_use(url + "2"):
            pass
    with occupancy.sole_use(url):
        pass


@pytest.mark.parametrize(
    ("url", "key"),
    [
        *((f"http://{host}:8000", "localhost:8000") for host in ("localhost", "127.0.0.1", "[::1]", "LOCALHOST")),
        *((f"http://{host}:8000", "localhost:8000") for host in ("127.0.1.1", "0.0.0.0", socket.gethostname())),
        ("http://127.0.0.1", "localhost:80"),
        ("https://127.0.0.1/", "localhost:443"),
        ("http://127.0.0.1:80/v1/", "localhost:80"),
        ("http://127.0.0.1:8000/gateway/", "localhost:8000/gateway"),
        ("http://192.0.2.1:8000", "192.0.2.1:8000"),
        ("http://No-Such-Host.invalid.:8000", "no-such-host.invalid:8000"),
    ],
)
def test_a_servers_spellings_are_one(url, key):
    assert hosts.server_key(url) == key


def test_no_two_sweeps_measure_one_server_under_two_names():
    one, other = "http://localhost:9/of-this-test", "http://127.0.0.1:9/of-this-test/"
    with occupancy.sole_use(one), pytest.raises(occupancy.Occupied), occupancy.sole_use(other):
        pass


@pytest.fixture
def other():
    """A living process, of another sweep."""
    process = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(100)"])
    yield process
    process.kill()
    process.wait()


def test_between_two_cells_a_server_is_still_its_sweeps_as_long_as_that_lives(other, monkeypatch):
    monkeypatch.setenv(processes.OWNER_ENV, processes.identity(other.pid))
    with occupancy.sole_use(URL):
        pass  # one of its cells
    monkeypatch.setenv(processes.OWNER_ENV, processes.identity())
    with pytest.raises(occupancy.Occupied, match="another sweep is measuring"), occupancy.sole_use(URL):
        pass
    other.kill()
    other.wait()
    for _ in range(2):
        with occupancy.sole_use(URL):
            pass


@pytest.mark.parametrize("text", ["", "nonsense", "1:", "999999999:1", "\0" * 50, "12:None"])
def test_a_lock_that_holds_anything_else_is_free(text, monkeypatch):
    with occupancy._opened(URL) as file:
        os.ftruncate(file, 0)
        os.pwrite(file, text.encode(), 0)
    monkeypatch.setenv(processes.OWNER_ENV, processes.identity())
    with occupancy.sole_use(URL):
        pass

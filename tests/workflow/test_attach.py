"""Attaching: a server that somebody else started is measured, and left running."""

import os
import subprocess
import sys
import time

import requests

from speedmatrix import processes


def test_a_running_server_is_measured_and_left_running(fresh):
    url = fresh.config["servers"]["tiny"]["url"]
    command = [sys.executable, "-m", "speedmatrix.embedded", "--port", url.rpartition(":")[2], "--kv-unified"]
    command += [
        "--context",
        "20224",
        "--slots",
        "4",
        "--alias",
        "<b>m</b>",
        "--model-dir",
        str(fresh.directory.parent / "cache"),
    ]
    server = subprocess.Popen(command, cwd="/", env=processes.importable(os.environ), stdout=subprocess.DEVNULL)
    try:
        del fresh.config["servers"]["tiny"]["launch"]
        fresh.config["servers"]["tiny"]["facts"] = {"launch_command": "llama-server --kv-unified --api-key topsecret1"}
        fresh.config["servers"]["tiny"]["url"] = url + "/v1/"
        fresh.config["matrix"] = {"prefill": {"contexts": [256]}, "decode": {"contexts": [256], "concurrency": [2]}}
        deadline = time.monotonic() + 30
        while time.monotonic() < deadline:
            try:
                if requests.get(url + "/health", timeout=1).ok:
                    break
            except requests.RequestException:
                time.sleep(0.1)
        code, output = fresh.run()
        assert code == 0, output
        assert server.poll() is None and fresh.launches() == 0
        page = (fresh.directory / "results/report.html").read_text()
        assert "llama-server --kv-unified --api-key &lt;redacted&gt;" in page and "topsecret1" not in page
        assert "&lt;b&gt;m&lt;/b&gt;" in page and "<b>m</b>" not in page
        config_file = fresh.config_file
        written = [path for path in fresh.directory.rglob("*") if path.is_file() and path != config_file]
        assert len(written) > 20
        assert not [path for path in written if b"topsecret1" in path.read_bytes()]
    finally:
        server.kill()
        server.wait()


def test_nothing_to_attach_to_is_said_in_one_line(fresh):
    url = fresh.config["servers"]["tiny"]["url"]
    del fresh.config["servers"]["tiny"]["launch"]
    code, output = fresh.run()
    assert code != 0
    (line,) = [line for line in output.splitlines() if line.startswith("error: ")]
    assert f"servers.tiny: nothing answers at {url}: start it, or give `launch`" in line
    assert "Traceback" not in output

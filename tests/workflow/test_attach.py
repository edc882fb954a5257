"""Attaching: a server that somebody else started is measured, and left running."""

import json
import os
import subprocess
import sys
import time

import pytest
import requests

from speedmatrix import processes
from tests.accuracy.truth import serving
from tests.workflow.conftest import PAGE


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
        code, output = fresh.run(PAGE)
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


@pytest.mark.fault(
    "an attached server replaced by another version between two runs",
    "cells are failed as “server changed”, nothing is mixed",
)
def test_an_attached_server_that_was_replaced_between_two_runs_is_not_mixed_in(fresh):
    with serving(20) as truth:
        fresh.config["servers"] = {"truth": {"engine": "vllm", "url": truth.url}}
        fresh.config["matrix"] = {"prefill": {"contexts": [512]}, "decode": {"contexts": [512], "concurrency": [2]}}
        code, output = fresh.run()
        assert code == 0, output
        truth.faults(version="0.33.0+gfedcba9876")
        fresh.config["matrix"]["decode"]["concurrency"].append(4)
        code, output = fresh.run()
        assert code == 0, output
        cells = {lanes: json.loads(fresh.cell(f"decode-512-x{lanes}").read_text()) for lanes in (2, 4)}
        assert (cells[2]["status"], cells[4]["status"]) == ("valid", "failed")
        assert "server changed: version was '0.32.0+g0123456789', is '0.33.0+gfedcba9876'" in cells[4]["reason"]
        assert "delete results/servers/truth to measure it anew" in cells[4]["reason"]


def test_a_server_without_metrics_that_takes_only_chat_is_measured_from_start_to_page(fresh):
    with serving(20) as truth:
        truth.faults(chat_only=True, no_tokenize=True, metrics="502", refuses=["ignore_eos"])
        fresh.config["servers"] = {"any": {"engine": "openai", "url": truth.url + "/v1"}}
        fresh.config["matrix"] = {"prefill": {"contexts": [512]}, "decode": {"contexts": [512], "concurrency": [2]}}
        code, output = fresh.run(PAGE)
        assert code == 0, output
        health = json.loads(next(fresh.directory.glob("results/servers/any/*/health.json")).read_text())
        assert health["requests"] == {
            "endpoint": "chat",
            "prompt": "text",
            "limit_field": "max_tokens",
            "left_out": ["ignore_eos"],
            "sized_by": "usage",
        }
        cell = json.loads(fresh.cell("decode-512-x2").read_text())
        assert cell["status"] == "valid" and cell["prompt"]["form"] == "chat"
        assert cell["figures"]["prompt_tokens"] == pytest.approx(512, rel=0.005)
        text = (fresh.directory / "results/report.html").read_text()
        assert "chat messages sized by the server&#39;s usage" in text
        assert "without ignore_eos: the server refuses it" in text

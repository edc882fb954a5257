"""Several servers: one after another in the config's order, each started once; one that can't start fails alone."""

import copy
import json

from tests.workflow.conftest import free_port


def test_servers_are_measured_in_order_and_one_that_cannot_start_fails_alone(fresh):
    first = fresh.config["servers"].pop("tiny")
    port = free_port()
    second = copy.deepcopy(first)
    second["url"] = f"http://127.0.0.1:{port}"
    place = second["launch"]["command"].index("--port") + 1
    second["launch"]["command"][place] = port
    broken = {"engine": "llama.cpp", "url": f"http://127.0.0.1:{free_port()}", "launch": {"command": "exit 4"}}
    fresh.config["servers"] = {"zeta": first, "broken": broken, "alpha": second}
    fresh.config["matrix"] = {"prefill": {"contexts": [256]}, "decode": {"contexts": [256], "concurrency": [1]}}
    code, output = fresh.run()
    assert code == 0, output
    cells = {
        (cell["server"], cell["phase"]): cell for cell in map(read, fresh.directory.glob("results/cells/*/*.json"))
    }
    status = {key: cell["status"] for key, cell in cells.items()}
    assert status == {
        (server, phase): "failed" if server == "broken" else "valid"
        for server in ("zeta", "broken", "alpha")
        for phase in ("prefill", "decode")
    }
    assert cells["zeta", "decode"]["finished_at"] <= cells["alpha", "prefill"]["started_at"]
    starts = {log.name: log.read_text().count("--- ") for log in fresh.directory.glob("logs/server-*.log")}
    assert (starts["server-zeta.log"], starts["server-alpha.log"]) == (1, 1)
    assert "broken did not start" in (fresh.directory / "results/report.html").read_text()


def read(path) -> dict:
    return json.loads(path.read_text())

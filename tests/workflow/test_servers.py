"""Several servers: one after another in the config's order, each started once; one that can't start fails alone."""

import copy
import json
import os
import shlex

import pytest

from tests.workflow.conftest import PAGE, free_port


@pytest.mark.fault("one of several servers can't start", "its cells are failed, the other servers are measured")
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
    code, output = fresh.run(PAGE)
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


@pytest.mark.fault(
    "a launch command edited to one that can't start, and back",
    "what was measured before counts again; nothing is measured",
)
def test_a_failed_start_of_one_of_several_and_the_way_back_measure_nothing(fresh):
    other = {"engine": "llama.cpp", "url": f"http://127.0.0.1:{free_port()}", "launch": {"command": "exit 4"}}
    fresh.config["servers"]["zz-broken"] = other
    fresh.config["matrix"] = {"prefill": {"contexts": [256]}, "decode": {"contexts": [256], "concurrency": [1]}}
    code, output = fresh.run()
    assert code == 0, output
    first, launches = cells_of_tiny(fresh), tiny_launches(fresh)
    arrivals = {path.name: path.read_bytes() for path in fresh.directory.glob("results/cells/tiny/*.npz")}
    assert [cell["status"] for cell in first.values()] == ["valid", "valid"] and len(arrivals) == 2
    command = fresh.config["servers"]["tiny"]["launch"]["command"]
    fresh.config["servers"]["tiny"]["launch"]["command"] = "exit 3"
    for _ in range(2):  # tried again by the second run
        code, output = fresh.run()
        assert code == 0, output
        assert {cell["reason"] for cell in cells_of_tiny(fresh).values()} == {"server did not start"}
    assert tiny_launches(fresh) > launches + 1
    fresh.config["servers"]["tiny"]["launch"]["command"] = command
    launches = tiny_launches(fresh)
    code, output = fresh.run()
    assert code == 0, output
    assert cells_of_tiny(fresh) == first and tiny_launches(fresh) == launches
    assert {path.name: path.read_bytes() for path in fresh.directory.glob("results/cells/tiny/*.npz")} == arrivals
    (fresh.directory / "results/cells/tiny/prefill-256.json").unlink()
    code, output = fresh.run()
    assert code == 0, output
    again = cells_of_tiny(fresh)
    assert again["decode-256-x1"] == first["decode-256-x1"]
    assert again["prefill-256"]["status"] == "valid"
    assert again["prefill-256"]["prompt"]["nonce"] != first["prefill-256"]["prompt"]["nonce"]


def cells_of_tiny(sweep) -> dict[str, dict]:
    return {path.stem: read(path) for path in sorted(sweep.directory.glob("results/cells/tiny/*.json"))}


def tiny_launches(sweep) -> int:
    return (sweep.directory / "logs/server-tiny.log").read_text().count("--- ")


def read(path) -> dict:
    return json.loads(path.read_text())


def test_a_server_has_the_environment_of_the_sweep_and_not_snakemakes_thread_limits(fresh):
    command = fresh.config["servers"]["tiny"]["launch"]["command"]
    fresh.config["servers"]["tiny"]["launch"]["command"] = f"env; exec {shlex.join(map(str, command))}"
    fresh.config["matrix"] = {"prefill": {"contexts": [256]}, "decode": {"contexts": [], "concurrency": [1]}}
    code, output = fresh.run(MKL_NUM_THREADS="3", A_SETTING="of mine")
    assert code == 0, output
    log = (fresh.directory / "logs/server-tiny.log").read_text().splitlines()
    set_by_user = {line for line in log if line.startswith(("MKL_NUM_THREADS=", "A_SETTING="))}
    assert set_by_user == {"MKL_NUM_THREADS=3", "A_SETTING=of mine"}
    here = {f"{name}={value}" for name, value in os.environ.items()}
    assert not {line for line in log if "_NUM_THREADS=" in line} - here - set_by_user
    assert not [line for line in log if line.startswith("SPEEDMATRIX_CONFIG=")]


def test_variants_share_an_address_and_a_new_value_costs_only_its_own_cells(fresh):
    launch = fresh.config["servers"]["tiny"]["launch"]
    launch["command"][launch["command"].index("--slots") + 1] = "{slots}"
    fresh.config["servers"]["tiny"]["variants"] = {"slots": [2, 4]}
    fresh.config["matrix"] = {"prefill": {"contexts": [256]}, "decode": {"contexts": [256], "concurrency": [1]}}
    code, output = fresh.run(PAGE)
    assert code == 0, output
    cells = [read(path) for path in fresh.directory.glob("results/cells/*/*.json")]
    assert sorted((cell["server"], cell["status"]) for cell in cells) == [
        (server, "valid") for server in ("tiny-slots-2", "tiny-slots-2", "tiny-slots-4", "tiny-slots-4")
    ]
    ends = {server: [c["finished_at"] for c in cells if c["server"] == server] for server in ("tiny-slots-2",)}
    assert max(ends["tiny-slots-2"]) <= min(c["started_at"] for c in cells if c["server"] == "tiny-slots-4")
    before = fresh.attempts()
    fresh.config["servers"]["tiny"]["variants"]["slots"].append(3)
    code, output = fresh.run(PAGE)
    assert code == 0, output
    assert len(set(fresh.attempts()) - set(before)) == 2 and fresh.launches() == 3
    page = (fresh.directory / "results/report.html").read_text()
    assert "3 servers: tiny-slots-2, tiny-slots-4, tiny-slots-3" in page or page.count("tiny-slots-3") > 1

"""A real vLLM, on a CPU or not: `make test-vllm VLLM=path/to/vllm MODEL=directory`. Left out where it is not installed.

Any small model does; --load-format dummy gives it random weights.
"""

import json
import os
import shlex

import pytest

from tests.workflow.conftest import free_port

VLLM, MODEL = os.environ.get("VLLM", ""), os.environ.get("MODEL", "")
pytestmark = [
    pytest.mark.skipif(not (VLLM and MODEL), reason="VLLM and MODEL name no vllm and no model"),
    pytest.mark.timeout(1200),
]
KEY = "sk-only-for-this-test-2718281828"
LANES = [1, 2, 4, 8, 16]


def config(*options: str, kv_gb: int = 1) -> dict:
    port = free_port()
    command = [
        VLLM,
        "serve",
        MODEL,
        "--load-format",
        "dummy",
        "--served-model-name",
        "tiny",
        "--max-model-len",
        "16384",
    ]
    command += ["--host", "127.0.0.1", "--port", str(port), "--dtype", "float32", "--api-key", "{env:A_KEY}", *options]
    launch = {
        "command": shlex.join(command).replace("'{env:A_KEY}'", "{env:A_KEY}"),
        "env": {"HF_HUB_OFFLINE": 1, "VLLM_CPU_KVCACHE_SPACE": kv_gb, "VLLM_NO_USAGE_STATS": 1},
        "ready_timeout_s": 600,
    }
    return {
        "servers": {
            "v": {"engine": "vllm", "url": f"http://127.0.0.1:{port}", "launch": launch, "api_key_env": "A_KEY"}
        },
        "matrix": {
            "prefill": {"contexts": ["1K", "4K"]},
            "decode": {"contexts": ["1K", "2K", "4K"], "concurrency": LANES},
        },
        "measure": {"duration_s": 3, "max_output_tokens": 3000},
    }


def swept(fresh, settings: dict) -> dict[str, dict]:
    fresh.config = settings
    process = fresh.start(A_KEY=KEY)
    output, _ = process.communicate(timeout=900)
    assert process.returncode == 0, output
    written = [path for path in fresh.directory.rglob("*") if path.is_file() and path != fresh.config_file]
    assert not [path for path in written if KEY.encode() in path.read_bytes()] and KEY not in output
    found = {path.stem: json.loads(path.read_text()) for path in fresh.directory.glob("results/cells/v/*.json")}
    assert len(found) == 2 + 3 * len(LANES)
    return found


def agrees(cell: dict) -> bool:
    """Whether vLLM's own count is within 1 % of ours."""
    return abs(cell["figures"]["server_diff_pct"]) < 1


@pytest.mark.parametrize("caching", ["--enable-prefix-caching", "--no-enable-prefix-caching"])
def test_a_sweep_with_a_key_and_eight_sequences_at_most(fresh, caching):
    cells = swept(fresh, config(caching, "--max-num-seqs", "8"))
    decode = {name: cell for name, cell in cells.items() if cell["phase"] == "decode"}
    failed = {name: cell["reason"] for name, cell in cells.items() if cell["status"] == "failed"}
    assert not failed
    for cell in decode.values():
        if cell["figures"]:
            assert agrees(cell) and cell["figures"]["ttft_kind"] == "cold"
            assert cell["figures"]["prompt_tokens"] == cell["context_tokens"]
            assert cell["figures"]["token_source"] == "usage" and cell["prompt"]["form"] == "ids"
    limited = [cell for cell in decode.values() if cell["concurrency"] == 16 and cell["figures"]]
    assert limited and {cell["status"] for cell in limited} == {"limited"}
    assert {cell["reason"].split(",")[0].split(":")[0] for cell in limited} == {"ran 8 of 16"}
    health = json.loads(next(fresh.directory.glob("results/servers/v/*/health.json")).read_text())
    assert health["facts"]["prefix_caching"] == ("off" if "no-" in caching else "on")
    assert health["facts"]["max_num_seqs"] == "8"
    assert health["capacity"]["kv_source"] == "kv_cache_size_tokens"


def test_a_kv_cache_too_small_for_some_cells(fresh):
    settings = config("--num-gpu-blocks-override", "200")
    cells = swept(fresh, settings)
    health = json.loads(next(fresh.directory.glob("results/servers/v/*/health.json")).read_text())
    capacity = health["capacity"]["kv_tokens"]
    for name, cell in cells.items():
        if cell["phase"] == "decode":
            fits = cell["concurrency"] * (cell["context_tokens"] + 3000) <= capacity
            assert (cell["status"] == "over_capacity") is not fits, name
    assert {cell["status"] for cell in cells.values()} >= {"valid", "over_capacity"}

"""Variants: every combination a server of its own, in the lists' order, with one line for what can't be."""

import pytest

from speedmatrix.config import parse
from speedmatrix.configfile import ConfigError


def config(**spec):
    entry = {"engine": "vllm", "url": "http://127.0.0.1:8000"} | spec
    return parse({"servers": {"big": entry, "other": {"engine": "vllm", "url": "http://127.0.0.1:8001"}}})


COMMAND = ["vllm", "serve", "m", "-tp", "{tensor_parallel}", "-q", "{quantization}", "--x={tensor_parallel}"]


def test_every_combination_is_a_server_in_the_configs_order():
    lists = {"tensor_parallel": [4, 8], "quantization": ["fp8", "NVFP4_x"]}
    servers = config(
        launch={"command": COMMAND, "env": {"Q": "{quantization}"}},
        variants=lists,
        facts={"quantization": "{quantization}"},
    ).servers
    assert list(servers) == [
        "big-tensor-parallel-4-quantization-fp8",
        "big-tensor-parallel-4-quantization-nvfp4-x",
        "big-tensor-parallel-8-quantization-fp8",
        "big-tensor-parallel-8-quantization-nvfp4-x",
        "other",
    ]
    last = servers["big-tensor-parallel-8-quantization-nvfp4-x"]
    assert last.launch.command == ("vllm", "serve", "m", "-tp", "8", "-q", "NVFP4_x", "--x=8")
    assert (last.launch.env, last.facts) == ({"Q": "NVFP4_x"}, {"quantization": "NVFP4_x"})
    assert len({server.digest for server in servers.values()}) == 5


def test_a_value_added_leaves_the_others_as_they_were():
    def digests(values):
        launch = {"command": "vllm serve m -tp {tp} --key {env:KEY}"}
        return {name: server.digest for name, server in config(launch=launch, variants={"tp": values}).servers.items()}

    assert digests([4]).items() <= digests([4, 8]).items()


def test_a_value_that_looks_like_a_placeholder_is_not_filled_in_again():
    launch = {"command": "serve {a} {b} {python} {env:KEY}"}
    (server,) = [one for name, one in config(launch=launch, variants={"a": ["{b}"], "b": [7]}).servers.items()][:1]
    assert server.launch.command == "serve {b} 7 {python} {env:KEY}"


def test_a_value_without_a_letter_leaves_no_dash_at_the_end_of_the_name():
    assert next(iter(config(launch={"command": "{q}"}, variants={"q": ["_"]}).servers)) == "big-q"


@pytest.mark.parametrize(
    ("spec", "said"),
    [
        ({"variants": {"tp": [4]}}, "servers.big.variants: only a server that is launched has variants"),
        (
            {"variants": {"tp": [4]}, "launch": {"command": "vllm serve m"}},
            "servers.big.variants.tp: nothing in the launch says {tp}",
        ),
        (
            {"variants": {"q": ["a_b", "a-b"]}, "launch": {"command": "serve {q}"}},
            "servers.big: two servers would be called big-q-a-b",
        ),
        (
            {"variants": {"q": ["x" * 60]}, "launch": {"command": "serve {q}"}},
            f"servers.big: big-q-{'x' * 60} has over 64 characters: shorten it",
        ),
        ({"variants": {"python": ["x"]}, "launch": {"command": "{python}"}}, "servers.big.variants: "),
        ({"variants": {"tp": []}, "launch": {"command": "{tp}"}}, "servers.big.variants.tp: "),
    ],
)
def test_what_can_not_be_is_one_line(spec, said):
    with pytest.raises(ConfigError) as caught:
        config(**spec)
    assert str(caught.value).startswith(said) and "\n" not in str(caught.value)

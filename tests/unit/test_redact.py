"""What is a secret and what is not, in commands and in text."""

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from speedmatrix.redact import is_secret_name, redact_command, redact_text

SECRET = [
    "HF_TOKEN",
    "OPENAI_API_KEY",
    "--api-key",
    "--hf-token",
    "apiKey",
    "DB_PASSWORD",
    "Authorization",
    "--auth",
    "AWS_SECRET",
]
PLAIN = [
    "MAX_TOKENS",
    "--max-num-batched-tokens",
    "--tokenizer",
    "--tokenizer-mode",
    "--monkey",
    "KEYBOARD",
    "--sort-key",
    "PWD",
    "SSH_AUTH_SOCK",
]


@pytest.mark.parametrize("name", SECRET)
def test_secret_names(name):
    assert is_secret_name(name)


@pytest.mark.parametrize("name", PLAIN)
def test_names_that_only_look_like_it(name):
    assert not is_secret_name(name)


@pytest.mark.parametrize(
    ("command", "shown"),
    [
        ("serve m --api-key abc123 --port 1", "serve m --api-key <redacted> --port 1"),
        ("serve m --api-key=abc123", "serve m --api-key=<redacted>"),
        ("serve m --api-key 'a b c'", "serve m --api-key <redacted>"),
        ("HF_TOKEN=abc123 serve m", "HF_TOKEN=<redacted> serve m"),
        ("env HF_TOKEN=abc MAX_TOKENS=5 serve", "env HF_TOKEN=<redacted> MAX_TOKENS=5 serve"),
        ("curl https://me:pass@host/v1", "curl https://<redacted>@host/v1"),
        ("curl -H 'Authorization: Bearer abc123'", "curl -H 'Authorization: Bearer <redacted>'"),
        ("serve --flag --api-key abc", "serve --flag --api-key <redacted>"),
        ("sh -c 'serve --api-key abc --port 8'", "sh -c 'serve --api-key <redacted> --port 8'"),
        ("docker run -e HF_TOKEN=abc -e X=1 image", "docker run -e HF_TOKEN=<redacted> -e X=1 image"),
        ('serve --json {"api_key": "abc", "n": 1}', 'serve --json {"api_key": <redacted>, "n": 1}'),
        ("serve --auth --port 8", "serve --auth --port 8"),
        ("serve --max-num-batched-tokens 8192", "serve --max-num-batched-tokens 8192"),
        ("serve --kv '{\"cpu_offload\":false}'", "serve --kv '{\"cpu_offload\":false}'"),
    ],
)
def test_commands(command, shown):
    assert redact_command(command) == shown


def test_a_list_is_shown_as_a_shell_line():
    assert redact_command(["serve", "a b", "--api-key", "x y"]) == "serve 'a b' --api-key <redacted>"


def test_the_seed_pages_command_keeps_all_but_its_key():
    command = (Path(__file__).parents[1] / "data/seed_launch_command.txt").read_text().strip()
    assert redact_command(command) == command
    assert redact_command(command.replace("<redacted>", "sk-abc")) == command


def test_the_home_directory_is_shortened():
    home = str(Path.home())
    assert redact_command(f"{home}/venv/bin/vllm serve") == "$HOME/venv/bin/vllm serve"
    assert redact_command(f"{home}less/x") == f"{home}less/x"


def test_known_values_wherever_they_stand():
    assert redact_text('{"error": "bad key topsecret!"}', ["topsecret"]) == '{"error": "bad key <redacted>!"}'


def test_well_known_shapes_of_keys():
    assert redact_text("refused sk-proj-abcdefgh12345") == "refused <redacted>"
    assert redact_text("hf_abcdefghij123 is wrong") == "<redacted> is wrong"


@given(st.lists(st.sampled_from(["serve", "--flag", "-x", "--port", "8", "A=1", "'q q'", "sh -c"]), max_size=6))
def test_no_neighbour_hides_a_key_from_redaction(before):
    assert "topsecret" not in redact_command(" ".join([*before, "--api-key", "topsecret", "--more"]))
    assert "topsecret" not in redact_command(" ".join([*before, "--api-key=topsecret", "--more"]))
    assert "topsecret" not in redact_command(" ".join([*before, "HF_TOKEN=topsecret", "--more"]))


def test_twice_is_once():
    once = redact_text("--api-key abc Authorization: Bearer xyz123 https://a:b@c/")
    assert redact_text(once) == once

"""What is a secret and what is not, in commands and in text."""

import base64
import re
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from speedmatrix import known
from speedmatrix.redact import is_secret_name, redact_command, redact_text, redact_tree, secrets_in

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
    "-hft",
    "MYAPIKEY",
    "HFTOKEN",
    "PGPASS",
    "PGPASSWORD",
    "SMTP_PASS",
    "GITHUB_PAT",
    "X-Api-Key",
    "--api-keys",
    "--keys",
    "WANDB_KEYS",
    "SECRETS",
    "CREDS",
    "DB_PW",
    "--jwt",
    "Set-Cookie",
    "HF_TOKENS",
    "--api-tokens",
    "X-Amz-Signature",
    "SLACK_WEBHOOK_URL",
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
    "PATH",
    "--patch",
    "--pass-through",
    "--bypass",
    "PATTERN",
    "--key-cache-dtype",
    "--auth-mode",
    "--token-ids",
    "--eos-token-id",
    "--token-budget",
    "--num-tokens",
    "--prompt-tokens",
    "--design",
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
        ("llama-server -hft abc -m x", "llama-server -hft <redacted> -m x"),
        ("llama-server -hft=abc", "llama-server -hft=<redacted>"),
        ("curl --header 'X-Api-Key: abc' url", "curl --header 'X-Api-Key: <redacted>' url"),
        ('curl -H "Token: abc def" url', 'curl -H "Token: <redacted>" url'),
        ('curl -H"X-Auth-Token:abc" url', 'curl -H"X-Auth-Token:<redacted>" url'),
        ("curl -H 'Accept: text/plain' url", "curl -H 'Accept: text/plain' url"),
        ("serve --api-key \\\nabc", "serve --api-key \\\n<redacted>"),
        ("serve --api-key \\\n  abc \\\n  --port 8", "serve --api-key \\\n  <redacted> \\\n  --port 8"),
        ("serve --api-key=ab\\\nc --port 8", "serve --api-key=<redacted> --port 8"),
        ('serve --api-key "a"bc --port 8', "serve --api-key <redacted> --port 8"),
        ("serve --api-key 'a'\"'\"'b c' --port 8", "serve --api-key <redacted> --port 8"),
        ("HF_TOKEN=a'b c' serve", "HF_TOKEN=<redacted> serve"),
        ("serve --api-key $(echo abc) --port 8", "serve --api-key <redacted> --port 8"),
        ('serve "--api-key=a b" --port 8', 'serve "--api-key=<redacted>" --port 8'),
        ("serve --api-key -abc --port 8", "serve --api-key <redacted> --port 8"),
        ("serve --api-key 'a b", "serve --api-key <redacted>"),
        ('sh -c "serve --api-key \\"a b\\" --port 8"', 'sh -c "serve --api-key <redacted> --port 8"'),
        ("sh -c 'HF_TOKEN=abc serve --port 8'", "sh -c 'HF_TOKEN=<redacted> serve --port 8'"),
        ("docker run --env=HF_TOKEN=abc image", "docker run --env=HF_TOKEN=<redacted> image"),
        ('serve --json "{\\"api_key\\": \\"abc\\"}"', 'serve --json "{\\"api_key\\": <redacted>}"'),
        ("curl http://me:p/a@b@host/v1", "curl http://<redacted>@host/v1"),
        ("curl http://abc@host/v1", "curl http://<redacted>@host/v1"),
        ("curl http://host:8000/v1", "curl http://host:8000/v1"),
        ("serve --flag-with-key --api-key abc", "serve --flag-with-key <redacted> <redacted>"),
        ("serve 'a b' \"c\\nd\" \\\n  it\\'s \\", "serve 'a b' \"c\\nd\" \\\n  it\\'s \\"),
    ],
)
def test_commands(command, shown):
    assert redact_command(command) == shown


@pytest.mark.parametrize(
    ("command", "shown"),
    [
        ("serve --api-keys a,b --port 8", "serve --api-keys <redacted> --port 8"),
        ("DB_PW=abc PW=abc serve", "DB_PW=<redacted> PW=<redacted> serve"),
        ("curl -u me:abc http://host/", "curl -u <redacted> http://host/"),
        ("curl --user=me:abc http://host/", "curl --user=<redacted> http://host/"),
        ("docker run -u 1000:1000 image", "docker run -u 1000:1000 image"),
        ("python -u serve.py", "python -u serve.py"),
        ("sshpass -p abc ssh host", "sshpass -p <redacted> ssh host"),
        ("sshpass -pabc ssh host", "sshpass <redacted> ssh host"),
        ("sshpass -e ssh -p 22 host", "sshpass -e ssh -p 22 host"),
        ("curl -H 'Cookie: a=b; c=d' url", "curl -H 'Cookie: <redacted>' url"),
        ("export HF_TOKEN+=abc; serve", "export HF_TOKEN+=<redacted> serve"),
        ("HF_TOKEN[0]=abc serve", "HF_TOKEN[0]=<redacted> serve"),
        ("export HF_TOKEN=${HF_TOKEN:-abc def}", "export HF_TOKEN=<redacted>"),
        ("use ${HF_TOKEN:-abc def} now", "use ${HF_TOKEN:-<redacted>} now"),
        ("use ${PORT:-8000} now", "use ${PORT:-8000} now"),
        ("serve --api-key-file <(echo abc) --port 8", "serve --api-key-file <redacted> --port 8"),
        ("serve --config '{api_key: abc, port: 8}'", "serve --config '{api_key: <redacted>, port: 8}'"),
        ("serve --config '{port: 8, api_key: abc}'", "serve --config '{port: 8, api_key: <redacted>}'"),
        ("serve <<END\nport: 8\nhf_token: abc\nEND", "serve <<END\nport: 8\nhf_token: <redacted>\nEND"),
        ("setenv HF_TOKEN abc; serve", "setenv HF_TOKEN <redacted> serve"),
        ("set -gx HF_TOKEN abc; serve", "set -gx HF_TOKEN <redacted> serve"),
        ("mpirun -x HF_TOKEN serve", "mpirun -x HF_TOKEN serve"),
        ("serve --key-cache-dtype fp8 --auth-mode none", "serve --key-cache-dtype fp8 --auth-mode none"),
        ("serve --token-ids 5 --key-length 8", "serve --token-ids 5 --key-length 8"),
    ],
)
def test_rarer_spellings(command, shown):
    assert redact_command(command) == shown


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ('os.environ["HF_TOKEN"] = "abc"', 'os.environ["HF_TOKEN"] = <redacted>'),
        ("os.environ.setdefault('HF_TOKEN', 'abc')", "os.environ.setdefault('HF_TOKEN', <redacted>)"),
        ("Command '['serve', '--api-key', 'abc']' died", "Command '['serve', '--api-key', <redacted>]' died"),
        ("Set-Cookie: sid=abc; path=/", "Set-Cookie: <redacted>"),
        ("GET https://host/x?sig=abc", "GET https://host/x?sig=<redacted>"),
        ("auth eyJhbGciOiJI.eyJzdWIiOiIx.SflKxwRJ bad", "auth <redacted> bad"),
        ("the token: a word, the key: another", "the token: a word, the key: another"),
        ("api_key_env: MY_VARIABLE", "api_key_env: MY_VARIABLE"),
        ("auth-error: you may not", "auth-error: you may not"),
        ('{"required": ["token", "name"]}', '{"required": ["token", "name"]}'),
    ],
)
def test_what_programs_say_of_secrets(text, shown):
    assert redact_text(text) == shown


def test_a_list_is_shown_as_a_shell_line():
    assert redact_command(["serve", "a b", "--api-key", "x y"]) == "serve 'a b' --api-key <redacted>"


@pytest.mark.parametrize(
    ("arguments", "shown"),
    [
        (["s", "--api-key", "-abc", "-x"], "s --api-key <redacted> -x"),
        (["s", "--api-key", "a'b c", "-x"], "s --api-key <redacted> -x"),
        (["s", "--api-key=a'b c", "-x"], "s --api-key=<redacted> -x"),
        (["s", "--auth", "--port", "8"], "s --auth --port 8"),
        (["docker", "-e", "HF_TOKEN=a b", "image"], "docker -e HF_TOKEN=<redacted> image"),
        (["sh", "-c", "HF_TOKEN=abc serve --port 8"], "sh -c 'HF_TOKEN=<redacted> serve --port 8'"),
        (["curl", "-H", "X-Api-Key: abc"], "curl -H 'X-Api-Key: <redacted>'"),
        (["s", "it's", "--api-key", "abc"], "s 'it'\"'\"'s' --api-key <redacted>"),
    ],
)
def test_lists(arguments, shown):
    assert redact_command(arguments) == shown


@given(st.text(alphabet="ab '\"\\-$=:/@\n", min_size=1, max_size=12))
def test_no_value_of_a_list_is_shown_whatever_it_holds(value):
    shown = redact_command(["s", "--api-key", value + "xyz", "--token=" + value + "xyz", "end"])
    assert shown == "s --api-key <redacted> --token=<redacted> end"


def test_what_a_server_prints_of_its_arguments():
    assert redact_text("args: {'api_key': ['abc', 'd'], 'port': 8}") == "args: {'api_key': <redacted>, 'port': 8}"
    assert redact_text("can't start: --api-key 'a b' --port 8") == "can't start: --api-key <redacted> --port 8"
    assert redact_text("refused header x-api-key: abc") == "refused header x-api-key: <redacted>"
    line = "servers.s.api_key_env: the variable X is not set"
    assert redact_text(line) == line


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


def test_this_machines_name_is_shortened_as_a_whole_word_only(monkeypatch):
    monkeypatch.setattr("platform.node", lambda: "gpu-box-7")
    text = "vllm serve m --host gpu-box-7 --x http://gpu-box-7:8000/v1 gpu-box-71 my-gpu-box-7 gpu-box-7.lan"
    right = "vllm serve m --host $HOST --x http://$HOST:8000/v1 gpu-box-71 my-gpu-box-7 $HOST.lan"
    assert redact_text(text) == right
    monkeypatch.setattr("platform.node", lambda: "vm")
    assert redact_text("vllm on vm") == "vllm on vm"  # too short to be told from a word


def test_a_value_that_is_known_is_hidden_in_every_form_that_a_server_may_repeat_it_in(monkeypatch):
    monkeypatch.setattr(known, "_known", set())
    known.know(['plain/key "77"', "abc"])
    in_url, in_query, in_json = "plain/key%20%2277%22", "plain%2Fkey%20%2277%22", 'plain/key \\"77\\"'
    said = f'quota of key plain/key "77" is used up; {in_url}; {in_query}; "{in_json}"'
    shown = redact_text(said)
    assert "77" not in shown and shown.count("<redacted>") == 4
    assert redact_text("abcd") == "abcd"  # too short to tell


@pytest.mark.parametrize("command", [
    ["vllm", "serve", "m", "--api-key", "one-key", "two-key", "--port", "80"],
    "vllm serve m --api-key one-key two-key --port 80",
    "vllm serve m --api-key 'one-key' \"two-key\" --port 80 && echo",
])  # fmt: skip
def test_every_word_after_api_key_is_hidden_up_to_the_next_option(command):
    shown = redact_command(command)
    assert "one-key" not in shown and "two-key" not in shown
    assert shown.startswith("vllm serve m --api-key <redacted> <redacted> --port 80")


@pytest.fixture
def long_key(monkeypatch) -> str:
    monkeypatch.setattr(known, "_known", {"sUp3r/s3cret+key~0123456789"})
    return "sUp3r/s3cret+key~0123456789"


@pytest.mark.parametrize("before", ["", "u", "me:", "user:", "Bearer "])
@pytest.mark.parametrize("encode", [base64.b64encode, base64.urlsafe_b64encode])
def test_a_known_value_is_hidden_in_base64_wherever_it_begins(long_key, before, encode):
    shown = redact_text(f"seen {encode((before + long_key + '!').encode()).decode()} here")
    clear = re.sub("<redacted>", "", shown)
    assert shown.startswith("seen ") and shown.endswith(" here") and len(clear) < len("seen  here") + 16


def test_a_longer_part_of_a_known_value_is_hidden_as_where_a_line_was_cut(long_key):
    assert redact_text(f"refused {long_key[:20]}") == "refused <redacted>"
    assert redact_text(f"{long_key[:13]} and {long_key[13:]}!") == "<redacted> and <redacted>!"
    assert redact_text(f"sUp3r {long_key[:9]}") == f"sUp3r {long_key[:9]}"  # less than tells it from a word


def test_parts_of_a_path_or_an_address_are_not_hidden(monkeypatch):
    monkeypatch.setattr(known, "_known", {"/srv/somebody/credentials.json", "https://login.example.org/x"})
    assert redact_text("in /srv/somebody/models") == "in /srv/somebody/models"
    assert redact_text("read /srv/somebody/credentials.json") == "read <redacted>"


def test_what_a_config_hides_is_known_and_what_only_refers_to_it_is_not():
    launch = {
        "command": ["serve", "--port", 8000, "--api-key", "literal-1", "{env:KEY}", "--token=$OTHER", "-x"],
        "env": {"HF_TOKEN": "literal-2", "PLAIN": "value", "SHORT_KEY": "EMPTY"},
        "facts": {"repository": "https://me:literal-3@host/x"},
    }
    assert secrets_in(launch) == {"literal-1", "literal-2", "me:literal-3", "literal-3"}
    assert secrets_in("HF_TOKEN='literal 4'; serve --api-key literal-5; x") == {"literal 4", "literal-5"}
    assert "literal" not in str(redact_tree(launch)) and redact_tree(launch)["command"][:3] == ["serve", "--port", 8000]

"""Which requests a server takes: found out with few questions, whatever words it refuses with."""

import pytest

from speedmatrix.dialect import Dialect, DialectError, Refusal, find_out

OPTIONAL = {"ignore_eos": True, "stream_options": {"include_usage": True, "continuous_usage_stats": True}}
VAGUE = "bad request"


class Server:
    """Refuses what it is told to; with words that name it, or without."""

    def __init__(self, refuses=(), vague=False, chat_only=False, text_only=False, limit_field="max_tokens"):
        self.refuses, self.vague, self.chat_only, self.text_only = refuses, vague, chat_only, text_only
        self.limit_field, self.asked = limit_field, 0

    def __call__(self, dialect: Dialect) -> Refusal | None:
        self.asked += 1
        prompt = [1, 2] if dialect.prompt == "ids" else "text"
        body = dialect.body("m", prompt, 2, OPTIONAL)
        if self.chat_only and "messages" not in body:
            return Refusal(404, "Not Found")
        fields = {**body, **body.get("stream_options", {})}
        for name in self.refuses:
            if name in fields:
                return Refusal(400, VAGUE if self.vague else f"Unrecognized request argument supplied: {name}")
        if self.limit_field not in body:
            return Refusal(400, VAGUE if self.vague else f"Use '{self.limit_field}' instead.")
        if self.text_only and body.get("prompt") == [1, 2]:
            return Refusal(422, VAGUE if self.vague else "Input should be a valid string")
        return None


def test_a_server_that_takes_all_is_asked_once():
    server = Server()
    assert find_out(Dialect(), OPTIONAL, server) == Dialect()
    assert server.asked == 1


@pytest.mark.parametrize("vague", [False, True])
@pytest.mark.parametrize(
    ("server", "right"),
    [
        ({"refuses": ["ignore_eos"]}, {"left_out": ("ignore_eos",)}),
        ({"refuses": ["continuous_usage_stats"]}, {"left_out": ("stream_options.continuous_usage_stats",)}),
        ({"limit_field": "max_completion_tokens"}, {"limit_field": "max_completion_tokens"}),
        ({"text_only": True}, {"prompt": "text"}),
        ({"chat_only": True}, {"prompt": "text", "endpoint": "chat"}),
        (
            {"chat_only": True, "limit_field": "max_completion_tokens", "refuses": ["ignore_eos"]},
            {
                "prompt": "text",
                "endpoint": "chat",
                "limit_field": "max_completion_tokens",
                "left_out": ("ignore_eos",),
            },
        ),
        ({"refuses": ["stream_options"]}, {"left_out": ("stream_options",)}),
    ],
)
def test_only_what_the_server_refuses_is_given_up(server, right, vague):
    made = Server(**server, vague=vague)
    found = find_out(Dialect(), OPTIONAL, made)
    assert made(found) is None
    bodies = [dialect.body("m", "p", 2, OPTIONAL) for dialect in (found, Dialect(**right))]
    assert bodies[0] == bodies[1] and found.prompt == right.get("prompt", "ids")
    assert made.asked <= 16


def test_what_is_refused_in_every_form_is_said_with_the_servers_last_words():
    with pytest.raises(DialectError, match="refuses every form of request, at last: the model `x` does not exist"):
        find_out(Dialect(), OPTIONAL, lambda dialect: Refusal(404, "the model `x` does not exist"))


def test_it_survives_its_file():
    dialect = Dialect("chat", "text", "max_completion_tokens", ("ignore_eos", "stream_options.x"), "usage")
    assert Dialect.from_json(dialect.as_json()) == dialect


def test_the_body_of_each_endpoint():
    assert Dialect().body("m", [1, 2], 5, {"ignore_eos": True}) == {
        "model": "m", "prompt": [1, 2], "max_tokens": 5, "stream": True, "ignore_eos": True,
    }  # fmt: skip
    chat = Dialect("chat", "text", "max_completion_tokens", ("stream_options.include_usage",))
    assert chat.body("m", "hi", 5, {"stream_options": {"include_usage": True}}) == {
        "model": "m", "messages": [{"role": "user", "content": "hi"}], "max_completion_tokens": 5, "stream": True,
    }  # fmt: skip

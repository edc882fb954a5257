"""Prompts: exact, unique, reproducible; their text without repetition."""

import hashlib
import re
from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from speedmatrix import corpus, prompts


def by_bytes(text: str, with_special: bool) -> list[int]:
    return ([1] if with_special else []) + [3 + byte for byte in text.encode()]


def by_words(text: str, with_special: bool) -> list[int]:
    """A tokenizer with some 4 characters a token."""
    pieces = re.findall(r"\s?\w{1,5}|\W", text)
    return ([0] if with_special else []) + [
        1 + int(hashlib.md5(piece.encode()).hexdigest()[:6], 16) for piece in pieces
    ]


@pytest.mark.parametrize("tokenize", [by_bytes, by_words])
@pytest.mark.parametrize("length", [1, 2, 17, 100, 1000, 8191, 8192])
def test_every_prompt_is_exactly_as_long_as_asked(tokenize, length):
    made = prompts.build(length, 0, prompts.draw_nonce(), tokenize)
    assert [len(made.request(index)) for index in range(5)] == [length] * 5


def test_the_same_seed_and_nonce_give_the_same_prompt():
    one, two = (prompts.build(500, 7, "0123456789abcdef", by_bytes) for _ in range(2))
    assert one.request(3) == two.request(3)
    assert prompts.sha256(one.request(3)) == prompts.sha256(two.request(3)) != prompts.sha256(one.request(4))


def test_requests_and_attempts_differ_within_their_first_16_tokens():
    starts = [
        tuple(prompts.build(200, 0, nonce, by_words).request(index)[:17])
        for nonce in ("0" * 16, "1" * 16)
        for index in range(50)
    ]
    assert len(set(starts)) == 100


def test_the_body_is_the_seeds_whatever_the_nonce():
    one, two = (prompts.build(2000, 7, nonce, by_bytes) for nonce in ("0" * 16, "1" * 16))
    assert one.request(0)[17:] == two.request(0)[17:]
    assert prompts.build(2000, 8, "0" * 16, by_bytes).request(0)[17:] != one.request(0)[17:]


def test_it_opens_with_the_tokenizers_opening_and_ends_by_asking_for_new_text():
    prompt = prompts.build(2000, 0, "0" * 16, by_bytes).request(0)
    assert prompt[0] == 1
    assert bytes(token - 3 for token in prompt[1:]).decode(errors="replace").endswith(corpus.CONTINUE)


@given(st.integers(0, 5000), st.integers(0, 5000), st.integers(0, 3))
def test_a_text_is_the_beginning_of_a_longer_one(a, b, seed):
    short, long = sorted((a, b))
    assert corpus.text(seed, long)[:short] == corpus.text(seed, short)
    assert len(corpus.text(seed, long)) == long


def test_the_text_is_as_it_was():
    # When this changes, every prompt changes: raise METHOD and say so in CHANGELOG.md.
    digest = hashlib.sha256(corpus.text(0, 10_000).encode()).hexdigest()
    assert digest == "44a81f9b20564a668f006ea933c58f3d3808ea27023accb50b59ffaae1522a39"


def test_the_text_has_no_cycle():
    text = corpus.text(5, 600_000)
    windows = Counter(text[i : i + 150] for i in range(0, len(text) - 150, 7))
    assert max(windows.values()) == 1
    halves = [set(re.split(r"(?<=[.?”])\s+", half)) for half in (text[:300_000], text[300_000:])]
    common = [sentence for sentence in halves[0] & halves[1] if len(sentence) > 40]
    assert len(common) < 0.005 * len(halves[0])


def test_articles_fit_their_nouns():
    text = corpus.text(1, 300_000)
    assert not re.findall(r"\b[Aa] [aeio]\w+", text)
    assert not re.findall(r"\b[Aa]n [bcdfgjklmnpqrstvwxyz]\w+", text)

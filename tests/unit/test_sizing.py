"""Text of a given number of tokens: right with few counts, whatever the template adds and however text tokenizes."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from speedmatrix import prompts, sizing
from tests.truth_server.server import tokens

TEXT = 4.6  # characters a token


def counting(template: int, density: float = TEXT):
    asked: list[int] = []

    def count(characters: int) -> int:
        asked.append(characters)
        return template + int(characters / density)

    return count, asked


@pytest.mark.parametrize("wanted", [100, 1000, 8192, 131_072])
@pytest.mark.parametrize("template", [0, 11, 90])
def test_a_templates_constant_part_is_solved_apart(wanted, template):
    count, asked = counting(template)
    characters = sizing.fit(wanted, count)
    assert 0 <= wanted - (template + int(characters / TEXT)) <= 0.001 * wanted
    assert len([n for n in asked if n > 2000]) <= 3  # only these cost a prefill of the context's size


@given(st.integers(50, 200_000), st.integers(0, 40), st.floats(0.5, 9), st.floats(-0.03, 0.03))
def test_it_ends_near_the_size_also_where_the_text_grows_denser(wanted, template, density, bend):
    def count(characters: int) -> int:
        return template + int(characters / density * (1 + bend * characters / max(2000, wanted * density)))

    assert 0 <= wanted - count(sizing.fit(wanted, count)) <= max(1 / density + 1, 0.001 * wanted)


def test_a_prompt_that_the_template_alone_outgrows_is_refused():
    with pytest.raises(sizing.SizeError, match="of 5 tokens can't be made: the shortest has 11 at this server"):
        sizing.fit(5, counting(11)[0])


def test_a_server_that_counts_the_same_for_every_text_is_refused():
    with pytest.raises(sizing.SizeError, match="no more tokens for a longer prompt"):
        sizing.fit(500, lambda characters: 7)


@pytest.mark.parametrize("length", [12, 16, 30, 64, 100, 127, 128, 300, 1000, 8192])
def test_texts_are_as_long_as_asked_though_each_begins_in_its_own_way(length):
    made = prompts.build_text(length, 3, "0123456789abcdef", lambda text: 11 + len(tokens(text)))
    told = [11 + len(tokens(made.request(index))) for index in range(40)]
    assert max(abs(tokens - length) for tokens in told) <= 0.005 * length
    if length >= 30:  # of a few words some are alike
        assert len({made.request(index)[:80] for index in range(40)}) == 40
    again = prompts.build_text(length, 3, "0123456789abcdef", lambda text: 11 + len(tokens(text)))
    assert again.request(7) == made.request(7)


def test_no_request_begins_as_one_that_was_only_counted():
    counted: list[str] = []
    prompts.build_text(300, 3, "0123456789abcdef", lambda text: counted.append(text) or len(tokens(text)))
    made = prompts.build_text(300, 3, "0123456789abcdef", lambda text: len(tokens(text)))
    assert not {text[:60] for text in counted} & {made.request(index)[:60] for index in range(100)}


def test_a_shared_prompt_is_the_same_for_all():
    one = prompts.build(50, 0, "0123456789abcdef", lambda text, special: list(text.encode()))
    shared = prompts.Shared(one)
    assert shared.request(0) == shared.request(9) == one.request(0) and shared.length == 50

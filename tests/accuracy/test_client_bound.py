"""The client knows when it is the bottleneck: never silently wrong."""

import time

import pytest

from bench import client
from speedmatrix import sse
from speedmatrix.measure import Failed

TRIES = 3  # a source that was late kept no truth: measure again
LATE_MS = 4.0


@pytest.fixture(scope="module")
def url():
    with client.source() as served:
        yield served


def measured(url: str, lanes: int, rate: float) -> client.Row:
    """The row of a source that kept its schedule."""
    for _ in range(TRIES):
        row = client.ours(url, lanes, rate, duration_s=2)
        if row.late_ms <= LATE_MS:
            break
    return row


def test_a_client_that_keeps_up_is_right_and_not_flagged(url):
    row = measured(url, 32, 12_800)
    assert row.tok_s == pytest.approx(12_800, rel=0.01) and abs(row.itl_error) < 0.01
    assert abs(row.ttft_error_ms) < 5 and not row.client_bound


@pytest.mark.parametrize("slower_us", [70, 200])
def test_a_client_slowed_down_says_so(url, monkeypatch, slower_us):
    parse = sse.parse

    def slow(data):
        end = time.perf_counter() + slower_us / 1e6  # of 12,800 a second: 0.9 s of work, and reading them beside
        while time.perf_counter() < end:
            pass
        return parse(data)

    monkeypatch.setattr(sse, "parse", slow)
    try:
        assert client.ours(url, 8, 12_800, duration_s=2).client_bound
    except Failed as failed:  # hopelessly behind is no figure at all
        assert "the measuring process was stopped or late by" in str(failed)


def test_a_client_that_is_held_up_again_and_again_says_so(url, monkeypatch):
    parse, last = sse.parse, [time.perf_counter()]

    def held_up(data):
        if time.perf_counter() - last[0] > 0.1:
            time.sleep(0.04)  # takes no CPU: only the clock's lateness tells
            last[0] = time.perf_counter()
        return parse(data)

    monkeypatch.setattr(sse, "parse", held_up)
    assert client.ours(url, 8, 2_000, duration_s=2).client_bound


def test_a_true_100000_tokens_a_second_is_right_or_flagged(url):
    row = client.ours(url, 128, 100_000, duration_s=2)
    assert row.client_bound or row.tok_s == pytest.approx(100_000, rel=0.02)

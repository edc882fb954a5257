"""Arrivals survive their file: figures can be computed again from it."""

import io
import zipfile

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from speedmatrix import arrivals, metrics
from speedmatrix.arrivals import Run, Stream

streams = st.lists(
    st.builds(
        Stream,
        lane=st.integers(0, 300),
        index=st.integers(0, 1000),
        started_ns=st.integers(0, 2**62),
        finish=st.sampled_from([None, "length", "stop"]),
        prompt_tokens=st.none() | st.integers(1, 10**6),
        cached_tokens=st.none() | st.integers(0, 10**6),
        prompt_ms=st.none() | st.floats(0, 1e6),
        source=st.sampled_from(["usage", "reconciled", "events"]),
    ),
    max_size=5,
)


@given(streams, st.lists(st.integers(0, 2**62), max_size=5), st.none() | st.integers(1, 9))
def test_what_is_saved_is_what_is_loaded(tmp_path_factory, kept, times, ran):
    path = tmp_path_factory.mktemp("arrivals") / "a.npz"
    for stream in kept:
        stream.t_ns, stream.tokens = sorted(times), [3] * len(times)
    run = Run(kept, 1, 2, times, 7, 0.25, ran, [{"t_s": 1.5, "generated": 8.0}], 4096)
    arrivals.save(run, path)
    assert arrivals.load(path) == run
    assert [child.name for child in path.parent.iterdir()] == ["a.npz"]


def test_a_file_of_a_version_that_kept_less_says_so(tmp_path):
    path = tmp_path / "a.npz"
    arrivals.save(Run([Stream(0, 0, 5, [9], [1])], 1, 2, [3], readings=[]), path)
    with np.load(path) as kept:
        less = {name: kept[name] for name in kept.files if name not in ("about", "lags_ns", "allow_pickle")}
    np.savez_compressed(path, **less)
    assert arrivals.load(path) == Run([Stream(0, 0, 5, [9], [1])], 1, 2)


def archive(**files: bytes) -> bytes:
    held = io.BytesIO()
    with zipfile.ZipFile(held, "w", zipfile.ZIP_DEFLATED) as file:
        for name, content in files.items():
            file.writestr(name, content)
    return held.getvalue()


def test_what_is_no_arrivals_file_is_one_error(tmp_path, monkeypatch):
    path = tmp_path / "a.npz"
    arrivals.save(Run([Stream(0, 0, 5, [9], [1])], 1, 2), path)
    whole = path.read_bytes()
    damaged = bytearray(whole)
    damaged[len(whole) // 2] ^= 0xFF
    objects = io.BytesIO()
    np.savez(objects, stream_lane=np.array([{}], dtype=object))
    for content in (b"", b"{}", whole[:100], bytes(damaged), archive(a=b"b"), objects.getvalue()):
        path.write_bytes(content)
        with pytest.raises(ValueError):
            arrivals.load(path)
    monkeypatch.setattr(arrivals, "_MOST_BYTES", 1000)
    path.write_bytes(archive(stream_lane=b"0" * 2000))
    with pytest.raises(ValueError, match="unpacks to more than"):
        arrivals.load(path)


def test_figures_from_the_file_are_the_cells(tmp_path):
    lanes = [Stream(lane, lane, 0, list(range(0, 10**9, 10**7)), [1] * 100, source="usage") for lane in range(3)]
    run = Run(lanes, 2 * 10**8, 7 * 10**8)
    arrivals.save(run, tmp_path / "a.npz")
    assert metrics.decode(arrivals.load(tmp_path / "a.npz")) == metrics.decode(run)


def test_a_disk_that_is_full_leaves_nothing_behind_and_what_was_there_as_it_was(tmp_path, monkeypatch):
    path = tmp_path / "a.npz"
    arrivals.save(Run([Stream(0, 0, 5, [9], [1])], 1, 2), path)
    monkeypatch.setattr(arrivals.os, "fsync", lambda _: (_ for _ in ()).throw(OSError("disk full")))
    with pytest.raises(OSError, match="disk full"):
        arrivals.save(Run([], 3, 4), path)
    assert arrivals.load(path).t0_ns == 1
    assert [child.name for child in tmp_path.iterdir()] == ["a.npz"]

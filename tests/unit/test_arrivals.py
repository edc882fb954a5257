"""Arrivals survive their file: figures can be computed again from it."""

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


@given(streams, st.lists(st.integers(0, 2**62), max_size=5))
def test_what_is_saved_is_what_is_loaded(tmp_path_factory, kept, times):
    path = tmp_path_factory.mktemp("arrivals") / "a.npz"
    for stream in kept:
        stream.t_ns, stream.tokens = sorted(times), [3] * len(times)
    arrivals.save(Run(kept, 1, 2), path)
    assert arrivals.load(path) == Run(kept, 1, 2)
    assert [child.name for child in path.parent.iterdir()] == ["a.npz"]


def test_figures_from_the_file_are_the_cells(tmp_path):
    lanes = [Stream(lane, lane, 0, list(range(0, 10**9, 10**7)), [1] * 100, source="usage") for lane in range(3)]
    run = Run(lanes, 2 * 10**8, 7 * 10**8)
    arrivals.save(run, tmp_path / "a.npz")
    assert metrics.decode(arrivals.load(tmp_path / "a.npz")) == metrics.decode(run)

"""Trace columns: what a round keeps, and what is refused."""

from __future__ import annotations

import numpy as np
import pytest

from tests.unit.traces import make_trace


def test_accepted_counts_the_leading_path_tokens_inside_the_size() -> None:
    trace = make_trace(ranks=[[[0, 3, 1, 9], [0, 1, 2, 3]]])
    rows = np.zeros(6, np.int64)
    depth = np.array([0, 0, 0, 0, 1, 1])
    size = np.array([0, 1, 3, 4, 3, 99])
    # At level 0 size 3 holds the first and the third token, but the path breaks at the second.
    assert trace.accepted(rows, depth, size).tolist() == [0, 1, 1, 3, 3, 4]


def test_a_column_of_another_shape_or_type_is_refused() -> None:
    trace = make_trace(ranks=[[[0, 1], [0, 1]]])
    values = {name: getattr(trace, name) for name in trace.shape.columns()}
    rest = {
        name: getattr(trace, name) for name in ("shape", "sequences", "context_limit", "source")
    }
    with pytest.raises(ValueError, match=r"^rank: int64"):
        type(trace)(**rest, **{**values, "rank": trace.rank.astype(np.int64)})
    with pytest.raises(ValueError, match=r"^entropy: .*expected float32 \[1, 2\]"):
        type(trace)(**rest, **{**values, "entropy": trace.entropy[:, :1]})


def test_select_keeps_rows_with_their_sequences() -> None:
    trace = make_trace(ranks=[[[row, 1], [0, 1]] for row in range(5)], lengths=(3, 1, 4))
    assert trace.first.tolist() == [0, 2, 2, 5]
    part = trace.select(np.array([2, 0]))
    assert part.first.tolist() == [0, 3, 5]
    assert part.rank[:, 0, 0].tolist() == [2, 3, 4, 0, 1]
    assert part.sequence.tolist() == [0, 0, 0, 1, 1]
    assert [len(entry.tokens) for entry in part.sequences] == [4, 3]


def test_joined_traces_keep_their_own_sequences() -> None:
    first = make_trace(ranks=[[[row, 1], [0, 1]] for row in range(2)], lengths=(3,))
    second = make_trace(ranks=[[[row, 1], [0, 1]] for row in range(5, 8)], lengths=(1, 4))
    both = first.joined(second)
    assert both.rank[:, 0, 0].tolist() == [0, 1, 5, 6, 7]
    assert both.sequence.tolist() == [0, 0, 2, 2, 2]
    assert both.first.tolist() == [0, 2, 2, 5]
    again = both.select(np.array([1, 2]))
    np.testing.assert_array_equal(again.rank, second.rank)
    assert again.sequences == second.sequences
    with pytest.raises(ValueError, match=r"^shape: "):
        first.joined(make_trace(ranks=[[[0], [0]]]))

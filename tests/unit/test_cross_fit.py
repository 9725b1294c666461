"""What is learned from a trace's own prompts never saw the prompts that it is judged on."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from draftgym.console import progress
from draftgym.features import FeatureLayout
from draftgym.state import MeasuredCosts
from draftgym.theory.bounds import fold_of
from draftgym.traces.synthetic import SyntheticTimes, synthetic_trace
from draftgym.traces.trace import Trace
from policies import cross_fit
from policies.all_action import AllActionConfig
from policies.cross_fit import NETWORKS, TABLE, cross_fitted_policies

LAYOUT = FeatureLayout(max_depth=2, beam_width=1, history=2, size_grid=(0, 1, 2))
CONFIG = AllActionConfig(steps=2, requests=8, hidden=(4,))


def learned(trace: Trace, more: Trace | None = None) -> dict[str, Any]:
    with progress("learn", 10) as bar:
        return cross_fitted_policies(
            trace, SyntheticTimes(), LAYOUT, MeasuredCosts(), CONFIG, more=more, bar=bar
        )


def test_judged_prompts_are_never_learned_from(monkeypatch: pytest.MonkeyPatch) -> None:
    trace = synthetic_trace(LAYOUT, sequences=24, tokens=8)
    more = synthetic_trace(LAYOUT, sequences=3, tokens=8, seed=1)
    place = {id(entry): float(index) for index, entry in enumerate(trace.sequences)}
    seen: list[set[int]] = []

    def remember(known: Trace, *_: Any, **__: Any) -> Any:
        seen.append(set(map(id, known.sequences)))
        return SimpleNamespace(policy=None)

    def judged(theirs: Trace, *_: Any) -> Any:
        assert not set(map(id, theirs.sequences)) & seen[-1]
        assert set(map(id, more.sequences)) <= seen[-1]
        return np.array([place[id(entry)] for entry in theirs.sequences])

    for name in ("pretrain", "learn_table"):
        monkeypatch.setattr(cross_fit, name, remember)
    for name in ("judge", "judge_rounds"):
        monkeypatch.setattr(cross_fit, name, judged)
    for name in ("ExportedBatch", "TableChoice"):
        monkeypatch.setattr(cross_fit, name, lambda _: None)
    for seconds in learned(trace, more).values():
        assert seconds.tolist() == list(place.values())  # each judged once, in its place
    assert len(seen) == 2 * len(np.unique(fold_of(trace)))


def test_both_kinds_are_learned() -> None:
    found = learned(synthetic_trace(LAYOUT, sequences=30, tokens=12))
    assert set(found) == {NETWORKS, TABLE}
    assert all((seconds > 0).all() for seconds in found.values())


def test_too_few_folds_are_refused() -> None:
    with pytest.raises(ValueError, match="three or more"):
        learned(synthetic_trace(LAYOUT, sequences=2, tokens=8))

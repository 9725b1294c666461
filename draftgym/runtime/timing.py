"""What one decision of a controller costs, so that training can charge it."""

from __future__ import annotations

import statistics
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from draftgym.clock import Clock
from draftgym.features import FeatureLayout
from draftgym.state import Confidence, Controller, History, MeasuredCosts, RoundState


@dataclass(frozen=True, slots=True)
class DecisionSeconds:
    """Measured seconds of one decision of each kind, features included.

    Attributes:
        depth: One "draft again?" decision.
        size: One choice of the verification size.
    """

    depth: float = 0.0
    size: float = 0.0


def decision_seconds(
    controller: Controller, layout: FeatureLayout, clock: Clock, repeats: int = 300
) -> DecisionSeconds:
    """Time a controller's decisions on a representative state.

    Reading the confidence from the device is not in it: the session measures that itself.

    Args:
        controller: Whose decisions are timed.
        layout: Shapes the state: a full history, and a tree in mid-draft.
        clock: Source of time.
        repeats: Decisions of each kind; the median is taken.

    Returns:
        Median seconds; zeros for a free controller, which is never charged.
    """
    if controller.free:
        return DecisionSeconds()
    # Beyond its deepest draft a controller answers without being asked.
    deepest = getattr(controller, "deepest", layout.max_depth)
    state = representative_state(layout, max(min(layout.max_depth // 2, deepest - 1), 0))
    return DecisionSeconds(
        depth=_median(lambda: controller.draft_again(state), clock, repeats),
        size=_median(lambda: controller.choose_size(state), clock, repeats),
    )


def representative_state(layout: FeatureLayout, depth: int | None = None) -> RoundState:
    """A round after so many passes and a full history, with a tree of a typical size.

    Args:
        layout: Its shapes.
        depth: Draft passes made; half of the deepest draft when None.
    """
    depth = layout.max_depth // 2 if depth is None else depth
    history = History(layout.history)
    for index in range(layout.history):
        history.append(index % 3, min(2, layout.max_depth), min(4, layout.max_size))
    nodes = layout.beam_width + max(depth - 1, 0) * layout.beam_width**2
    scores = (-np.linspace(0.3, 6.0, nodes)).tolist()
    confidence = Confidence(scores[: layout.beam_width], 1.5, 0.4, scores)
    return RoundState(
        depth=depth,
        nodes=nodes,
        max_depth=layout.max_depth,
        max_size=layout.max_size,
        context_tokens=300,
        context_limit=2048,
        remaining_tokens=100,
        max_new_tokens=128,
        uningested_tokens=0,
        history=history,
        costs=MeasuredCosts(0.05, 0.02),
        read_confidence=lambda law=True: confidence,
    )


def _median(decide: Callable[[], object], clock: Clock, repeats: int) -> float:
    for _ in range(min(repeats, 20)):
        decide()
    seconds = []
    for _ in range(repeats):
        start = clock.boundary()
        decide()
        clock.note("decide")
        seconds.append(clock.boundary() - start)
    return statistics.median(seconds)

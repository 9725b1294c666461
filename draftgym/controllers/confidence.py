"""Transformers' confidence threshold: stop at an unlikely token, refit on what was accepted."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from draftgym.controllers.base import Fitted, Rule, Settings, Space
from draftgym.controllers.stopping import (
    BestPath,
    StoppingController,
    combinations,
    drafted_and_kept,
)
from draftgym.state import Controller, RoundRecord, RoundState

THRESHOLDS = (0.4, 0.6, 0.8)
"""0.4 is Transformers' default `assistant_confidence_threshold`."""

LEAST_SAMPLES = 6  # "more than five", and both kinds among them


def best_threshold(probabilities: Sequence[float], matches: Sequence[int]) -> float:
    """The threshold of least cost on the receiver operating characteristic.

    Of tokens at least as likely as the threshold, those not accepted are false positives; accepted
    ones below it are false negatives, three times as dear: cost = FPR + 3 FNR. Of equal costs the
    highest threshold wins.

    Args:
        probabilities: Of drafted tokens.
        matches: 1 where the token was accepted, else 0; both occur.
    """
    order = np.argsort(-np.asarray(probabilities), kind="stable")
    scores, hits = np.asarray(probabilities)[order], np.asarray(matches)[order]
    ends = np.append(np.flatnonzero(np.diff(scores)), len(scores) - 1)  # last of equal scores
    true = np.cumsum(hits)[ends]
    false = ends + 1 - true
    cost = false / false[-1] + 3.0 * (1.0 - true / true[-1])
    return float(scores[ends[cost.argmin()]])


class ConfidenceController(StoppingController):
    """Stops after a token less likely than the threshold.

    Args:
        size: Drafted tokens verified.
        look_up: See `StoppingController`.
        threshold: At the start of every request.
        refit: Whether each round refits it to the request's tokens so far.
    """

    def __init__(self, size: int, look_up: float, threshold: float, refit: bool) -> None:
        super().__init__(size, look_up)
        self._first, self._refit = threshold, refit
        self._path = BestPath()
        self.reset()

    def reset(self) -> None:
        self.threshold = self._first
        self._probabilities: list[float] = []
        self._matches: list[int] = []

    def stop(self, state: RoundState) -> bool:
        return self._path.newest(state.depth, state.read_confidence()) < self.threshold

    def observe(self, record: RoundRecord) -> None:
        drafted = self._path.take()
        if not self._refit:
            return
        kept = drafted_and_kept(record)[1]
        self._matches += ([1] * kept + [0])[: len(drafted)]
        self._probabilities += drafted[: kept + 1]  # what follows a rejection was never judged
        if len(self._probabilities) >= LEAST_SAMPLES and {0, 1} <= set(self._matches):
            self.threshold = best_threshold(self._probabilities, self._matches)


class ConfidenceRule(Rule):
    """`assistant_confidence_threshold` of Transformers' assisted generation, with its refit.

    As `generation/candidate_generator.py` and `ConfidenceCriteria` of Transformers 5 do, without
    scikit-learn. Adapted: the drafted token is the best frontier node; a request takes the place of
    a call of `generate`; a token that the verified nodes left out counts as rejected; a pass that
    no decision follows (the deepest allowed) is not looked at.
    """

    name = "confidence"
    title = "Transformers' confidence threshold"
    short = "confidence threshold"
    source = "Transformers 5, assistant_confidence_threshold"

    def grid(self, space: Space) -> Sequence[Settings]:
        return combinations(space, refit=(0, 1), threshold=THRESHOLDS)

    def controller(self, space: Space, settings: Settings, fitted: Fitted, seed: int) -> Controller:
        return ConfidenceController.tuned(
            settings, threshold=settings["threshold"], refit=bool(settings["refit"])
        )

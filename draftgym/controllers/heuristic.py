"""Transformers' schedule: longer after a full acceptance, shorter after any other round."""

from __future__ import annotations

from collections.abc import Sequence

from draftgym.controllers.base import Fitted, Rule, Settings, Space
from draftgym.controllers.stopping import StoppingController, combinations, drafted_and_kept
from draftgym.state import Controller, RoundRecord, RoundState

STARTS = (1, 5, 20)
"""20 is Transformers' default `num_assistant_tokens`."""


class HeuristicController(StoppingController):
    """Two more passes after a round that kept a token of every pass, else one less, at least 1.

    Args:
        size: Drafted tokens verified.
        look_up: See `StoppingController`.
        start: Passes of the first round.
        carry: Whether the length goes on over requests.
    """

    def __init__(self, size: int, look_up: float, start: int, carry: bool) -> None:
        super().__init__(size, look_up)
        self.free = not self.looks_up
        self.length = self._start = start
        self._carry = carry

    def reset(self) -> None:
        if not self._carry:
            self.length = self._start

    def stop(self, state: RoundState) -> bool:
        return state.depth >= self.length

    def observe(self, record: RoundRecord) -> None:
        drafted, kept = drafted_and_kept(record)
        if drafted:
            self.length = self.length + 2 if kept == drafted else max(1, self.length - 1)


class HeuristicRule(Rule):
    """`num_assistant_tokens_schedule` of Transformers' assisted generation.

    "heuristic" carries the length over to the next call, "heuristic_transient" starts anew
    (`generation/candidate_generator.py`, Transformers 5). Adapted: lengths are passes, and what a
    pass drafted counts as accepted as `drafted_and_kept` says.
    """

    name = "heuristic"
    title = "Transformers' length schedule"
    short = "length schedule"
    source = "Transformers 5, num_assistant_tokens_schedule"

    def grid(self, space: Space) -> Sequence[Settings]:
        return combinations(space, carry=(0, 1), start=STARTS)

    def controller(self, space: Space, settings: Settings, fitted: Fitted, seed: int) -> Controller:
        return HeuristicController.tuned(
            settings, start=int(settings["start"]), carry=bool(settings["carry"])
        )

"""Pairs are compared prompt by prompt, and only a sure gain counts."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, cast

import pytest

from draftgym.decoder.controllers import FixedController, PlainController
from draftgym.state import Controller, RoundRecord
from policies.config import ValidationConfig
from policies.validation import MARGIN, Gain, validate
from policies.workbench import Workbench
from tests.unit.records import timed_round

NEW, KEPT = FixedController(1, 2), FixedController(2, 4)
CONFIG = ValidationConfig(new_tokens=8, plain_new_tokens=4)


@dataclass
class Bench:
    """Decodes one round per prompt, whose seconds by prompt are given."""

    new: Sequence[float]
    kept: Sequence[float]
    order: list[str] = field(default_factory=list)

    @property
    def validation_prompts(self) -> int:
        return len(self.new)

    def decode(self, prompt: int, controller: Controller, max_new_tokens: int) -> list[RoundRecord]:
        if isinstance(controller, PlainController):
            self.order.append("plain")
            return [timed_round(1.0, 1)]
        self.order.append("new" if controller is NEW else "kept")
        seconds = (self.new if controller is NEW else self.kept)[prompt]
        return [timed_round(seconds, 2)]


def gain(new: Sequence[float], kept: Sequence[float]) -> Gain:
    found = validate(cast(Workbench, Bench(new, kept)), CONFIG, NEW, KEPT).gain
    assert found is not None
    return found


def test_a_gain_is_the_mean_logarithm_of_the_ratio_with_its_scatter() -> None:
    found = gain([1.0, 1.0], [math.e, math.e**3])
    assert found.log_speedup == pytest.approx(2.0)
    assert found.standard_error == pytest.approx(1.0)
    assert not found.certain  # exactly at the margin
    assert gain([1.0, 1.0], [math.e, math.e**2.9]).certain


def test_prompts_that_disagree_make_no_gain() -> None:
    assert not gain([1.0, 2.0, 1.0, 2.0], [1.2, 1.9, 1.3, 2.1]).certain
    assert not gain([1.0, 1.0, 1.0], [0.9, 0.9, 0.9]).certain
    assert not gain([1.0], [2.0]).certain  # one prompt says nothing of its scatter
    assert MARGIN >= 1


def test_arms_take_turns_and_the_kept_pair_is_optional() -> None:
    bench = Bench([1.0, 1.0], [1.0, 1.0])
    found = validate(cast(Workbench, bench), CONFIG, NEW, KEPT)
    assert bench.order == ["new", "plain", "kept", "kept", "plain", "new"]
    assert found.metrics()["over_kept"] == 1.0
    alone: dict[str, Any] = validate(cast(Workbench, bench), CONFIG, NEW).metrics()
    assert "over_kept" not in alone and alone["speedup"] == 2.0

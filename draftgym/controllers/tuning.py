"""Tunes rules on a trace: every setting of a grid on the same prompts, by mean seconds."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from draftgym.controllers.base import GRID_LIMIT, Fitted, Rule, Settings, Space
from draftgym.controllers.registry import rule_named
from draftgym.costs.times import Times
from draftgym.state import Controller
from draftgym.storage import plain
from draftgym.traces.scripted import ScriptedTrace
from draftgym.traces.trace import Trace


@dataclass(frozen=True, slots=True)
class Trial:
    """One setting and what it took.

    Attributes:
        settings: Of the rule.
        seconds_per_token: Σ seconds / Σ tokens on the validation trace; decisions are not charged.
    """

    settings: Settings
    seconds_per_token: float


@dataclass(frozen=True, slots=True)
class TunedRule:
    """A rule with what was chosen and learned for one pair on one machine.

    Attributes:
        name: Of the rule.
        fitted: What it learned from traces.
        trials: Every setting tried, best first.
        prompts: Validation prompts that they were tried on.
    """

    name: str
    fitted: Fitted
    trials: tuple[Trial, ...]
    prompts: int

    @property
    def settings(self) -> Settings:
        """The best."""
        return self.trials[0].settings

    def controller(self, space: Space, seed: int = 0) -> Controller:
        """A fresh controller of the best setting."""
        return rule_named(self.name).controller(space, self.settings, self.fitted, seed)

    def as_data(self) -> dict[str, Any]:
        """Plain data."""
        return {
            "name": self.name,
            "fitted": self.fitted,
            "trials": [
                {"settings": dict(t.settings), "seconds_per_token": t.seconds_per_token}
                for t in self.trials
            ],
            "prompts": self.prompts,
        }

    @classmethod
    def from_data(cls, data: dict[str, Any]) -> TunedRule:
        """Read back `as_data`.

        Raises:
            KeyError, TypeError, ValueError: If it is not that.
        """
        rule_named(data["name"])
        trials = tuple(Trial(t["settings"], float(t["seconds_per_token"])) for t in data["trials"])
        if not trials:
            raise ValueError("trials: none")
        return cls(data["name"], data["fitted"], trials, int(data["prompts"]))


def tune(
    rule: Rule,
    fitted: Fitted,
    script: ScriptedTrace,
    space: Space,
    *,
    seed: int = 0,
    advance: Callable[[], None] | None = None,
) -> TunedRule:
    """Try every setting of a rule.

    Args:
        rule: Whose grid it is.
        fitted: From `rule.fit`, on other prompts.
        script: Of validation prompts.
        space: What rounds allow and cost.
        seed: Of controllers that draw.
        advance: Called after every setting.

    Raises:
        ValueError: If the grid is empty or larger than that of other rules may be.
    """
    grid = list(rule.grid(space))
    if not 1 <= len(grid) <= GRID_LIMIT:
        raise ValueError(f"{rule.name}: {len(grid)} settings, accepted: 1 to {GRID_LIMIT}")
    trials = []
    for settings in grid:
        seconds = script.seconds(rule.controller(space, settings, fitted, seed))
        trials.append(Trial(settings, float(seconds.sum() / script.tokens.sum())))
        if advance is not None:
            advance()
    trials.sort(key=lambda trial: trial.seconds_per_token)
    return TunedRule(rule.name, fitted, tuple(trials), int(np.count_nonzero(script.tokens)))


@dataclass(frozen=True)
class Tuning:
    """Rules tuned on traces, for one pair on one machine.

    Attributes:
        space: What rounds allow and cost.
        rules: Tuned, in the order asked for.
        fitted_on: Requests of the policy trace, without their languages.
        tuned_on: Those of the validation trace.
        plain_seconds_per_token: Of plain decoding on the validation trace.
        origin: Paths and hashes of the traces and the latency table, plain data.
        details: What a report says about them besides (`bounds`, `reliability`), plain data.
    """

    space: Space
    rules: tuple[TunedRule, ...]
    fitted_on: tuple[str, ...]
    tuned_on: tuple[str, ...]
    plain_seconds_per_token: float
    origin: Mapping[str, Any]
    details: Mapping[str, Any]

    @property
    def seen(self) -> dict[str, tuple[str, ...]]:
        """Requests that rules have learned from, by the trace that holds them."""
        return {
            self.origin["policy_trace"]: self.fitted_on,
            self.origin["validation_trace"]: self.tuned_on,
        }

    def of(self, name: str) -> TunedRule:
        """One of the rules."""
        return next(rule for rule in self.rules if rule.name == name)


def tune_all(
    names: Sequence[str],
    trace: Trace,
    script: ScriptedTrace,
    times: Times,
    space: Space,
    *,
    seed: int = 0,
    advance: Callable[[], None] | None = None,
) -> tuple[TunedRule, ...]:
    """Fit and tune rules.

    Args:
        names: Of the rules.
        trace: Of the policy split, to fit on.
        script: Of validation prompts, to tune on.
        times: Mean seconds of work.
        space: What rounds allow and cost.
        seed: Of fits and of controllers that draw.
        advance: Called after every setting.
    """
    tuned = []
    for name in names:
        rule = rule_named(name)
        fitted = plain(rule.fit(trace, times, space, seed))
        tuned.append(tune(rule, fitted, script, space, seed=seed, advance=advance))
    return tuple(tuned)

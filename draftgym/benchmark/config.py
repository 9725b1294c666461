"""Configuration of the evaluator."""

from __future__ import annotations

from typing import Literal, Self

from pydantic import BaseModel, ConfigDict, Field, model_validator

from draftgym.benchmark.statistics import RESAMPLES
from draftgym.controllers.registry import rule_named
from draftgym.decoder.config import DrafterConfig, PairConfig
from draftgym.prompts import PromptSource
from draftgym.traces.config import why_untraced


class Cell(BaseModel):
    """A fixed setting: so many draft passes, so many drafted tokens verified."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    depth: int = Field(ge=0, le=32, description="Draft passes per round (D).")
    size: int = Field(ge=1, le=256, description="Drafted tokens verified per round (V).")

    @property
    def name(self) -> str:
        """As reports write it."""
        return f"fixed D={self.depth} V={self.size}"


def largest_size(drafter: DrafterConfig, depth: int) -> int:
    """Most drafted tokens that a round of `depth` passes can offer for verification.

    A tree grows `W` nodes in the first pass and `W²` in each later one; n-gram proposals
    take no pass, nor do rejected tokens proposed again.
    """
    width = drafter.beam_width
    grown = width + (depth - 1) * width**2 if depth and drafter.kind != "ngram" else 0
    free = drafter.ngram_cap_tokens if drafter.kind in ("ngram", "hybrid") else 0
    free += sum(max(0, depth - 1 - trimmed) for trimmed in range(len(drafter.carried_chains)))
    return min(grown + free, drafter.max_size)


def depths(drafter: DrafterConfig) -> range:
    """Draft depths that make sense for a drafter: 0 only beside free proposals."""
    if drafter.kind == "none":
        raise ValueError("drafter kind 'none' drafts nothing; accepted: hybrid, eagle3, ngram")
    if drafter.kind == "ngram":
        return range(1)
    return range(0 if drafter.kind == "hybrid" else 1, drafter.max_depth + 1)


def check_comparable(pair: PairConfig) -> None:
    """Refuse a law under which the output may differ from plain decoding for good reason.

    Raises:
        ValueError: For rejection, whose text depends on what was drafted.
    """
    if pair.sampling.rule_name not in ("greedy", "coupled"):
        raise ValueError(
            "pair.sampling.rule: every output is compared with plain decoding, which "
            "'rejection' keeps in law only; accepted: greedy, coupled"
        )


class PhaseConfig(BaseModel):
    """How much to measure on one split."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    prompts: int = Field(ge=2, le=10_000, description="Prompts, balanced over domains.")
    max_new_tokens: int = Field(64, ge=2, le=4096, description="Budget per prompt.")
    repeats: int = Field(1, ge=1, le=100, description="Measurements per prompt and method.")


class ValidationConfig(PhaseConfig):
    """How fixed cells are tuned: all on a few prompts, the better ones on the rest."""

    race_prompts: int | None = Field(
        None,
        ge=1,
        description="Prompts after which only the best cells go on; absent: all go on.",
    )
    race_keep: int = Field(6, ge=1, description="Cells that go on.")


Peer = Literal["generate", "prompt_lookup", "assistant"]
"""Transformers' own decoding: plain, with prompt look-up, with an assistant cut from the target."""

NEWEST = "newest"
"""In place of a policy's path: that of the newest run that fits, or one learned on the spot."""


class TunedOn(BaseModel):
    """What rules are fitted and tuned on; absent paths: the newest fitting one, or a new one."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    policy_trace: str | None = Field(None, description="Folder; rules are fitted on it.")
    validation_trace: str | None = Field(None, description="Folder; settings are tuned on it.")
    test_trace: str | None = Field(
        None,
        description="Folder; bounds are told of it. Absent: the newest, else of the validation.",
    )
    table: str | None = Field(None, description="Latency table.")


class SeedConfig(BaseModel):
    """Every random choice of an evaluation."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    prompts: int = Field(0, ge=0, description="Which prompts of the split.")
    order: int = Field(0, ge=0, description="Order of prompts and of methods in a block.")
    bootstrap: int = Field(0, ge=0, description="Draws of the intervals.")


class EvaluateConfig(BaseModel):
    """Plain decoding, tuned fixed cells, published rules, policies and peers, on test prompts.

    Fixed cells are tuned by racing them live on validation prompts (`cells`), or like every other
    rule on traces of validation prompts (`rules`).
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    kind: Literal["evaluate"] = Field("evaluate", description="What this file configures.")
    pair: PairConfig = PairConfig()
    prompts: tuple[PromptSource, ...] = Field((PromptSource(),), min_length=1)
    cells: tuple[Cell, ...] = Field((), description="Fixed settings to race on validation prompts.")
    rules: tuple[str, ...] = Field(
        (), description="Rules tuned on traces, `fixed` among them; in place of `cells`."
    )
    tuned_on: TunedOn = TunedOn()
    peers: tuple[Peer, ...] = Field((), description="Transformers' own decoding, beside ours.")
    control: bool = Field(
        False, description="Plain decoding once more: what differs there is the judge's own error."
    )
    assistant_layers: int = Field(
        4, ge=1, le=1000, description="First layers of the target that the assistant keeps."
    )
    finalists: int = Field(3, ge=1, le=20, description="Best fixed cells also tested.")
    validation: ValidationConfig = ValidationConfig(prompts=12)
    test: PhaseConfig = PhaseConfig(prompts=24, repeats=2)
    warm_up_tokens: int = Field(16, ge=2, le=4096, description="Discarded run per method.")
    cost_rounds: int = Field(12, ge=2, le=1000, description="Rounds per setting for the costs.")
    policy: str | None = Field(
        None, description="Folder of a policy, or a table's JSON file; `newest`: of a run's."
    )
    beside: tuple[str, ...] = Field(
        (), max_length=20, description="Further policies or tables, measured beside it."
    )
    labels: dict[str, str] = Field(
        default_factory=dict, description="Names in reports, by path, in place of the paths."
    )
    learning_to_draft: bool = Field(
        False, description="Learning to Draft as published, learned from the policy trace."
    )
    seeds: SeedConfig = SeedConfig()
    bootstrap_resamples: int = Field(RESAMPLES, ge=100, le=1_000_000)
    output: str = Field("runs/evaluate", min_length=1, description="Folder of the report.")

    @model_validator(mode="after")
    def _plan_fits_the_drafter(self) -> Self:
        if len({self.policy, *self.beside}) != 1 + len(self.beside):
            raise ValueError("beside: each policy may be listed once, and not as `policy` too")
        for name in ("cells", "rules", "peers"):
            if len(set(getattr(self, name))) != len(getattr(self, name)):
                raise ValueError(f"{name}: each may be listed once")
        for rule in self.rules:
            try:
                rule_named(rule)
            except ValueError as error:
                raise ValueError(f"rules: {error}") from error
        if bool(self.cells) == ("fixed" in self.rules):
            raise ValueError("cells, rules: give either cells to race or the rule `fixed`")
        problem = why_untraced(self.pair.drafter)
        if self.rules and problem is not None:
            raise ValueError(
                f"rules: tuned on traces; pair.drafter.{problem}; or give `cells` alone"
            )
        if self.peers and self.pair.sampling.rule_name != "greedy":
            raise ValueError("peers: Transformers has other random numbers; only greedy compares")
        check_comparable(self.pair)
        drafter = self.pair.drafter
        accepted = depths(drafter)
        if self.validation.race_prompts and self.validation.race_keep < self.finalists:
            raise ValueError(
                f"validation.race_keep: {self.validation.race_keep} cells cannot give "
                f"{self.finalists} finalists; accepted: {self.finalists} or more"
            )
        for cell in self.cells:
            if cell.depth not in accepted:
                raise ValueError(
                    f"cells: {cell.name}: {drafter.kind} accepts depth "
                    f"{accepted[0]} to {accepted[-1]}"
                )
            limit = largest_size(drafter, cell.depth)
            if cell.size > limit:
                raise ValueError(
                    f"cells: {cell.name}: depth {cell.depth} offers at most {limit} tokens to "
                    f"verify; accepted sizes: 1 to {limit}"
                )
        return self

    def named(self, path: str) -> str:
        """What reports call a policy that is measured beside the one."""
        return self.labels.get(path, path)

    def for_run(
        self, pair: PairConfig, policy: str | None, output: str, beside: tuple[str, ...] = ()
    ) -> EvaluateConfig:
        """The same plan for another pair, policy and folder; cells are cut to fit the drafter.

        Args:
            pair: Pair to decode with.
            policy: Folder of an exported policy, or None.
            output: Folder of the report.
            beside: Further policies or tables.

        Raises:
            ValueError: If the pair has no drafter.
        """
        accepted = depths(pair.drafter)
        fitting = dict.fromkeys(
            Cell(depth=depth, size=min(cell.size, largest_size(pair.drafter, depth)))
            for cell in self.cells
            for depth in [min(max(cell.depth, accepted[0]), accepted[-1])]
        )
        changes = {
            "pair": pair,
            "policy": policy,
            "beside": beside,
            "output": output,
            "cells": tuple(fitting),
        }
        return EvaluateConfig.model_validate({**dict(self), **changes})

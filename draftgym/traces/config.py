"""Configuration of a trace."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, model_validator

from draftgym.decoder.config import DrafterConfig, PairConfig
from draftgym.features import DEFAULT_SIZE_GRID
from draftgym.prompts import PromptSource, Split

TRACED_DRAFTERS = ("eagle3", "ngram", "hybrid")
TRACED_RULES = ("greedy", "coupled")


def why_untraced(drafter: DrafterConfig) -> str | None:
    """Why a drafter cannot be traced, beginning with the field; None when it can.

    Args:
        drafter: Its configuration.
    """
    if drafter.kind not in TRACED_DRAFTERS:
        return f"kind: {drafter.kind!r} cannot be traced; accepted: {', '.join(TRACED_DRAFTERS)}"
    if drafter.rejoin is not None:
        return (
            f"rejoin: {drafter.rejoin!r} cannot be traced: what it proposes depends on the drafts "
            "of earlier rounds, not on the committed text alone; leave `rejoin` out"
        )
    return None


class TraceConfig(BaseModel):
    """What is decoded, and how deep the tree at each position is."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    kind: Literal["trace"] = Field("trace", description="What this file configures.")
    pair: PairConfig = Field(default_factory=PairConfig, description="Target and drafter.")
    prompts: tuple[PromptSource, ...] = Field((PromptSource(),), min_length=1)
    split: Split = Field("policy", description="Split that the prompts come from.")
    count: int | None = Field(
        None, ge=1, description="Prompts, balanced over domains; absent: all."
    )
    max_new_tokens: int = Field(96, ge=2, le=100_000, description="Budget per prompt.")
    ignore_eos: bool = Field(False, description="Decode on to the budget.")
    size_grid: tuple[int, ...] = Field(
        DEFAULT_SIZE_GRID, min_length=2, max_length=64,
        description="Verification sizes of the expected tokens; ascending from 0.",
    )  # fmt: skip
    shard_prompts: int = Field(16, ge=1, le=4096, description="Prompts lost at most by a kill.")
    seed: int = Field(0, ge=0, description="Which prompts of the split, and their order.")
    output: str = Field("runs/trace", min_length=1, description="Folder of the trace.")

    @model_validator(mode="after")
    def _can_be_traced(self) -> Self:
        problem, rule = why_untraced(self.pair.drafter), self.pair.sampling.rule_name
        if problem is not None:
            raise ValueError(f"pair.drafter.{problem}")
        if rule not in TRACED_RULES:
            raise ValueError(
                f"pair.sampling.rule: under {rule!r} the text depends on what is drafted; "
                f"accepted: {', '.join(TRACED_RULES)}"
            )
        grid = self.size_grid
        if grid[0] != 0 or list(grid) != sorted(set(grid)):
            raise ValueError(f"size_grid: must ascend from 0 without repeats, got {list(grid)}")
        return self

    def plan(self, pair_fingerprint: Mapping[str, Any]) -> dict[str, Any]:
        """Everything that decides a trace's content, plain data.

        Args:
            pair_fingerprint: Of the pair made from `pair`.
        """
        fields = self.model_dump(mode="json", exclude={"output", "shard_prompts", "kind"})
        return {**fields, "fingerprint": dict(pair_fingerprint)}

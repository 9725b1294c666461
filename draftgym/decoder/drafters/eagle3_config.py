"""Shape of an EAGLE-3 head and the file that holds it; needs no torch."""

import json
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

ARCHITECTURE = "draftgym.eagle3/1"
ACTIVATIONS = ("silu", "gelu")
# Types whose frequencies are fixed. Others change with the current length, which would change
# keys that are already in the cache.
ROPE_TYPES = ("linear", "llama3", "yarn")


@dataclass(frozen=True, slots=True)
class Eagle3Config:
    """Shape of a head.

    Attributes:
        hidden_size: Width ``H``, the same as the target's.
        intermediate_size: Width of the feed-forward part.
        num_attention_heads: Query heads.
        num_key_value_heads: Key and value heads; divides the query heads.
        head_dim: Size of one head; even.
        rope_theta: Base of the rotary position embedding.
        rms_norm_eps: Added to mean squares before the root.
        target_vocab_size: Rows of the target's embedding.
        draft_vocab_size: Tokens the head can propose.
        feature_layers: Target layers whose entering hidden states are fused, lowest first.
        hidden_act: Activation of the feed-forward part, ``silu`` or ``gelu``.
        max_position_embeddings: Positions in the rotary table.
        rope_scaling: Transformers' scaling fields with ``rope_type``, one of ``ROPE_TYPES``;
            None for the plain rotary embedding.
    """

    hidden_size: int
    intermediate_size: int
    num_attention_heads: int
    num_key_value_heads: int
    head_dim: int
    rope_theta: float
    rms_norm_eps: float
    target_vocab_size: int
    draft_vocab_size: int
    feature_layers: tuple[int, ...]
    hidden_act: str = "silu"
    max_position_embeddings: int = 8192
    rope_scaling: dict[str, Any] | None = None

    def __post_init__(self) -> None:
        for field in fields(self):
            value = getattr(self, field.name)
            if isinstance(value, (int, float)) and value <= 0:
                raise ValueError(f"{field.name}: must be positive, got {value}")
        if self.num_attention_heads % self.num_key_value_heads:
            raise ValueError(
                f"num_key_value_heads: {self.num_key_value_heads} does not divide "
                f"num_attention_heads {self.num_attention_heads}"
            )
        if self.head_dim % 2:
            raise ValueError(f"head_dim: must be even, got {self.head_dim}")
        if self.draft_vocab_size > self.target_vocab_size:
            raise ValueError(
                f"draft_vocab_size: {self.draft_vocab_size} exceeds "
                f"target_vocab_size {self.target_vocab_size}"
            )
        if self.hidden_act not in ACTIVATIONS:
            accepted = ", ".join(ACTIVATIONS)
            raise ValueError(f"hidden_act: unknown {self.hidden_act!r}; accepted: {accepted}")
        if self.rope_scaling is not None and self.rope_scaling.get("rope_type") not in ROPE_TYPES:
            raise ValueError(
                f"rope_scaling: rope_type {self.rope_scaling.get('rope_type')!r} is not supported; "
                f"accepted: {', '.join(ROPE_TYPES)}"
            )
        if not self.feature_layers or list(self.feature_layers) != sorted(set(self.feature_layers)):
            raise ValueError(f"feature_layers: must increase strictly, got {self.feature_layers}")


def read_config(path: Path) -> Eagle3Config:
    """Read a head's ``config.json``.

    Args:
        path: The file.

    Raises:
        ValueError: If it is missing, broken or of another architecture, or a field is wrong;
            names the file and the field.
    """
    try:
        values: dict[str, Any] = json.loads(path.read_text())
        architecture = values.pop("architecture")
    except (OSError, ValueError, KeyError, AttributeError) as error:
        raise ValueError(f"{path}: cannot be read: {error!r}") from error
    if architecture != ARCHITECTURE:
        raise ValueError(f"{path}: architecture: {architecture!r}, need {ARCHITECTURE!r}")
    try:
        layers = tuple(values.pop("feature_layers"))
        return Eagle3Config(feature_layers=layers, **values)
    except (KeyError, TypeError, ValueError) as error:
        raise ValueError(f"{path}: {error}") from error

"""What a pair will take in memory, from `config.json` shapes alone, before anything is loaded.

Counts weights, caches and the features kept for a draft head; activations come on top and are
small at these row counts. It loads nothing and knows no files.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch

from draftgym.console import say
from draftgym.decoder.config import DrafterConfig, PairConfig
from draftgym.decoder.drafters.eagle3_config import Eagle3Config
from draftgym.decoder.memory import free_device_bytes
from draftgym.errors import ConfigurationError

GIB = 1 << 30


@dataclass(frozen=True, slots=True)
class ModelParameters:
    """Parameters of a Llama-like model, by what decoding does with them.

    Attributes:
        embedding: Of the input embedding.
        head: Of the output layer; the embedding's own where `tied`.
        fused: Of the query, key, value, gate and up projections, which are copied into one.
        shared: Of the output and down projections, used where they are.
        rest: Norms and biases.
        tied: Whether the checkpoint stores embedding and output layer once.
    """

    embedding: int
    head: int
    fused: int
    shared: int
    rest: int
    tied: bool

    @property
    def stored(self) -> int:
        """Parameters of the checkpoint."""
        head = 0 if self.tied else self.head
        return self.embedding + head + self.fused + self.shared + self.rest


@dataclass(frozen=True, slots=True)
class Footprint:
    """Bytes of a loaded pair on its device.

    Attributes:
        target: The target's weights.
        drafter: The drafter's weights and tables.
        caches: Keys, values and features at the context limit.
        loading: Held besides while the target is loaded: fused or packed copies beside the
            originals.
        context_tokens: The context limit meant.
    """

    target: int
    drafter: int
    caches: int
    loading: int
    context_tokens: int

    @property
    def resident(self) -> int:
        """Once loaded."""
        return self.target + self.drafter + self.caches


def count_parameters(config: Any) -> ModelParameters:
    """Parameters of a Llama, Mistral, Qwen2 or Qwen3 model.

    Args:
        config: A Transformers configuration that `check_supported` accepts.
    """
    hidden, inner = int(config.hidden_size), int(config.intermediate_size)
    heads, kv_heads = int(config.num_attention_heads), int(config.num_key_value_heads)
    dim = int(getattr(config, "head_dim", None) or hidden // heads)
    kind, layers = config.model_type, int(config.num_hidden_layers)
    qkv, gate_up = (heads + 2 * kv_heads) * dim, 2 * inner
    biases = 0
    if kind == "qwen2":
        biases += qkv
    elif kind != "mistral" and getattr(config, "attention_bias", False):
        biases += qkv + hidden
    if kind == "llama" and getattr(config, "mlp_bias", False):
        biases += gate_up + hidden
    head_norms = 2 * dim if kind == "qwen3" else 0
    return ModelParameters(
        embedding=int(config.vocab_size) * hidden,
        head=int(config.vocab_size) * hidden,
        fused=layers * hidden * (qkv + gate_up),
        shared=layers * hidden * (heads * dim + inner),
        rest=layers * (biases + 2 * hidden + head_norms) + hidden,
        tied=bool(config.tie_word_embeddings),
    )


def cache_elements(config: Any, positions: int, layers: int | None = None) -> int:
    """Keys and values of a model's cache for so many positions, of its first layers or of all."""
    kept = int(config.num_hidden_layers)
    kept = kept if layers is None else min(layers, kept)
    heads = int(config.num_attention_heads)
    dim = int(getattr(config, "head_dim", None) or config.hidden_size // heads)
    return 2 * kept * int(config.num_key_value_heads) * dim * positions


def head_bytes(config: Eagle3Config, element_bytes: int) -> int:
    """Weights, vocabulary tables and rotary tables of an EAGLE-3 head.

    An upper bound on a CPU in float32, where `DraftLinear` may halve the weights.
    """
    hidden, inner, dim = config.hidden_size, config.intermediate_size, config.head_dim
    heads = config.num_attention_heads
    weights = (
        len(config.feature_layers) * hidden * hidden
        + 2 * hidden * (heads + 2 * config.num_key_value_heads) * dim
        + heads * dim * hidden
        + 3 * hidden * inner
        + 4 * hidden
        + config.draft_vocab_size * hidden
    )
    tables = 2 * config.max_position_embeddings * dim
    maps = 8 * config.draft_vocab_size + config.target_vocab_size
    return (weights + tables) * element_bytes + maps


def estimate(
    config: PairConfig,
    target: Any,
    drafter: Eagle3Config | Any | None,
    device: torch.device,
    dtype: torch.dtype,
) -> Footprint:
    """What a pair will take.

    Args:
        config: The pair.
        target: The target's Transformers configuration.
        drafter: The head's shape, a draft model's Transformers configuration, or None where the
            drafter brings no weights.
        device: Where both run.
        dtype: Element type of both.
    """
    size = dtype.itemsize
    context = min(config.context_limit_tokens, int(target.max_position_embeddings))
    positions = context + config.drafter.max_size + 1
    model, copies = _model_bytes(target, device, dtype)
    caches = cache_elements(target, positions) * size
    weights = 0
    if isinstance(drafter, Eagle3Config):
        weights = head_bytes(drafter, size)
        caches += _head_cache_elements(drafter, config.drafter, context, positions) * size
    elif config.drafter.kind == "lm":
        if drafter is not None:
            weights, extra = _model_bytes(drafter, device, dtype)
            copies = max(copies, extra)
        # Without a model of its own the target drafts for itself, with a second cache.
        caches += cache_elements(drafter or target, positions, config.drafter.layers) * size
    return Footprint(model, weights, caches, copies, context)


def check_memory(footprint: Footprint, device: torch.device, free: int | None = None) -> None:
    """Print the estimate beside what the device has free; refuse what cannot fit.

    On CUDA the copies made while loading must fit too. On a CPU the originals are pages of the
    file, which the system can drop, so only what stays is required.

    Args:
        footprint: The estimate.
        device: Where the pair will run.
        free: Replaces the measured free bytes (tests).

    Raises:
        ConfigurationError: It cannot fit; names the parts and what to change.
    """
    free = free_device_bytes(device) if free is None else free
    parts = (
        f"target {_gib(footprint.target)} + drafter {_gib(footprint.drafter)} + caches "
        f"{_gib(footprint.caches)} for {footprint.context_tokens} tokens = "
        f"{_gib(footprint.resident)} GiB"
    )
    peak = footprint.resident + footprint.loading
    known = "unknown" if free is None else f"{_gib(free)} GiB"
    say(f"memory: {parts} ({_gib(peak)} while loading); free on {device}: {known}")
    if free is None:
        return
    needed = peak if device.type == "cuda" else footprint.resident
    if needed > free:
        raise ConfigurationError(
            f"the pair does not fit: it needs {_gib(needed)} GiB on {device}, {_gib(free)} GiB is "
            f"free ({parts}). Free memory, take a smaller dtype or target, or lower "
            "context_limit_tokens"
        )
    if peak > free:
        say("loading may run short of memory for a moment")


def _model_bytes(config: Any, device: torch.device, dtype: torch.dtype) -> tuple[int, int]:
    """Bytes that stay, and copies held beside the originals while loading."""
    counted, size = count_parameters(config), dtype.itemsize
    # float32 on a CPU is packed: the output layer then exists beside a tied embedding.
    if device.type == "cpu" and dtype == torch.float32:
        linear = counted.fused + counted.shared + counted.head
        return (counted.embedding + linear + counted.rest) * size, linear * size
    return counted.stored * size, counted.fused * size


def _head_cache_elements(
    head: Eagle3Config, drafter: DrafterConfig, context: int, positions: int
) -> int:
    slots = context + max(0, drafter.max_depth - 1) * drafter.beam_width
    features = positions * len(head.feature_layers) * head.hidden_size
    return 2 * head.num_key_value_heads * slots * head.head_dim + features


def _gib(amount: int) -> str:
    return f"{amount / GIB:.2f}"

"""Speculative decoding as Transformers ships it, on the same target, for comparison.

All run the very model that plain `generate` runs: same weights, number type, device, threads.
"""

from __future__ import annotations

from copy import deepcopy
from typing import Any

from draftgym.benchmark.methods import TRANSFORMERS, HuggingFaceMethod
from draftgym.clock import Clock
from draftgym.errors import ConfigurationError


def prompt_lookup(
    model: Any, clock: Clock, eos_ids: tuple[int, ...] = (), *, tokens: int = 10
) -> HuggingFaceMethod:
    """Prompt look-up decoding (Saxena, 2023): copies what followed the last n-gram before.

    Args:
        model: A Transformers `*ForCausalLM`.
        clock: Source of time.
        eos_ids: Token ids that end a text; empty to ignore all.
        tokens: Candidates of a look-up, `prompt_lookup_num_tokens`.
    """
    return HuggingFaceMethod(
        model,
        clock,
        # Transformers 5.10 looks for a stop in what it copies, and fails without one.
        eos_ids or (model.config.vocab_size,),
        name=f"{TRANSFORMERS}, prompt look-up of {tokens}",
        settings={"prompt_lookup_num_tokens": tokens},
    )


def assisted(
    model: Any, clock: Clock, eos_ids: tuple[int, ...] = (), *, layers: int
) -> HuggingFaceMethod:
    """Assisted decoding by the target's own first layers, as Transformers does it by default.

    The assistant drafts up to 20 tokens, and stops where it gives a token less than .4.

    Args:
        model: A Transformers `*ForCausalLM`.
        clock: Source of time.
        eos_ids: Token ids that end a text; empty to ignore all.
        layers: Layers of the assistant.

    Raises:
        ConfigurationError: The target does not have more layers.
    """
    return HuggingFaceMethod(
        model,
        clock,
        eos_ids,
        name=f"{TRANSFORMERS}, assistant of the first {layers} layers",
        assistant=first_layers(model, layers),
    )


def first_layers(model: Any, layers: int) -> Any:
    """The target's first layers with its own embeddings, last norm and head; weights are shared.

    Args:
        model: A Transformers `*ForCausalLM` of one uniform stack of layers.
        layers: How many to keep, fewer than it has.

    Raises:
        ConfigurationError: The target does not have more layers.
    """
    whole = model.config.num_hidden_layers
    if not 0 < layers < whole:
        raise ConfigurationError(f"layers: the target has {whole}; accepted: 1 to {whole - 1}")
    config = deepcopy(model.config)
    config.num_hidden_layers = layers
    kinds = getattr(config, "layer_types", None)
    if kinds is not None:
        config.layer_types = kinds[:layers]
    cut = type(model)(config)
    weights = model.state_dict()
    cut.load_state_dict({name: weights[name] for name in cut.state_dict()}, assign=True)
    return cut.to(model.device).eval().requires_grad_(False)

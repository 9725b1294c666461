"""Tiny random pairs for tests: float32, CPU, milliseconds per round."""

from __future__ import annotations

from typing import Any, Literal

import torch
from transformers import LlamaConfig, LlamaForCausalLM

from draftgym.decoder.config import DrafterConfig, PairConfig, SamplingConfig
from draftgym.decoder.drafters.eagle3_head import Eagle3Config, Eagle3Head
from draftgym.decoder.generation import GenerationSettings
from draftgym.decoder.llama import LlamaTarget
from draftgym.decoder.pair import ModelPair

# Tensors this small gain nothing from threads, and lose minutes to them on a busy machine.
torch.set_num_threads(1)

VOCAB, HIDDEN = 64, 32


def tiny_model(seed: int = 0, vocab: int = VOCAB, context: int = 256, **changes: Any) -> Any:
    """A random 2-layer Llama with 4 query and 2 key-value heads."""
    torch.manual_seed(seed)
    settings: dict[str, Any] = {
        "vocab_size": vocab,
        "hidden_size": HIDDEN,
        "intermediate_size": 48,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "max_position_embeddings": context,
        "initializer_range": 0.4,
        "bos_token_id": 0,
        "eos_token_id": 1,
        "pad_token_id": 0,
        "tie_word_embeddings": False,
    }
    return LlamaForCausalLM(LlamaConfig(**(settings | changes))).eval()


def tiny_head(seed: int = 0, vocab: int = VOCAB, context: int = 256) -> Eagle3Head:
    """A random head over the layers 0 and 1 of the tiny model."""
    torch.manual_seed(seed + 1000)
    config = Eagle3Config(
        hidden_size=HIDDEN,
        intermediate_size=48,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=8,
        rope_theta=10000.0,
        rms_norm_eps=1e-6,
        target_vocab_size=vocab,
        draft_vocab_size=vocab,
        feature_layers=(0, 1),
        max_position_embeddings=context,
    )
    head = Eagle3Head(config)
    head.set_vocabulary(torch.arange(vocab))
    return head.eval().requires_grad_(False)


def tiny_pair(
    seed: int = 0,
    drafter: Literal["hybrid", "eagle3", "lm", "ngram", "none"] = "eagle3",
    *,
    beam_width: int = 4,
    max_depth: int = 8,
    context: int = 256,
    draft_context: int | None = None,
    eos: frozenset[int] = frozenset({1}),
    model: Any = None,
    draft_layers: int | None = None,
    sampling: SamplingConfig | None = None,
) -> ModelPair:
    """A whole pair without files. The tiny target falls into loops, so look-ups get accepted.

    The `lm` drafter is the target itself, or its first `draft_layers` layers.
    """
    model = tiny_model(seed, context=context) if model is None else model
    # Room past the limit for what the target drafts for itself.
    target = LlamaTarget(model, context)
    config = PairConfig(
        target="tiny",
        device="cpu",
        dtype="float32",
        drafter=DrafterConfig(
            kind=drafter,
            beam_width=beam_width,
            max_depth=max_depth,
            layers=draft_layers if drafter == "lm" else None,
        ),
        sampling=sampling or SamplingConfig(),
        context_limit_tokens=context,
    )
    return ModelPair(
        config,
        target,
        None,
        GenerationSettings(eos, min(context, target.context_limit)),
        target.embedding,
        head=tiny_head(seed, target.vocab_size, draft_context or context + max_depth + 2),
    )

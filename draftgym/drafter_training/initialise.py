"""A new head from a target: its vocabulary, its frozen output rows, its first weights."""

import math
from collections import Counter, defaultdict
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from draftgym.decoder.drafters.eagle3_head import Eagle3Config, Eagle3Head
from draftgym.drafter_training.data import TokenRow


def choose_vocabulary(rows: Sequence[TokenRow], size: int, target_vocab_size: int) -> Tensor:
    """Choose the most frequent tokens, ties and any remainder by lowest id.

    Rows count by the family of their request (its id without the number): a family of n tokens
    weighs as sqrt(n), so that thousands of sums do not push out the words of small domains and
    other languages.

    Args:
        rows: Rows of the drafter split.
        size: Number of tokens to choose.
        target_vocab_size: Token ids are below this.

    Returns:
        Strictly increasing target ids, int64 ``[size]``.
    """
    families: dict[str, Counter[int]] = defaultdict(Counter)
    for row in rows:
        families[row.request_id.rstrip("0123456789")].update(row.tokens)
    weights = [0.0] * target_vocab_size
    for _, counts in sorted(families.items()):
        for token, count in counts.items():
            weights[token] += count / math.sqrt(counts.total())
    ranked = sorted(range(target_vocab_size), key=lambda token: (-weights[token], token))
    return torch.tensor(sorted(ranked[:size]))


def config_for(target: Any, feature_layers: Sequence[int], draft_vocab_size: int) -> Eagle3Config:
    """Return the shape of a head that fits a target.

    Args:
        target: Configuration of a Llama-like target, as Transformers loads it.
        feature_layers: Layers whose entering hidden states are read.
        draft_vocab_size: Tokens the head can propose.

    Raises:
        ValueError: If a layer does not exist or the position embedding is not plain RoPE.
    """
    for layer in feature_layers:
        if not 0 <= layer < target.num_hidden_layers:
            raise ValueError(
                f"feature_layers: {layer} is not a layer of the target; "
                f"accepted: 0 to {target.num_hidden_layers - 1}"
            )
    rope = target.rope_parameters
    if rope.get("rope_type", "default") != "default":
        raise ValueError(f"target: rope_type {rope['rope_type']!r} is not supported")
    return Eagle3Config(
        hidden_size=target.hidden_size,
        intermediate_size=target.intermediate_size,
        num_attention_heads=target.num_attention_heads,
        num_key_value_heads=target.num_key_value_heads,
        head_dim=getattr(target, "head_dim", None)
        or target.hidden_size // target.num_attention_heads,
        rope_theta=float(rope["rope_theta"]),
        rms_norm_eps=float(target.rms_norm_eps),
        target_vocab_size=target.vocab_size,
        draft_vocab_size=draft_vocab_size,
        feature_layers=tuple(feature_layers),
        hidden_act=target.hidden_act,
        max_position_embeddings=target.max_position_embeddings,
    )


@torch.no_grad()
def new_head(model: Any, config: Eagle3Config, vocabulary: Tensor, seed: int) -> Eagle3Head:
    """Make a head that starts as a copy of the target's last layer.

    Args:
        model: The target, a Llama-like Transformers model.
        config: Shape from ``config_for``.
        vocabulary: Ids from ``choose_vocabulary``.
        seed: Seeds what has no counterpart in the target.

    Returns:
        The head; attention reads the feature half of its input as the last layer would and the
        embedding half hardly at first, and the fused feature starts as the deepest of the three.
    """
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        head = Eagle3Head(config)
    width, last = config.hidden_size, model.model.layers[-1]
    head.norm.weight.copy_(model.model.norm.weight)
    layer = head.midlayer
    layer.post_attention_layernorm.weight.copy_(last.post_attention_layernorm.weight)
    layer.hidden_norm.weight.copy_(last.input_layernorm.weight)
    for name in ("q_proj", "k_proj", "v_proj"):
        getattr(layer.self_attn, name).weight[:, width:].copy_(getattr(last.self_attn, name).weight)
    layer.self_attn.o_proj.weight.copy_(last.self_attn.o_proj.weight)
    for name in ("gate_proj", "up_proj", "down_proj"):
        getattr(layer.mlp, name).weight.copy_(getattr(last.mlp, name).weight)
    head.fc.weight.mul_(0.1)
    head.fc.weight[:, -width:].add_(torch.eye(width))
    freeze_output(head, model.get_output_embeddings().weight, vocabulary)
    return head


@torch.no_grad()
def freeze_output(head: Eagle3Head, output_rows: Tensor, vocabulary: Tensor) -> None:
    """Copy the target's output rows of a vocabulary into the head and freeze them.

    Args:
        head: The head; its other weights do not depend on the vocabulary.
        output_rows: The target's output matrix, ``[target_vocab, H]``.
        vocabulary: Strictly increasing target ids, ``[draft_vocab]``.
    """
    head.set_vocabulary(vocabulary)
    head.lm_head.weight.copy_(output_rows[vocabulary])
    head.lm_head.weight.requires_grad_(False)

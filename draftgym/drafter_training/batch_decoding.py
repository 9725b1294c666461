"""Write many answers at once with a Llama-like target.

A left-padded batch with a preallocated cache; query heads that share a key head are folded into
the query length, so attention copies no keys. It does not know about prompts or files.
"""

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from draftgym.decoder.drafters.eagle3_head import rotate


class BatchDecoder:
    """Decodes a batch of prompts token by token.

    Args:
        model: A Llama-like Transformers model; its weights are shared.
    """

    def __init__(self, model: Any) -> None:
        config = model.config
        self._model = model
        self._layers = list(model.model.layers)
        self._heads, self._kv_heads = config.num_attention_heads, config.num_key_value_heads
        self._dim = getattr(config, "head_dim", None) or config.hidden_size // self._heads
        self._eps = config.rms_norm_eps
        self._pad = config.pad_token_id if config.pad_token_id is not None else 0

    @torch.inference_mode()
    def decode(
        self,
        prompts: list[tuple[int, ...]],
        max_new_tokens: int,
        stop_ids: frozenset[int],
        choose: Callable[[Tensor], Tensor],
    ) -> list[tuple[int, ...]]:
        """Write one answer per prompt.

        Args:
            prompts: Token ids of each prompt.
            max_new_tokens: Longest answer.
            stop_ids: Tokens that end an answer; the one that does is kept.
            choose: Maps logits ``[B, vocab]`` to token ids ``[B]``.

        Returns:
            Token ids of each answer.
        """
        width = max(map(len, prompts))
        ids = torch.full((len(prompts), width), self._pad)
        mask = torch.zeros(len(prompts), width + max_new_tokens, dtype=torch.long)
        mask[:, width:] = 1
        for index, prompt in enumerate(prompts):
            ids[index, width - len(prompt) :] = torch.tensor(prompt)
            mask[index, width - len(prompt) : width] = 1
        positions = (mask.cumsum(-1) - 1).clamp(min=0)  # [B, width + max_new_tokens]
        keys, values, logits = self._prefill(ids, mask[:, :width], positions, max_new_tokens)
        bias = torch.zeros(mask.shape).masked_fill(mask == 0, float("-inf"))[:, None, None]
        cos, sin = self._rotary(positions)
        written = torch.empty(len(prompts), max_new_tokens, dtype=torch.long)
        running = torch.ones(len(prompts), dtype=torch.bool)
        stops = torch.tensor(sorted(stop_ids))
        made = 0
        while made < max_new_tokens:
            token = choose(logits)
            written[:, made] = token
            made += 1
            running &= ~torch.isin(token, stops)
            if not running.any() or made == max_new_tokens:
                break
            at = width + made - 1
            logits = self._step(token, at, keys, values, bias, cos[:, at], sin[:, at])
        return [_until_stop(tokens, stop_ids) for tokens in written[:, :made].tolist()]

    def _prefill(
        self, ids: Tensor, mask: Tensor, positions: Tensor, extra: int
    ) -> tuple[list[Tensor], list[Tensor], Tensor]:
        width = ids.shape[1]
        output = self._model.model(
            input_ids=ids, attention_mask=mask, position_ids=positions[:, :width], use_cache=True
        )
        logits = self._model.lm_head(output.last_hidden_state[:, -1])
        cached = output.past_key_values.layers
        keys = [F.pad(layer.keys, (0, 0, 0, extra)) for layer in cached]
        values = [F.pad(layer.values, (0, 0, 0, extra)) for layer in cached]
        return keys, values, logits

    def _rotary(self, positions: Tensor) -> tuple[Tensor, Tensor]:
        sample = torch.zeros(1)
        cos, sin = self._model.model.rotary_emb(sample, positions)  # [B, T, dim]
        half = self._dim // 2
        return cos.unsqueeze(-2), torch.cat((-sin[..., :half], sin[..., half:]), -1).unsqueeze(-2)

    def _step(
        self,
        token: Tensor,
        at: int,
        keys: list[Tensor],
        values: list[Tensor],
        bias: Tensor,
        cos: Tensor,
        sin: Tensor,
    ) -> Tensor:
        """Feed one token per row at cache slot ``at``; return logits ``[B, vocab]``."""
        hidden = F.embedding(token, self._model.model.embed_tokens.weight)  # [B, H]
        size, groups = hidden.shape[-1:], self._heads // self._kv_heads
        for layer, key_cache, value_cache in zip(self._layers, keys, values, strict=True):
            normed = F.rms_norm(hidden, size, layer.input_layernorm.weight, self._eps)
            attention = layer.self_attn
            query = rotate(attention.q_proj(normed).unflatten(-1, (-1, self._dim)), cos, sin)
            key = rotate(attention.k_proj(normed).unflatten(-1, (-1, self._dim)), cos, sin)
            key_cache[:, :, at] = key
            value_cache[:, :, at] = attention.v_proj(normed).unflatten(-1, (-1, self._dim))
            attended = F.scaled_dot_product_attention(
                query.unflatten(1, (self._kv_heads, groups)),  # [B, kv_heads, groups, dim]
                key_cache[:, :, : at + 1],
                value_cache[:, :, : at + 1],
                attn_mask=bias[..., : at + 1],
            )
            hidden = hidden + attention.o_proj(attended.flatten(1))
            normed = F.rms_norm(hidden, size, layer.post_attention_layernorm.weight, self._eps)
            hidden = hidden + layer.mlp(normed)
        final = F.rms_norm(hidden, size, self._model.model.norm.weight, self._eps)
        logits: Tensor = self._model.lm_head(final)
        return logits


def _until_stop(tokens: list[int], stop_ids: frozenset[int]) -> tuple[int, ...]:
    """Cut after the first stop token, which is kept."""
    for index, token in enumerate(tokens):
        if token in stop_ids:
            return tuple(tokens[: index + 1])
    return tuple(tokens)

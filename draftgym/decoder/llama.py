"""A lean forward pass for the Llama family: fused projections, packed weights, own cache.

Numerically it follows Transformers' `modeling_llama.py`, `modeling_qwen2.py` and
`modeling_qwen3.py`. Grouped-query attention folds the query heads of a group into the query
length, so one attention kernel per layer reads each key once and copies nothing.
"""

from __future__ import annotations

import copy
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from draftgym.decoder.cache import KVCache
from draftgym.decoder.linear import DecodeLinear, fuse_linears
from draftgym.decoder.norm import DecodeNorm
from draftgym.errors import DraftGymError

SUPPORTED_ARCHITECTURES = ("llama", "mistral", "qwen2", "qwen3")


class UnsupportedModelError(DraftGymError, ValueError):
    """The model cannot be decoded exactly by this project; the message says why."""


def check_supported(config: Any) -> None:
    """Refuse architectures and cache kinds that the lean pass would get wrong.

    Args:
        config: A Transformers configuration.

    Raises:
        UnsupportedModelError: Unknown architecture, sliding-window or recurrent layers,
            unknown activation or a rotary embedding that changes with length.
    """
    kind = config.model_type
    layer_types = set(getattr(config, "layer_types", None) or ())
    other = sorted(layer_types - {"full_attention"})
    if other:
        raise UnsupportedModelError(
            f"{kind}: layers of type {', '.join(other)} keep a cache that cannot be cropped to "
            "the accepted tokens; only full_attention layers are supported"
        )
    if kind not in SUPPORTED_ARCHITECTURES:
        raise UnsupportedModelError(
            f"architecture {kind!r} is not supported; supported: "
            + ", ".join(SUPPORTED_ARCHITECTURES)
        )
    window = getattr(config, "sliding_window", None)
    if window is not None and getattr(config, "use_sliding_window", True):
        raise UnsupportedModelError(
            f"{kind}: sliding_window={window} drops cache entries that a rejected draft may "
            "need again; set it to null if the context stays below it"
        )
    if config.hidden_act != "silu":
        raise UnsupportedModelError(f"{kind}: hidden_act={config.hidden_act!r}, expected 'silu'")
    rope = getattr(config, "rope_parameters", None) or {}
    rope_type = rope.get("rope_type", "default")
    if rope_type in ("dynamic", "longrope"):
        raise UnsupportedModelError(
            f"{kind}: rope_type={rope_type!r} depends on the current length, so keys already in "
            "the cache would have to change; not supported"
        )


def rotary_tables(config: Any, length: int) -> tuple[Tensor, Tensor]:
    """Cosine and signed sine, float32, each [length, head_dim].

    The sine of the first half is negated, so that `x * cos + roll(x) * sin` equals
    Transformers' `x * cos + rotate_half(x) * sin` bit for bit.
    """
    from transformers.models.llama.modeling_llama import LlamaRotaryEmbedding

    rotary = LlamaRotaryEmbedding(config)
    angles = torch.outer(torch.arange(length, dtype=torch.float32), rotary.inv_freq.float())
    cos, sin = angles.cos(), angles.sin()
    scale = float(rotary.attention_scaling)
    return torch.cat((cos, cos), -1) * scale, torch.cat((-sin, sin), -1) * scale


@dataclass(slots=True)
class _Layer:
    attention_norm: DecodeNorm
    qkv: DecodeLinear
    query_norm: DecodeNorm | None
    key_norm: DecodeNorm | None
    output: DecodeLinear
    mlp_norm: DecodeNorm
    gate_up: DecodeLinear
    down: DecodeLinear


class LlamaTarget:
    """Llama, Mistral, Qwen2 and Qwen3 without sliding windows.

    Args:
        model: A Transformers `*ForCausalLM`; its weights are copied or shared, never changed.
        context_limit: Positions to prepare; the model's own limit when None.

    Raises:
        UnsupportedModelError: See `check_supported`.
    """

    def __init__(self, model: Any, context_limit: int | None = None) -> None:
        config = model.config
        check_supported(config)
        self.embedding: Tensor = model.get_input_embeddings().weight.detach()
        self.device, self.dtype = self.embedding.device, self.embedding.dtype
        self.hidden_size = int(config.hidden_size)
        self.context_limit = min(
            int(config.max_position_embeddings), context_limit or config.max_position_embeddings
        )
        self._eps = float(config.rms_norm_eps)
        self._heads = int(config.num_attention_heads)
        self._kv_heads = int(config.num_key_value_heads)
        self._head_dim = int(getattr(config, "head_dim", None) or self.hidden_size // self._heads)
        self._groups = self._heads // self._kv_heads
        self._norm = DecodeNorm(model.model.norm.weight, self._eps)
        self._layers = [self._read_layer(layer) for layer in model.model.layers]
        self.head = DecodeLinear(model.lm_head.weight, model.lm_head.bias)
        self.layer_count = len(self._layers)
        self.vocab_size = int(model.lm_head.weight.shape[0])
        self.weight_bytes = self.head.weight_bytes + sum(
            part.weight_bytes
            for layer in self._layers
            for part in (layer.qkv, layer.output, layer.gate_up, layer.down)
        )
        # A margin past the limit: drafted tokens may sit there before they are cut.
        cos, sin = rotary_tables(config, self.context_limit + 512)
        self._cos = cos.to(self.device, self.dtype).unsqueeze(1)  # [length, 1, head_dim]
        self._sin = sin.to(self.device, self.dtype).unsqueeze(1)

    def _read_layer(self, layer: Any) -> _Layer:
        attention, mlp = layer.self_attn, layer.mlp
        has_norms = hasattr(attention, "q_norm")
        return _Layer(
            attention_norm=DecodeNorm(layer.input_layernorm.weight, self._eps),
            qkv=fuse_linears(DecodeLinear, attention.q_proj, attention.k_proj, attention.v_proj),
            query_norm=DecodeNorm(attention.q_norm.weight, self._eps) if has_norms else None,
            key_norm=DecodeNorm(attention.k_norm.weight, self._eps) if has_norms else None,
            output=DecodeLinear(attention.o_proj.weight, attention.o_proj.bias),
            mlp_norm=DecodeNorm(layer.post_attention_layernorm.weight, self._eps),
            gate_up=fuse_linears(DecodeLinear, mlp.gate_proj, mlp.up_proj),
            down=DecodeLinear(mlp.down_proj.weight, mlp.down_proj.bias),
        )

    def first_layers(self, count: int) -> LlamaTarget:
        """The same model with its first `count` layers only; weights are shared, not copied."""
        cut = copy.copy(self)
        cut._layers = self._layers[:count]
        cut.layer_count = count
        dropped = self._layers[count:]
        cut.weight_bytes = self.weight_bytes - sum(
            part.weight_bytes
            for layer in dropped
            for part in (layer.qkv, layer.output, layer.gate_up, layer.down)
        )
        return cut

    def new_cache(self, capacity: int) -> KVCache:
        """An empty cache for `capacity` positions, drafted ones included."""
        return KVCache(
            len(self._layers),
            self._kv_heads,
            capacity,
            self._head_dim,
            device=self.device,
            dtype=self.dtype,
        )

    def _mask(self, visible: Tensor | None, start: int) -> Tensor | None:
        """Additive mask [groups * T, start + T] for folded queries; None for one token."""
        if visible is None:
            return None
        always = start + visible.shape[0] - visible.shape[1]
        block = torch.zeros(visible.shape, device=self.device, dtype=self.dtype)
        block.masked_fill_(~visible, float("-inf"))
        mask = F.pad(block, (always, 0))
        return mask.repeat(self._groups, 1)

    def _rotary(self, positions: Tensor) -> tuple[Tensor, Tensor]:
        """Cosine and sine [T, heads + 2 kv_heads, head_dim]; values are turned by no angle."""
        turned = self._heads + self._kv_heads
        cos, sin = (table[positions].expand(-1, turned, -1) for table in (self._cos, self._sin))
        still = cos.new_ones(len(positions), self._kv_heads, self._head_dim)
        return torch.cat((cos, still), 1), torch.cat((sin, torch.zeros_like(still)), 1)

    def _attend(
        self,
        qkv: Tensor,
        layer: _Layer,
        window: tuple[Tensor, Tensor, Tensor],
        mask: Tensor | None,
        cos: Tensor,
        sin: Tensor,
    ) -> Tensor:
        slots, keys, values = window
        length, dim = qkv.shape[0], self._head_dim
        rows = qkv.view(length, -1, dim)  # [T, heads + 2 kv_heads, dim]
        if layer.query_norm is not None and layer.key_norm is not None:
            query, key, value = rows.split((self._heads, self._kv_heads, self._kv_heads), 1)
            rows = torch.cat((layer.query_norm(query), layer.key_norm(key), value), 1)
        rows = torch.addcmul(rows * cos, rows.roll(dim // 2, -1), sin)
        written = rows[:, self._heads :].view(length, 2, self._kv_heads, dim)
        slots.copy_(written.permute(1, 2, 0, 3))
        query = rows[:, : self._heads].view(length, self._kv_heads, self._groups, dim)
        query = query.permute(1, 2, 0, 3).reshape(1, self._kv_heads, self._groups * length, dim)
        out = F.scaled_dot_product_attention(query, keys, values, attn_mask=mask)
        out = out.view(self._kv_heads, self._groups, length, dim).permute(2, 0, 1, 3)
        return out.reshape(length, self._heads * dim)

    @torch.inference_mode()
    def forward(
        self,
        tokens: Tensor,
        positions: Tensor,
        cache: KVCache,
        start: int,
        visible: Tensor | None = None,
        *,
        last_only: bool = False,
        features: Tensor | None = None,
        feature_layers: Sequence[int] = (),
    ) -> Tensor:
        """See `TargetModel.forward`."""
        hidden = F.embedding(tokens, self.embedding)  # [T, hidden]
        cos, sin = self._rotary(positions)
        mask = self._mask(visible, start)
        windows = cache.window(start, tokens.shape[0])
        captured: list[Tensor] = []
        for index, (layer, window) in enumerate(zip(self._layers, windows, strict=True)):
            if features is not None and index in feature_layers:
                captured.append(hidden)
            qkv = layer.qkv(layer.attention_norm(hidden))
            hidden = layer.output(self._attend(qkv, layer, window, mask, cos, sin), hidden)
            gate, up = layer.gate_up(layer.mlp_norm(hidden)).chunk(2, -1)
            hidden = layer.down(F.silu(gate) * up, hidden)
        if features is not None:
            torch.cat(captured, -1, out=features)
        logits: Tensor = self.head(self._norm(hidden[-1:] if last_only else hidden))
        return logits

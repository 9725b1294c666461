"""The EAGLE-3 draft head: one decoder layer over [embedding, fused target features].

Follows "EAGLE-3: Scaling up Inference Acceleration of Large Language Models via Training-Time
Test" (arXiv 2503.01840) and its published weight names. Training and inference share this
module; they differ in attention only, so attention is passed in. The module does not know about
caches, trees or losses.

Input at index i is (embedding of token i + 1, feature of token i); the output predicts token
i + 2, and its hidden state stands in for the target's feature of token i + 1 at the next step.
"""

from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path

import torch
import torch.nn.functional as F
from safetensors import SafetensorError
from safetensors.torch import load_file, save
from torch import Tensor, nn

from draftgym.decoder.drafters.eagle3_config import ARCHITECTURE, Eagle3Config, read_config
from draftgym.decoder.drafters.eagle3_rope import rope_table
from draftgym.decoder.linear import DraftLinear, fuse_linears, pack_linears
from draftgym.decoder.norm import DecodeNorm
from draftgym.storage import write_bytes, write_json

__all__ = [
    "Attend",
    "Eagle3Config",
    "Eagle3Head",
    "build_head",
    "load_head",
    "rotate",
    "save_head",
]

CONFIG_FILE = "config.json"
WEIGHTS_FILE = "model.safetensors"

Attend = Callable[[Tensor, Tensor, Tensor], Tensor]
"""Maps rotated q ``[..., heads, dim]``, k and v ``[..., kv_heads, dim]`` to the shape of q."""

_FUNCTIONS: dict[str, Callable[[Tensor], Tensor]] = {"silu": F.silu, "gelu": F.gelu}


class _Norm(nn.Module):
    def __init__(self, size: int, eps: float) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(size))
        self.eps = eps
        self._packed: DecodeNorm | None = None

    def forward(self, values: Tensor) -> Tensor:
        if self._packed is not None:
            return self._packed(values)
        return F.rms_norm(values, self.weight.shape, self.weight, self.eps)

    def pack(self) -> None:
        self._packed = DecodeNorm(self.weight, self.eps)


class _Attention(nn.Module):
    def __init__(self, config: Eagle3Config) -> None:
        super().__init__()
        heads, kv_heads, dim = (
            config.num_attention_heads,
            config.num_key_value_heads,
            config.head_dim,
        )
        self.q_proj = nn.Linear(2 * config.hidden_size, heads * dim, bias=False)
        self.k_proj = nn.Linear(2 * config.hidden_size, kv_heads * dim, bias=False)
        self.v_proj = nn.Linear(2 * config.hidden_size, kv_heads * dim, bias=False)
        self.o_proj = nn.Linear(heads * dim, config.hidden_size, bias=False)
        self._dim = dim
        self._qkv: DraftLinear | None = None

    def project(self, joined: Tensor) -> Tensor:
        """Queries, keys and values side by side, ``[..., heads + 2 kv_heads, dim]``."""
        if self._qkv is not None:
            rows: Tensor = self._qkv(joined)
        else:
            rows = torch.cat((self.q_proj(joined), self.k_proj(joined), self.v_proj(joined)), -1)
        split: Tensor = rows.unflatten(-1, (-1, self._dim))
        return split

    def pack(self) -> None:
        self._qkv = fuse_linears(DraftLinear, self.q_proj, self.k_proj, self.v_proj)
        del self.q_proj, self.k_proj, self.v_proj


class _FeedForward(nn.Module):
    def __init__(self, config: Eagle3Config) -> None:
        super().__init__()
        self.gate_proj = nn.Linear(config.hidden_size, config.intermediate_size, bias=False)
        self.up_proj = nn.Linear(config.hidden_size, config.intermediate_size, bias=False)
        self.down_proj = nn.Linear(config.intermediate_size, config.hidden_size, bias=False)
        self._activation = _FUNCTIONS[config.hidden_act]
        self._gate_up: DraftLinear | None = None

    def forward(self, hidden: Tensor) -> Tensor:
        if self._gate_up is None:
            gate, up = self.gate_proj(hidden), self.up_proj(hidden)
        else:
            gate, up = self._gate_up(hidden).chunk(2, -1)
        projected: Tensor = self.down_proj(self._activation(gate) * up)
        return projected

    def pack(self) -> None:
        self._gate_up = fuse_linears(DraftLinear, self.gate_proj, self.up_proj)
        del self.gate_proj, self.up_proj


class _DecoderLayer(nn.Module):
    def __init__(self, config: Eagle3Config) -> None:
        super().__init__()
        eps = config.rms_norm_eps
        self.hidden_norm = _Norm(config.hidden_size, eps)
        self.input_layernorm = _Norm(config.hidden_size, eps)
        self.self_attn = _Attention(config)
        self.post_attention_layernorm = _Norm(config.hidden_size, eps)
        self.mlp = _FeedForward(config)


class Eagle3Head(nn.Module):
    """An EAGLE-3 head; parameters carry the published names.

    Args:
        config: Its shape.

    Attributes:
        d2t: Offsets ``[draft_vocab]``, int64: target id = draft id + ``d2t[draft id]``.
        t2d: Bool ``[target_vocab]``: whether the head can propose a target id.
    """

    d2t: Tensor
    t2d: Tensor
    rope_cos: Tensor
    rope_sin: Tensor

    def __init__(self, config: Eagle3Config) -> None:
        super().__init__()
        self.config = config
        self._packed = False
        width = config.hidden_size
        self.fc = nn.Linear(len(config.feature_layers) * width, width, bias=False)
        self.midlayer = _DecoderLayer(config)
        self.norm = _Norm(width, config.rms_norm_eps)
        self.lm_head = nn.Linear(width, config.draft_vocab_size, bias=False)
        self.register_buffer("d2t", torch.zeros(config.draft_vocab_size, dtype=torch.int64))
        t2d = torch.arange(config.target_vocab_size) < config.draft_vocab_size
        self.register_buffer("t2d", t2d)
        cos, sin = rope_table(config)
        self.register_buffer("rope_cos", cos, persistent=False)
        self.register_buffer("rope_sin", sin, persistent=False)

    def fuse(self, features: Tensor) -> Tensor:
        """Project the target's concatenated hidden states ``[..., L * H]`` to ``[..., H]``."""
        fused: Tensor = self.fc(features)
        return fused

    def decode(
        self, embeddings: Tensor, hidden: Tensor, positions: Tensor, attend: Attend
    ) -> Tensor:
        """Run the decoder layer once.

        Args:
            embeddings: Target embeddings of token i + 1, ``[..., H]``.
            hidden: Fused features of token i, or the head's own output for it, ``[..., H]``.
            positions: Rotary position of each entry, int64 ``[...]`` (index i has position i).
            attend: Attention over rotated queries and keys; keeps or reads any cache itself.

        Returns:
            Hidden state before the final norm, ``[..., H]``.
        """
        layer = self.midlayer
        joined = torch.cat((layer.input_layernorm(embeddings), layer.hidden_norm(hidden)), dim=-1)
        cos = self.rope_cos[positions].unsqueeze(-2)  # [..., 1, dim]
        sin = self.rope_sin[positions].unsqueeze(-2)
        rows = layer.self_attn.project(joined)
        heads, turned = self.config.num_attention_heads, rows.shape[-2]
        turned -= self.config.num_key_value_heads  # values keep their angle
        rotated = rotate(rows[..., :turned, :], cos, sin)
        attended = attend(rotated[..., :heads, :], rotated[..., heads:, :], rows[..., turned:, :])
        hidden = hidden + layer.self_attn.o_proj(attended.flatten(-2))
        output: Tensor = hidden + layer.mlp(layer.post_attention_layernorm(hidden))
        return output

    def logits(self, hidden: Tensor) -> Tensor:
        """Score the draft vocabulary: ``[..., H]`` before the final norm to ``[..., draft]``."""
        scores: Tensor = self.lm_head(self.norm(hidden))
        return scores

    def pack(self) -> None:
        """Fuse and pack the linear layers for decoding; the head can no longer be trained."""
        if not self._packed:
            self.midlayer.self_attn.pack()
            self.midlayer.mlp.pack()
            pack_linears(DraftLinear, self)
            for module in self.modules():
                if isinstance(module, _Norm):
                    module.pack()
            self._packed = True

    def target_ids(self) -> Tensor:
        """Return the target id of every draft id, int64 ``[draft_vocab]``."""
        return torch.arange(len(self.d2t), device=self.d2t.device) + self.d2t

    def set_vocabulary(self, target_ids: Tensor) -> None:
        """Choose the proposable tokens.

        Args:
            target_ids: Strictly increasing target ids, int64 ``[draft_vocab]``.

        Raises:
            ValueError: If they are not ``draft_vocab_size`` increasing ids of the target.
        """
        t2d = torch.zeros(self.config.target_vocab_size, dtype=torch.bool)
        t2d[target_ids.clamp(0, len(t2d) - 1)] = True
        d2t = target_ids - torch.arange(len(target_ids))
        _check_vocabulary("set_vocabulary", self.config, d2t, t2d)
        self.d2t.copy_(d2t)
        self.t2d.copy_(t2d)


def rotate(heads: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Apply the rotary embedding in the half-split layout.

    Args:
        heads: ``[..., heads, dim]``.
        cos: Cosines, ``[..., 1, dim]``.
        sin: Sines with the first half negated, ``[..., 1, dim]``.

    Returns:
        Rotated heads, the same shape.
    """
    return torch.addcmul(heads * cos, heads.roll(heads.shape[-1] // 2, dims=-1), sin)


def save_head(head: Eagle3Head, folder: Path, dtype: torch.dtype = torch.bfloat16) -> None:
    """Write ``model.safetensors`` and ``config.json``, each replaced atomically.

    Args:
        head: The head; its buffers ``d2t`` and ``t2d`` are stored as they are.
        folder: Where to; made if missing.
        dtype: Type of the stored weights.
    """
    state = {
        name: (tensor.to(dtype) if tensor.is_floating_point() else tensor).cpu().contiguous()
        for name, tensor in head.state_dict().items()
    }
    write_bytes(folder / WEIGHTS_FILE, save(state, metadata={"format": "pt"}))
    write_json(folder / CONFIG_FILE, {"architecture": ARCHITECTURE, **asdict(head.config)})


def load_head(
    folder: Path,
    device: torch.device | str = "cpu",
    dtype: torch.dtype = torch.float32,
) -> Eagle3Head:
    """Load a head and check everything that could make it propose wrong tokens.

    Args:
        folder: Holds ``config.json`` and ``model.safetensors``.
        device: Where the head will run.
        dtype: Type of the weights in memory; the rotary table follows it.

    Returns:
        The head, in evaluation mode, without gradients.

    Raises:
        ValueError: If a file is missing or broken, a tensor is missing, unknown or of the wrong
            shape or type, or ``d2t`` and ``t2d`` disagree; names the file and the field.
    """
    config = read_config(folder / CONFIG_FILE)
    path = folder / WEIGHTS_FILE
    try:
        state = load_file(path)
    except (OSError, SafetensorError) as error:
        raise ValueError(f"{path}: cannot be read: {error}") from error
    return build_head(config, state, str(path), device, dtype)


def build_head(
    config: Eagle3Config,
    state: dict[str, Tensor],
    where: str,
    device: torch.device | str = "cpu",
    dtype: torch.dtype = torch.float32,
) -> Eagle3Head:
    """Make a head from its tensors, all of them checked.

    Args:
        config: The head's shape.
        state: Tensors by published name, ``d2t`` and ``t2d`` included.
        where: The file they came from, for messages.
        device: Where the head will run.
        dtype: Type of the weights in memory; the rotary table follows it.

    Returns:
        The head, in evaluation mode, without gradients.

    Raises:
        ValueError: See `load_head`.
    """
    with torch.device("meta"):
        expected = Eagle3Head(config).state_dict()
    for name, tensor in expected.items():
        if name not in state:
            raise ValueError(f"{where}: {name}: missing")
        if state[name].shape != tensor.shape:
            raise ValueError(
                f"{where}: {name}: shape {list(state[name].shape)}, "
                f"{CONFIG_FILE} needs {list(tensor.shape)}"
            )
        if state[name].is_floating_point() != tensor.is_floating_point():
            raise ValueError(f"{where}: {name}: type {state[name].dtype}, need {tensor.dtype}")
    if unknown := sorted(state.keys() - expected.keys()):
        raise ValueError(f"{where}: {unknown[0]}: unknown tensor")
    _check_vocabulary(where, config, state["d2t"], state["t2d"])
    head = Eagle3Head(config)
    head.load_state_dict(state)
    return head.to(device=device, dtype=dtype).eval().requires_grad_(False)


def _check_vocabulary(where: str, config: Eagle3Config, d2t: Tensor, t2d: Tensor) -> None:
    if d2t.dtype != torch.int64 or d2t.shape != (config.draft_vocab_size,):
        raise ValueError(f"{where}: d2t: need int64 [{config.draft_vocab_size}]")
    if t2d.dtype != torch.bool:
        raise ValueError(f"{where}: t2d: type {t2d.dtype}, need torch.bool")
    ids = torch.arange(config.draft_vocab_size) + d2t
    if int(ids.min()) < 0 or int(ids.max()) >= config.target_vocab_size:
        raise ValueError(f"{where}: d2t: maps outside 0..{config.target_vocab_size - 1}")
    if not bool((ids[1:] > ids[:-1]).all()):
        raise ValueError(f"{where}: d2t: target ids must increase strictly")
    if not torch.equal(t2d.nonzero().flatten(), ids):
        raise ValueError(f"{where}: t2d: must be true exactly at the ids that d2t maps to")

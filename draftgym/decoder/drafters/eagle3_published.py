"""Published EAGLE-3 checkpoints (yuhuili/EAGLE3-*, AngelSlim/*_eagle3) as an `Eagle3Head`.

Follows the layout that EAGLE's `eagle/model/cnets.py` writes and that SGLang's and vLLM's
`llama_eagle3.py` read; docs/eagle3_checkpoints.md lists what is read, what is refused and where
each rule comes from. Weights come from safetensors only: nothing is unpickled.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor

from draftgym.decoder.drafters.eagle3_config import Eagle3Config, read_config
from draftgym.decoder.drafters.eagle3_head import (
    CONFIG_FILE,
    WEIGHTS_FILE,
    Eagle3Head,
    build_head,
    load_head,
)
from draftgym.decoder.drafters.eagle3_layout import published_config
from draftgym.decoder.sources import expanded, fetch_repository, parse_hub_id
from draftgym.errors import SourceError

INDEX_FILE = "model.safetensors.index.json"
HEAD_FILES = ("*.json", "*.safetensors")
CONVERSION_PAGE = "docs/eagle3_checkpoints.md"
_PICKLES = ("*.bin", "*.pt", "*.pth", "*.ckpt")
_EMBEDDING = "embed_tokens.weight"
_COMPARED_ROWS = 256


def resolve_head(source: str) -> Path:
    """Local folder of a draft head.

    Args:
        source: A folder, or a hub id `ORG/NAME[@REVISION]`.

    Raises:
        SourceError: The hub is out of reach, or it is neither of the two.
    """
    folder = expanded(source)
    if folder.is_dir():
        return folder
    named = parse_hub_id(source)
    if named is None:
        raise SourceError(
            f"no such draft head: {source!r}; drafter.source is a folder or a hub id "
            "(ORG/NAME or ORG/NAME@REVISION)"
        )
    return fetch_repository(*named, patterns=HEAD_FILES)


def load_any_head(
    folder: Path,
    layer_count: int,
    embedding: Tensor,
    device: torch.device | str = "cpu",
    dtype: torch.dtype = torch.float32,
) -> Eagle3Head:
    """Load a head of this project or a published checkpoint, told apart by `config.json`.

    Args:
        folder: Holds `config.json` and safetensors.
        layer_count: Layers of the target; published heads derive their features from it.
        embedding: The target's embedding [vocab, hidden]; a checkpoint that brings its own must
            bring this one, because the drafter reads the target's.
        device: Where the head will run.
        dtype: Type of the weights in memory.

    Returns:
        The head, in evaluation mode, without gradients.

    Raises:
        ValueError: A file is missing, broken or pickled, or holds what the head cannot represent
            exactly; names the file and the field or tensor.
    """
    values = _read_json(folder / CONFIG_FILE)
    if "architecture" in values:
        return load_head(folder, device, dtype)
    config = published_config(values, str(folder / CONFIG_FILE), layer_count)
    state, where = _read_weights(folder)
    _check_embedding(state.pop(_EMBEDDING, None), embedding, where)
    _complete_vocabulary(config, state, where)
    _check_representable(state, where)
    return build_head(config, state, where, device, dtype)


def read_head_config(folder: Path, layer_count: int) -> Eagle3Config:
    """Shape of a head of either layout, without reading its weights; they must be there.

    Args:
        folder: Holds `config.json`.
        layer_count: Layers of the target.

    Raises:
        ValueError: See `load_any_head`.
    """
    values = _read_json(folder / CONFIG_FILE)
    if "architecture" in values:
        return read_config(folder / CONFIG_FILE)
    if not any((folder / name).is_file() for name in (WEIGHTS_FILE, INDEX_FILE)):
        raise ValueError(_no_safetensors(folder))
    return published_config(values, str(folder / CONFIG_FILE), layer_count)


def weights_digest(folder: Path) -> str:
    """First 16 hexadecimal digits of the SHA-256 of a head's weights, all files in order."""
    digest = hashlib.sha256()
    for path in sorted(folder.glob("*.safetensors")):
        with path.open("rb") as file:
            while block := file.read(1 << 20):
                digest.update(block)
    return digest.hexdigest()[:16]


def _read_json(path: Path) -> dict[str, Any]:
    try:
        values = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise ValueError(f"{path}: cannot be read: {error!r}") from error
    if not isinstance(values, dict):
        raise ValueError(f"{path}: cannot be read: not a JSON object")
    return values


def _read_weights(folder: Path) -> tuple[dict[str, Tensor], str]:
    """All tensors, and the file to name in messages: the only one, or the index of several."""
    single, index = folder / WEIGHTS_FILE, folder / INDEX_FILE
    if single.is_file():
        return _read_tensors(single), str(single)
    if not index.is_file():
        raise ValueError(_no_safetensors(folder))
    shards = _read_json(index).get("weight_map")
    if not isinstance(shards, Mapping) or not shards:
        raise ValueError(f"{index}: weight_map: missing or empty")
    state: dict[str, Tensor] = {}
    for shard in sorted({str(name) for name in shards.values()}):
        if Path(shard).name != shard or not shard.endswith(".safetensors"):
            raise ValueError(f"{index}: weight_map: {shard!r} is not a safetensors file beside it")
        state |= _read_tensors(folder / shard)
    if missing := sorted(shards.keys() - state.keys()):
        raise ValueError(f"{folder / str(shards[missing[0]])}: {missing[0]}: missing")
    return state, str(index)


def _read_tensors(path: Path) -> dict[str, Tensor]:
    try:
        return load_file(path)
    except (OSError, SafetensorError) as error:
        raise ValueError(f"{path}: cannot be read: {error}") from error


def _no_safetensors(folder: Path) -> str:
    pickled = sorted(path for pattern in _PICKLES for path in folder.glob(pattern))
    if pickled:
        return (
            f"{pickled[0]}: a pickle, which may execute code when opened, so it is not: convert it "
            "once with torch.load(..., weights_only=True) and safetensors.torch.save_file "
            f"({CONVERSION_PAGE} has the lines), then name the folder of the result"
        )
    return (
        f"{folder / WEIGHTS_FILE}: missing, and so is {INDEX_FILE}; repositories that hold "
        f"pytorch_model.bin only must be converted once ({CONVERSION_PAGE} has the lines)"
    )


def _check_embedding(own: Tensor | None, target: Tensor, where: str) -> None:
    """Checkpoints may repeat the target's embedding, in another precision; it is not used."""
    if own is None:
        return
    if own.shape != target.shape:
        raise ValueError(
            f"{where}: {_EMBEDDING}: shape {list(own.shape)}, the target has {list(target.shape)}"
        )
    rows = torch.linspace(0, len(own) - 1, min(len(own), _COMPARED_ROWS)).long()
    theirs = target[rows.to(target.device)].float().cpu()
    # Half precision keeps at least 8 significant bits: a copy differs by less than 1 percent.
    if not torch.allclose(own[rows].float(), theirs, rtol=1e-2, atol=1e-2 * float(theirs.std())):
        raise ValueError(
            f"{where}: {_EMBEDDING}: not the target's embedding, which is the one that drafting "
            "reads; a head with an embedding of its own is not supported"
        )


def _complete_vocabulary(config: Eagle3Config, state: dict[str, Tensor], where: str) -> None:
    """Tables of a head that proposes every token, which EAGLE leaves out or leaves unused."""
    full = config.draft_vocab_size == config.target_vocab_size
    for name in ("d2t", "t2d"):
        if name not in state and not full:
            raise ValueError(
                f"{where}: {name}: missing; only a head that proposes every token "
                f"(draft_vocab_size = vocab_size) needs no tables, this one proposes "
                f"{config.draft_vocab_size} of {config.target_vocab_size}"
            )
    if not full:
        return
    d2t = state.setdefault("d2t", torch.zeros(config.draft_vocab_size, dtype=torch.int64))
    if d2t.any():
        raise ValueError(f"{where}: d2t: must be zero where draft_vocab_size = vocab_size")
    t2d = state.get("t2d")
    # EAGLE drops both tables at this size, so published files may hold an untouched t2d.
    if t2d is None or (t2d.shape == (config.target_vocab_size,) and not t2d.any()):
        state["t2d"] = torch.ones(config.target_vocab_size, dtype=torch.bool)


def _check_representable(state: Mapping[str, Tensor], where: str) -> None:
    reasons = {
        ".bias": "the head's linear layers have no bias",
        "q_norm.weight": "the head does not normalise queries",
        "k_norm.weight": "the head does not normalise keys",
        "_scale": "quantised weights are not supported",
        "_scale_inv": "quantised weights are not supported",
        "qweight": "quantised weights are not supported",
    }
    for name in sorted(state):
        for ending, reason in reasons.items():
            if name.endswith(ending):
                raise ValueError(f"{where}: {name}: {reason}")
        if name.startswith(("layers.", "model.", "midlayer.0.", "additional_layers.")):
            raise ValueError(
                f"{where}: {name}: not the published layout, whose one layer is named midlayer"
            )

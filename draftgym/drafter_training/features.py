"""Run the target once over every row and keep what the head needs, on disk.

Per token: hidden states of a few layers (the head's input) and the final normed hidden state
(from which soft targets are one matrix product away) as float16, and the target's most likely next
token. Memory-mapped, in shards listed by a manifest; a build that was interrupted goes on with the
rows it lacks.
"""

import json
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from draftgym.drafter_training.data import TokenRow, group_by_length
from draftgym.storage import write_json

SCHEMA = "draftgym.features/1"
MANIFEST = "manifest.json"
_KINDS = ("features", "final", "best")
_BEST_CHUNK = 512


@dataclass(frozen=True, slots=True)
class CachedRow:
    """Where one row lies in its shard.

    Attributes:
        id: Name of the row.
        digest: ``TokenRow.digest`` of the content the features belong to.
        start: First token in the shard.
        length: Number of tokens.
    """

    id: str
    digest: str
    start: int
    length: int


@dataclass(frozen=True, slots=True)
class RowFeatures:
    """One row's cached arrays, views of the mapped files.

    Attributes:
        tokens: Token ids, int64 ``[n]``.
        features: Hidden states entering the chosen layers, concatenated, ``[n, L * H]``.
        final: Final hidden state after the target's last norm, ``[n, H]``.
        best: The target's most likely next token after each position, int32 ``[n]``.
    """

    tokens: NDArray[np.int64]
    features: NDArray[np.float16]
    final: NDArray[np.float16]
    best: NDArray[np.int32]


class FeatureCache:
    """A folder of feature shards for one target and one choice of layers.

    Args:
        folder: Where the manifest and shards live; made if missing.
        target: Fingerprint of the target's weights; a different one is refused.
        feature_layers: Layers whose entering hidden states are kept.
        hidden_size: Width ``H`` of the target.

    Raises:
        ValueError: If the folder holds features of something else.
    """

    def __init__(
        self, folder: Path, target: str, feature_layers: Sequence[int], hidden_size: int
    ) -> None:
        self.folder = folder
        self.feature_layers = tuple(feature_layers)
        self.hidden_size = hidden_size
        self._header = {
            "schema": SCHEMA,
            "target": target,
            "feature_layers": list(feature_layers),
            "hidden_size": hidden_size,
        }
        self._shards: list[list[CachedRow]] = []
        self._where: dict[str, tuple[int, CachedRow]] = {}
        self._maps: dict[int, list[NDArray[Any]]] = {}
        folder.mkdir(parents=True, exist_ok=True)
        if (folder / MANIFEST).exists():
            self._read_manifest()

    def __contains__(self, row: TokenRow) -> bool:
        return row.digest in self._where

    def missing(self, rows: Sequence[TokenRow]) -> list[TokenRow]:
        """Return the rows whose features have not been computed yet."""
        return [row for row in rows if row not in self]

    def read(self, row: TokenRow) -> RowFeatures:
        """Return the features of one row.

        Args:
            row: A row that is in the cache.

        Returns:
            Views of the mapped shard; nothing is copied.

        Raises:
            KeyError: If the row is not in the cache.
        """
        index, cached = self._where[row.digest]
        if index not in self._maps:
            self._maps[index] = [np.load(self._file(index, k), mmap_mode="r") for k in _KINDS]
        span = slice(cached.start, cached.start + cached.length)
        features, final, best = (array[span] for array in self._maps[index])
        return RowFeatures(np.asarray(row.tokens, dtype=np.int64), features, final, best)

    def append(self, rows: Sequence[TokenRow], arrays: Sequence[RowFeatures]) -> None:
        """Store one shard: its arrays first, the manifest last.

        Args:
            rows: Rows of the shard.
            arrays: What the target made of each row.
        """
        index = len(self._shards)
        cached, start = [], 0
        for row in rows:
            cached.append(CachedRow(row.id, row.digest, start, len(row.tokens)))
            start += len(row.tokens)
        for kind in _KINDS:
            np.save(self._file(index, kind), np.concatenate([getattr(a, kind) for a in arrays]))
        self._add_shard(cached)
        manifest = {**self._header, "shards": [[asdict(r) for r in s] for s in self._shards]}
        write_json(self.folder / MANIFEST, manifest, indent=None)

    def _file(self, index: int, kind: str) -> Path:
        return self.folder / f"shard-{index:04d}.{kind}.npy"

    def _add_shard(self, cached: list[CachedRow]) -> None:
        self._shards.append(cached)
        self._where.update({row.digest: (len(self._shards) - 1, row) for row in cached})

    def _read_manifest(self) -> None:
        path = self.folder / MANIFEST
        manifest = json.loads(path.read_text())
        for field, expected in self._header.items():
            if manifest.get(field) != expected:
                raise ValueError(
                    f"{path}: {field}: holds {manifest.get(field)!r}, need {expected!r}; "
                    "remove the folder or choose another"
                )
        for shard in manifest["shards"]:
            self._add_shard([CachedRow(**row) for row in shard])


def build_cache(
    cache: FeatureCache,
    backbone: nn.Module,
    output_rows: Tensor,
    rows: Sequence[TokenRow],
    batch_tokens: int = 2048,
    shard_tokens: int = 32768,
    progress: Callable[[float], None] | None = None,
) -> int:
    """Compute the features of every row that the cache lacks.

    Args:
        cache: Where they go; what it already holds is kept.
        backbone: The target without its output head, in Transformers' naming (``layers``).
        output_rows: The target's output matrix, ``[target_vocab, H]``.
        rows: Rows wanted.
        batch_tokens: Padded tokens per forward pass.
        shard_tokens: Tokens per shard; the most that an interruption loses.
        progress: Called after every pass with the tokens it added.

    Returns:
        Number of tokens computed now.

    Raises:
        ValueError: If a hidden state does not fit float16.
    """
    computed = 0
    for shard in _chunks(cache.missing(rows), shard_tokens):
        kept: list[TokenRow] = []
        arrays: list[RowFeatures] = []
        for batch in group_by_length(shard, batch_tokens):
            for row, (inner, final) in zip(
                batch, forward_features(backbone, batch, cache.feature_layers), strict=True
            ):
                kept.append(row)
                arrays.append(
                    RowFeatures(
                        tokens=np.asarray(row.tokens, dtype=np.int64),
                        features=_to_half(row, inner),
                        final=_to_half(row, final),
                        best=best_tokens(row, final, output_rows),
                    )
                )
            computed += sum(len(row.tokens) for row in batch)
            if progress is not None:
                progress(sum(len(row.tokens) for row in batch))
        cache.append(kept, arrays)
    return computed


@torch.inference_mode()
def forward_features(
    backbone: nn.Module, rows: Sequence[TokenRow], feature_layers: Sequence[int]
) -> list[tuple[Tensor, Tensor]]:
    """Run one right-padded batch; causal attention keeps padding from reaching any token.

    Args:
        backbone: The target without its output head.
        rows: Rows of about the same length.
        feature_layers: Layers whose entering hidden states are wanted.

    Returns:
        Per row: features ``[n, L * H]`` and the final normed hidden state ``[n, H]``.
    """
    longest = max(len(row.tokens) for row in rows)
    ids = torch.zeros(len(rows), longest, dtype=torch.long)
    for index, row in enumerate(rows):
        ids[index, : len(row.tokens)] = torch.tensor(row.tokens)
    captured: dict[int, Tensor] = {}
    layers = backbone.get_submodule("layers")
    assert isinstance(layers, nn.ModuleList)

    def capture(layer: int) -> Callable[[nn.Module, tuple[Tensor, ...]], None]:
        def hook(_module: nn.Module, inputs: tuple[Tensor, ...]) -> None:
            captured[layer] = inputs[0]

        return hook

    handles = [layers[layer].register_forward_pre_hook(capture(layer)) for layer in feature_layers]
    try:
        final = backbone(input_ids=ids, use_cache=False).last_hidden_state  # [rows, longest, H]
    finally:
        for handle in handles:
            handle.remove()
    inner = torch.cat([captured[layer] for layer in feature_layers], dim=-1)
    return [
        (inner[index, : len(row.tokens)], final[index, : len(row.tokens)])
        for index, row in enumerate(rows)
    ]


@torch.inference_mode()
def best_tokens(row: TokenRow, final: Tensor, output_rows: Tensor) -> NDArray[np.int32]:
    """Return the target's most likely next token after every position of a row.

    Args:
        row: A greedy answer is its own evidence; only the other positions are computed.
        final: Final normed hidden states, ``[n, H]``.
        output_rows: The target's output matrix, ``[target_vocab, H]``.

    Returns:
        Token ids, int32 ``[n]``.
    """
    best = torch.tensor(row.tokens[1:] + row.tokens[-1:])
    unknown = torch.ones(len(best), dtype=torch.bool)
    if row.greedy and row.answer_tokens:
        unknown[max(0, len(row.prompt_tokens) - 1) : len(best) - 1] = False
    where = unknown.nonzero().flatten()
    for chunk in where.split(_BEST_CHUNK):
        best[chunk] = (final[chunk] @ output_rows.T).argmax(-1)
    result: NDArray[np.int32] = best.numpy().astype(np.int32)
    return result


def _to_half(row: TokenRow, values: Tensor) -> NDArray[np.float16]:
    half: NDArray[np.float16] = values.to(torch.float16).numpy()
    if not np.isfinite(half).all():
        raise ValueError(f"row {row.id!r}: a hidden state does not fit float16")
    return half


def _chunks(rows: Sequence[TokenRow], tokens: int) -> list[list[TokenRow]]:
    chunks: list[list[TokenRow]] = []
    size = tokens
    for row in rows:
        if size >= tokens:
            chunks.append([])
            size = 0
        chunks[-1].append(row)
        size += len(row.tokens)
    return chunks

"""A target and its drafters, checked once at load."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from draftgym.decoder.config import PairConfig
from draftgym.decoder.drafters.base import Drafter
from draftgym.decoder.drafters.eagle3_head import Eagle3Head
from draftgym.decoder.drafters.registry import DRAFTERS, drafter_shape
from draftgym.decoder.drafters.rejoin import with_rejoin
from draftgym.decoder.footprint import check_memory, estimate
from draftgym.decoder.generation import GenerationSettings, resolve_generation
from draftgym.decoder.llama import LlamaTarget
from draftgym.decoder.loading import describe_model, load_model
from draftgym.decoder.target import TargetModel
from draftgym.errors import ConfigurationError


@dataclass(slots=True)
class ModelPair:
    """Everything a session needs, made by `load_pair`.

    Attributes:
        config: What was asked for.
        target: The model whose law is kept.
        tokenizer: The target's Transformers tokenizer (None for test models).
        generation: Settings used by every arm.
        embedding: The target's embedding, shape [vocab, hidden].
        folder: The target's local Transformers folder, for comparisons; None for test models.
        head: The EAGLE-3 head, loaded when first needed.
        head_sha256: Digest of its weights.
        draft_model: The draft language model, loaded when first needed.
    """

    config: PairConfig
    target: TargetModel
    tokenizer: Any
    generation: GenerationSettings
    embedding: Tensor
    folder: Path | None = None
    head: Eagle3Head | None = None
    head_sha256: str = ""
    draft_model: LlamaTarget | None = None
    _target_sha256: str = field(default="", repr=False)

    @property
    def device(self) -> torch.device:
        """Where the target runs."""
        return self.target.device

    @property
    def dtype(self) -> torch.dtype:
        """The target's element type."""
        return self.target.dtype

    def new_drafter(self, kind: str | None = None) -> Drafter | None:
        """A drafter with state of its own.

        Args:
            kind: Name in the registry; the configured one, with its options, when None.

        Returns:
            The drafter, or None for `none`.

        Raises:
            ConfigurationError: Unknown kind, or a head that does not fit the target.
        """
        name = kind or self.config.drafter.kind
        if name not in DRAFTERS:
            raise ConfigurationError(f"drafter.kind {name!r}: accepted: {', '.join(DRAFTERS)}")
        drafter = DRAFTERS[name](self)
        return drafter if kind else with_rejoin(drafter, self.config.drafter)

    def encode_prompt(self, turns: Sequence[str]) -> list[int]:
        """Token ids of a request, with the chat template where the tokenizer has one.

        Args:
            turns: User turns; the first is asked (later ones need the answers in between).

        Raises:
            ConfigurationError: No turn, or only white space.
        """
        if not turns or not turns[0].strip():
            raise ConfigurationError("the prompt is empty")
        if getattr(self.tokenizer, "chat_template", None):
            ids = self.tokenizer.apply_chat_template(
                [{"role": "user", "content": turns[0]}],
                add_generation_prompt=True,
                return_dict=False,
            )
        else:
            ids = self.tokenizer(turns[0])["input_ids"]
        return [int(token) for token in ids]

    def decode(self, tokens: Sequence[int]) -> str:
        """Text of token ids, special tokens left out."""
        return str(self.tokenizer.decode(list(tokens), skip_special_tokens=True))

    def fingerprint(self) -> dict[str, str]:
        """Identifies what was decoded; an exported policy belongs to one fingerprint."""
        if not self._target_sha256:
            self._target_sha256 = _digest(self.embedding)
        return {
            "target_embedding_sha256": self._target_sha256,
            "target_vocab_size": str(self.target.vocab_size),
            "drafter_kind": self.config.drafter.name,
            "drafter_sha256": self.head_sha256 or self._draft_model_digest(),
            "beam_width": str(self.config.drafter.beam_width),
        }

    def _draft_model_digest(self) -> str:
        model = self.draft_model
        return "" if model is None else f"{_digest(model.embedding)}-{model.layer_count}"


def _digest(embedding: Tensor) -> str:
    """Short name of a model by a sample of its embedding rows."""
    rows = embedding[:: max(1, embedding.shape[0] // 64)].float().cpu()
    return hashlib.sha256(rows.numpy().tobytes()).hexdigest()[:16]


def resolve_device(name: str) -> torch.device:
    """`auto` is CUDA where there is one; asking for CUDA without one is an error."""
    if name == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    if name.startswith("cuda") and not torch.cuda.is_available():
        raise ConfigurationError(f"device {name!r}: this torch sees no CUDA device")
    return torch.device(name)


def resolve_dtype(name: str, device: torch.device) -> torch.dtype:
    """`auto` is bfloat16 on CUDA and on CPUs that multiply it natively, else float32."""
    if name != "auto":
        return {
            "float32": torch.float32,
            "bfloat16": torch.bfloat16,
            "float16": torch.float16,
        }[name]
    if device.type == "cuda":
        return torch.bfloat16
    checks = ("_is_avx512_bf16_supported", "_is_amx_tile_supported")
    native = any(getattr(torch.cpu, check, lambda: False)() for check in checks)
    return torch.bfloat16 if native else torch.float32


def load_pair(config: PairConfig | None = None) -> ModelPair:
    """Fetch, load and check a target and its drafter.

    Args:
        config: What to load; the default pair when None.

    Raises:
        SourceError: The model could not be found or fetched.
        ConfigurationError: Target and drafter do not fit each other or into memory, or the
            tokenizer does not fit.
        UnsupportedModelError: The target cannot be decoded exactly.
    """
    config = config or PairConfig()
    if config.threads is not None:
        torch.set_num_threads(config.threads)
    device = resolve_device(config.device)
    dtype = resolve_dtype(config.dtype, device)
    folder, described = describe_model(config.target)
    drafter = drafter_shape(config.drafter, described.num_hidden_layers)
    check_memory(estimate(config, described, drafter, device, dtype), device)
    loaded = load_model(config.target, device, dtype, config.context_limit_tokens)
    target = loaded.model
    generation = resolve_generation(loaded.generation, target, config)
    pair = ModelPair(config, target, loaded.tokenizer, generation, target.embedding, folder)
    pair.new_drafter()  # refuse a drafter that does not fit now, not in the first round
    return pair

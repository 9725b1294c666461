"""A target and its drafters, checked once at load."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from importlib.resources import files
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from draftgym.decoder.config import DrafterConfig, PairConfig
from draftgym.decoder.drafters.base import Drafter
from draftgym.decoder.drafters.eagle3 import Eagle3Drafter
from draftgym.decoder.drafters.eagle3_config import Eagle3Config
from draftgym.decoder.drafters.eagle3_head import Eagle3Head
from draftgym.decoder.drafters.eagle3_published import (
    load_any_head,
    read_head_config,
    resolve_head,
    weights_digest,
)
from draftgym.decoder.drafters.hybrid import NGRAM_SCORE_SCALE, HybridDrafter
from draftgym.decoder.drafters.lm import LmDrafter
from draftgym.decoder.drafters.ngram import NgramDrafter
from draftgym.decoder.footprint import check_memory, estimate
from draftgym.decoder.generation import GenerationSettings, resolve_generation
from draftgym.decoder.llama import LlamaTarget, check_supported
from draftgym.decoder.loading import load_model
from draftgym.decoder.sources import resolve_model
from draftgym.decoder.target import TargetModel
from draftgym.decoder.tokenizers import check_same_tokenizer
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
            kind: Name in the registry; the configured one when None.

        Returns:
            The drafter, or None for `none`.

        Raises:
            ConfigurationError: Unknown kind, or a head that does not fit the target.
        """
        name = kind or self.config.drafter.kind
        if name not in DRAFTERS:
            raise ConfigurationError(f"drafter.kind {name!r}: accepted: {', '.join(DRAFTERS)}")
        return DRAFTERS[name](self)

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
            "drafter_kind": self.config.drafter.kind,
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


def bundled_head() -> Path:
    """Folder of the EAGLE-3 head that ships with the project."""
    return Path(str(files("draftgym"))) / "pretrained" / "smollm2-135m-eagle3"


def _eagle3(pair: ModelPair) -> Eagle3Drafter:
    settings = pair.config.drafter
    if pair.head is None:
        folder = resolve_head(settings.source) if settings.source else bundled_head()
        layers, embedding = pair.target.layer_count, pair.embedding
        try:
            pair.head = load_any_head(folder, layers, embedding, pair.device, pair.dtype)
        except ValueError as error:
            raise ConfigurationError(f"drafter.source: {error}") from error
        pair.head_sha256 = weights_digest(folder)
        if (folder / "tokenizer.json").exists():
            from transformers import AutoTokenizer

            check_same_tokenizer(pair.tokenizer, AutoTokenizer.from_pretrained(folder))
    table = pair.head.rope_cos
    _check_place(pair, "draft head", table.device)
    if table.dtype != pair.dtype:
        raise ConfigurationError(
            f"drafter: the draft head is {table.dtype}, the target {pair.dtype}; the head reads "
            "the target's features and must have their type"
        )
    layers = pair.target.layer_count
    if max(pair.head.config.feature_layers) >= layers:
        raise ConfigurationError(
            f"drafter: feature_layers {pair.head.config.feature_layers} need more layers than "
            f"the target's {layers}"
        )
    try:
        return Eagle3Drafter(
            pair.head,
            pair.embedding,
            beam_width=settings.beam_width,
            max_depth=settings.max_depth,
            context_limit=pair.generation.context_limit_tokens,
        )
    except ValueError as error:
        raise ConfigurationError(f"drafter: {error}") from error


def _check_place(pair: ModelPair, what: str, device: torch.device) -> None:
    """Refuse a drafter elsewhere: every round would wait for transfers in both directions."""
    if device != pair.device:
        raise ConfigurationError(
            f"drafter: the {what} is on {device}, the target on {pair.device}; both must be on "
            "one device"
        )


def _lm(pair: ModelPair) -> LmDrafter:
    settings, limit = pair.config.drafter, pair.generation.context_limit_tokens
    if pair.draft_model is None:
        pair.draft_model = _draft_model(pair)
    _check_place(pair, "draft model", pair.draft_model.device)  # its type may be its own
    try:
        return LmDrafter(
            pair.draft_model,
            pair.target.vocab_size,
            beam_width=settings.beam_width,
            max_depth=settings.max_depth,
            context_limit=limit,
        )
    except ValueError as error:
        raise ConfigurationError(f"drafter: {error}") from error


def _draft_model(pair: ModelPair) -> LlamaTarget:
    """The draft language model: loaded, or the target itself, or its first layers."""
    settings = pair.config.drafter
    if settings.source is None:
        if not isinstance(pair.target, LlamaTarget):
            raise ConfigurationError("drafter.source: this target cannot draft for itself")
        model = pair.target
    else:
        # Positions for the deepest draft past the last committed token.
        limit = pair.generation.context_limit_tokens + settings.max_depth
        loaded = load_model(settings.source, pair.device, pair.dtype, limit)
        check_same_tokenizer(pair.tokenizer, loaded.tokenizer)
        model = loaded.model
    if settings.layers is None:
        return model
    if not 1 <= settings.layers <= model.layer_count:
        raise ConfigurationError(
            f"drafter.layers: {settings.layers}; the draft model has {model.layer_count}"
        )
    return model.first_layers(settings.layers)


def _ngram(pair: ModelPair) -> NgramDrafter:
    settings = pair.config.drafter
    return NgramDrafter(
        settings.ngram_cap_tokens, settings.ngram_max_match_tokens, NGRAM_SCORE_SCALE
    )


DRAFTERS: dict[str, Callable[[ModelPair], Drafter | None]] = {
    "hybrid": lambda pair: HybridDrafter(_ngram(pair), _eagle3(pair)),
    "eagle3": _eagle3,
    "lm": _lm,
    "ngram": _ngram,
    "none": lambda pair: None,
}


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


def _drafter_shape(settings: DrafterConfig, layer_count: int) -> Eagle3Config | Any | None:
    """Shape of a head, Transformers configuration of a draft model, or None for look-ups."""
    if settings.kind == "lm" and settings.source:
        from transformers import AutoConfig

        described = AutoConfig.from_pretrained(resolve_model(settings.source))
        check_supported(described)
        return described
    if settings.kind not in ("eagle3", "hybrid"):
        return None
    folder = resolve_head(settings.source) if settings.source else bundled_head()
    try:
        return read_head_config(folder, layer_count)
    except ValueError as error:
        raise ConfigurationError(f"drafter.source: {error}") from error


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
    from transformers import AutoConfig

    config = config or PairConfig()
    if config.threads is not None:
        torch.set_num_threads(config.threads)
    device = resolve_device(config.device)
    dtype = resolve_dtype(config.dtype, device)
    folder = resolve_model(config.target)
    described = AutoConfig.from_pretrained(folder)
    check_supported(described)
    drafter = _drafter_shape(config.drafter, described.num_hidden_layers)
    check_memory(estimate(config, described, drafter, device, dtype), device)
    loaded = load_model(config.target, device, dtype, config.context_limit_tokens)
    target = loaded.model
    generation = resolve_generation(loaded.generation, target, config)
    pair = ModelPair(config, target, loaded.tokenizer, generation, target.embedding, folder)
    pair.new_drafter()  # refuse a drafter that does not fit now, not in the first round
    return pair

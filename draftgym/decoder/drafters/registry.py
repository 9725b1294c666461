"""Which drafters there are, and how each is made for a pair and checked against it."""

from __future__ import annotations

from collections.abc import Callable
from importlib.resources import files
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from draftgym.decoder.config import DrafterConfig
from draftgym.decoder.drafters.base import Drafter
from draftgym.decoder.drafters.eagle3 import Eagle3Drafter
from draftgym.decoder.drafters.eagle3_config import Eagle3Config
from draftgym.decoder.drafters.eagle3_published import (
    load_any_head,
    read_head_config,
    resolve_head,
    weights_digest,
)
from draftgym.decoder.drafters.hybrid import HybridDrafter
from draftgym.decoder.drafters.lm import LmDrafter
from draftgym.decoder.drafters.ngram import NgramDrafter
from draftgym.decoder.llama import LlamaTarget
from draftgym.decoder.loading import describe_model, load_model
from draftgym.decoder.tokenizers import check_same_tokenizer
from draftgym.errors import ConfigurationError

if TYPE_CHECKING:  # the pair makes its drafters through this registry
    from draftgym.decoder.pair import ModelPair


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
        for name, weight in pair.head.named_parameters():
            if not bool(weight.isfinite().all()):
                raise ConfigurationError(f"drafter.source: {folder}: {name} holds NaN or infinity")
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
    return NgramDrafter(settings.ngram_cap_tokens, settings.ngram_max_match_tokens)


DRAFTERS: dict[str, Callable[[ModelPair], Drafter | None]] = {
    "hybrid": lambda pair: HybridDrafter(_ngram(pair), _eagle3(pair)),
    "eagle3": _eagle3,
    "lm": _lm,
    "ngram": _ngram,
    "none": lambda pair: None,
}


def drafter_shape(settings: DrafterConfig, layer_count: int) -> Eagle3Config | Any | None:
    """Shape of a head, Transformers configuration of a draft model, or None for look-ups."""
    if settings.kind == "lm" and settings.source:
        return describe_model(settings.source)[1]
    if settings.kind not in ("eagle3", "hybrid"):
        return None
    folder = resolve_head(settings.source) if settings.source else bundled_head()
    try:
        return read_head_config(folder, layer_count)
    except ValueError as error:
        raise ConfigurationError(f"drafter.source: {error}") from error

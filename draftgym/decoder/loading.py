"""Load one causal language model into the lean form, target and draft model alike."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from draftgym.decoder.llama import LlamaTarget, check_supported
from draftgym.decoder.sources import resolve_model
from draftgym.errors import ConfigurationError


@dataclass(frozen=True, slots=True)
class LoadedModel:
    """A model as it is decoded, and what its checkpoint says about it.

    Attributes:
        model: The lean forward pass.
        tokenizer: Its Transformers tokenizer.
        generation: Its Transformers `GenerationConfig`.
        folder: Its local Transformers folder.
    """

    model: LlamaTarget
    tokenizer: Any
    generation: Any
    folder: Path


def load_model(
    source: str, device: torch.device, dtype: torch.dtype, context_limit: int
) -> LoadedModel:
    """Fetch and load a model.

    Args:
        source: Local folder, hub id, GGUF file or package file.
        device: Where it runs.
        dtype: Type of its weights.
        context_limit: Positions to prepare; caps the model's own.

    Raises:
        SourceError: The model could not be found or fetched.
        UnsupportedModelError: It cannot be decoded exactly.
        ConfigurationError: Its tokenizer has more ids than its output has rows.
    """
    from transformers import AutoConfig, AutoModelForCausalLM, AutoTokenizer

    folder = resolve_model(source)
    check_supported(AutoConfig.from_pretrained(folder))
    tokenizer = AutoTokenizer.from_pretrained(folder)
    loaded: Any = AutoModelForCausalLM.from_pretrained(folder, dtype=dtype)
    loaded = loaded.to(device).eval()
    model = LlamaTarget(loaded, context_limit)
    if len(tokenizer) > model.vocab_size:
        raise ConfigurationError(
            f"{source}: the tokenizer has {len(tokenizer)} ids, the model's output "
            f"{model.vocab_size} rows"
        )
    return LoadedModel(model, tokenizer, loaded.generation_config, folder)

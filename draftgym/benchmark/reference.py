"""The target as Transformers runs it, independent of this project's own passes."""

from __future__ import annotations

from collections.abc import Callable
from functools import cached_property
from typing import Any

from draftgym.benchmark.divergence import Judge
from draftgym.decoder.pair import ModelPair
from draftgym.errors import ConfigurationError


class Reference:
    """A Transformers model of the target, loaded when first needed.

    Args:
        load: Returns a `*ForCausalLM` in evaluation mode, on the device and in the number type
            of the outputs it is compared with.
    """

    def __init__(self, load: Callable[[], Any]) -> None:
        self._load = load

    @cached_property
    def model(self) -> Any:
        """The Transformers model."""
        return self._load()

    @cached_property
    def judge(self) -> Judge:
        """Judges divergences by this model's logits."""
        return Judge(self.model)


def reference_of(pair: ModelPair) -> Reference:
    """A plain `AutoModelForCausalLM` from a pair's folder, on its device and in its type.

    Raises:
        ConfigurationError: If the pair has no folder.
    """
    if pair.folder is None:
        raise ConfigurationError("the pair was not loaded from a folder: give a reference model")

    folder = pair.folder

    def load() -> Any:
        from transformers import AutoModelForCausalLM

        loaded: Any = AutoModelForCausalLM.from_pretrained(folder, dtype=pair.dtype)
        return loaded.to(pair.device).eval()

    return Reference(load)

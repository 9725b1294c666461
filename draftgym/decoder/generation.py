"""Generation settings, resolved once and used by every arm."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from draftgym.decoder.config import PairConfig
from draftgym.decoder.target import TargetModel
from draftgym.errors import ConfigurationError

_IGNORED = ("temperature", "top_k", "top_p", "min_p", "typical_p", "do_sample")
_NEUTRAL = {"repetition_penalty": 1.0, "no_repeat_ngram_size": 0, "encoder_repetition_penalty": 1.0}


@dataclass(frozen=True, slots=True)
class GenerationSettings:
    """What decoding obeys.

    Attributes:
        eos_token_ids: Ids that end a sequence.
        context_limit_tokens: Most committed tokens.
        ignored: Settings of the checkpoint that are left out, in every arm: the law is the
            configuration's own.
        law: How tokens are chosen, in words.
    """

    eos_token_ids: frozenset[int]
    context_limit_tokens: int
    ignored: tuple[str, ...] = ()
    law: str = "greedy"

    def describe(self) -> str:
        """One line for people."""
        stops = ", ".join(map(str, sorted(self.eos_token_ids))) or "none"
        line = (
            f"{self.law}, end-of-sequence ids {stops}, context {self.context_limit_tokens} tokens"
        )
        return line + (f"; ignored: {', '.join(self.ignored)}" if self.ignored else "")


def resolve_generation(
    checkpoint: Any, target: TargetModel, config: PairConfig
) -> GenerationSettings:
    """Read a checkpoint's generation configuration.

    Args:
        checkpoint: A Transformers `GenerationConfig`.
        target: The model it belongs to.
        config: The pair's configuration; its context limit caps the model's.

    Raises:
        ConfigurationError: An end-of-sequence id outside the vocabulary.
    """
    eos = checkpoint.eos_token_id
    ids = frozenset(eos if isinstance(eos, list) else [] if eos is None else [eos])
    if not all(type(i) is int for i in ids):
        raise ConfigurationError(f"eos_token_id: must be one integer or a list, got {eos!r:.80}")
    outside = sorted(i for i in ids if not 0 <= i < target.vocab_size)
    if outside:
        raise ConfigurationError(
            f"eos_token_id {outside[0]} is outside the vocabulary of {target.vocab_size}"
        )
    ignored = [
        f"{name}={value}"
        for name in _IGNORED
        if (value := getattr(checkpoint, name, None)) not in (None, False)
    ] + [
        f"{name}={value}"
        for name, neutral in _NEUTRAL.items()
        if (value := getattr(checkpoint, name, None)) not in (None, neutral)
    ]
    limit = min(target.context_limit, config.context_limit_tokens)
    law = config.sampling.describe()
    return GenerationSettings(ids, limit, tuple(ignored), law)

"""What a session accepts: checked before anything is computed."""

from __future__ import annotations

from collections.abc import Sequence

from draftgym.decoder.drafters.base import Drafter
from draftgym.errors import ConfigurationError


def check_request(
    prompt: Sequence[int], max_new_tokens: int, vocabulary: int, context_limit: int
) -> None:
    """Refuse a request that cannot be answered.

    Args:
        prompt: Token ids.
        max_new_tokens: Budget, the first token included.
        vocabulary: Size of the target's vocabulary.
        context_limit: Most committed tokens, the prompt included.

    Raises:
        ValueError: Names the argument and the id or the limit.
    """
    if not prompt:
        raise ValueError("prompt_tokens is empty: at least one token is needed")
    bad = next((token for token in prompt if not 0 <= token < vocabulary), None)
    if bad is not None:
        raise ValueError(f"prompt_tokens holds id {bad}, the vocabulary has {vocabulary}")
    if max_new_tokens < 1:
        raise ValueError(f"max_new_tokens must be at least 1, got {max_new_tokens}")
    if len(prompt) >= context_limit:
        raise ValueError(
            f"prompt_tokens has {len(prompt)} tokens, the context limit is {context_limit}: "
            "no room for a new token"
        )


def check_drawable(drafter: Drafter, max_size: int) -> None:
    """Refuse a drafter whose proposals cannot all be drawn and verified.

    Args:
        drafter: The session's drafter.
        max_size: Most drafted tokens that the session verifies.

    Raises:
        ConfigurationError: It proposes without drawing, grows a tree or drafts more than that.
    """
    if not drafter.draws:
        raise ConfigurationError(
            f"sampling.proposals 'drawn': the {drafter.name} drafter proposes without drawing; "
            "accepted drafters: eagle3, lm"
        )
    if drafter.max_nodes > drafter.max_depth:
        raise ConfigurationError(
            "sampling.proposals 'drawn' drafts a chain; drafter.beam_width must be 1"
        )
    if drafter.max_nodes > max_size:
        raise ConfigurationError(
            f"sampling.proposals 'drawn' verifies every drawn token; drafter.max_size {max_size} "
            f"must be at least drafter.max_depth {drafter.max_depth}"
        )

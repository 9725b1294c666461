"""What a session accepts: checked before anything is computed."""

from __future__ import annotations

from collections.abc import Sequence


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

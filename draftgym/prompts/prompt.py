"""What a prompt is. This module does not know where prompts come from or how they are split."""

from dataclasses import dataclass
from typing import Literal

Split = Literal["drafter", "policy", "validation", "test"]

SPLITS: tuple[Split, ...] = ("drafter", "policy", "validation", "test")
"""All splits, in the fixed order in which hashes are laid out over them."""


@dataclass(frozen=True, slots=True)
class Prompt:
    """One conversation opening, owned by exactly one split.

    Attributes:
        id: Unique name of this text, such as ``code-003-it``.
        request_id: Name of what is asked, shared by all translations, such as ``code-003``.
        domain: Kind of task, such as ``code`` or ``summary``.
        language: Language of the text, such as ``it``.
        turns: User turns in order; at least one, none blank.
        split: The only stage of the project that may read this prompt.
    """

    id: str
    request_id: str
    domain: str
    language: str
    turns: tuple[str, ...]
    split: Split

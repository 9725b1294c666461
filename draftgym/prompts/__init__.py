"""Prompts: what they are, where they come from, and which split owns each."""

from draftgym.prompts.load import PromptSource, load_prompts
from draftgym.prompts.prompt import SPLITS, Prompt, Split
from draftgym.prompts.splits import DEFAULT_WEIGHTS, assign_split, check_disjoint

__all__ = [
    "DEFAULT_WEIGHTS",
    "SPLITS",
    "Prompt",
    "PromptSource",
    "Split",
    "assign_split",
    "check_disjoint",
    "load_prompts",
]

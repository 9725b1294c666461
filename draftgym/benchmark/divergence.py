"""Where two outputs first differ, and whether a near-tie of the target explains it.

Two right programs may order a float sum differently, so where the target's two best logits
all but tie they may choose differently, and everything after that differs for good reason.
Only the first divergence is therefore judged, against the target itself, teacher-forced.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch

from draftgym.decoder.rules import IdenticalRule

NEAR_TIE_GAP = {torch.float32: 1e-4, torch.float64: 1e-4, torch.bfloat16: 0.5, torch.float16: 0.5}
"""Largest top-2 logit gap that rounding may decide, per number type of the models."""


@dataclass(frozen=True, slots=True)
class Divergence:
    """The first difference of one output from the expected one.

    Attributes:
        method: Whose output.
        prompt_id: On which prompt.
        position: Index in the output of the first difference; the tokens before agree.
        expected: Token id of the baseline; None where it had ended.
        got: Token id of the method; None where it had ended.
        top2_gap: The target's largest score less its second at this position.
        near_tie: The gap is one that rounding may decide, so this is no fault.
    """

    method: str
    prompt_id: str
    position: int
    expected: int | None
    got: int | None
    top2_gap: float
    near_tie: bool


class Judge:
    """Judges first divergences by the target's own logits.

    Args:
        model: A Transformers `*ForCausalLM` of the target, in the number type of the outputs.
    """

    def __init__(self, model: Any) -> None:
        self._model = model
        self.near_tie_gap = NEAR_TIE_GAP[model.dtype]

    def compare(
        self,
        method: str,
        prompt_id: str,
        prompt: Sequence[int],
        expected: Sequence[int],
        got: Sequence[int],
        rule: IdenticalRule | None = None,
        sequence: int = 0,
    ) -> Divergence | None:
        """The first divergence of `got` from `expected`, or None.

        Args:
            method: Name of the method that gave `got`.
            prompt_id: Name of the prompt.
            prompt: Token ids of the prompt.
            expected: Output of the baseline.
            got: Output of the method.
            rule: What both took the argmax of; greedy when None.
            sequence: Keys the rule's noise.
        """
        position = first_difference(expected, got)
        if position is None:
            return None
        gap = self.top2_gap([*prompt, *expected[:position]], rule, sequence)
        # A text that ends where the other goes on is a fault of stopping, not of rounding.
        both = position < min(len(expected), len(got))
        return Divergence(
            method=method,
            prompt_id=prompt_id,
            position=position,
            expected=expected[position] if position < len(expected) else None,
            got=got[position] if position < len(got) else None,
            top2_gap=gap,
            near_tie=both and gap <= self.near_tie_gap,
        )

    def top2_gap(
        self, tokens: Sequence[int], rule: IdenticalRule | None = None, sequence: int = 0
    ) -> float:
        """Gap of the two largest scores after `tokens`, in one pass over all of them."""
        ids = torch.tensor([list(tokens)], device=self._model.device)  # [1, tokens]
        with torch.inference_mode():
            scores = self._model(ids, logits_to_keep=1).logits[0, -1:].float()  # [1, vocab]
            if rule is not None:
                rule.start(sequence)
                scores = rule.scores(scores, len(tokens) - 1, None)
        first, second = scores[0].topk(2).values.tolist()
        return float(first - second)


def first_difference(expected: Sequence[int], got: Sequence[int]) -> int | None:
    """Index of the first difference, an early end included; None if equal."""
    for index, (a, b) in enumerate(zip(expected, got, strict=False)):
        if a != b:
            return index
    return None if len(expected) == len(got) else min(len(expected), len(got))


def differing_tokens(expected: Sequence[int], got: Sequence[int]) -> int:
    """Positions at which two outputs differ, missing ones included."""
    same = sum(a == b for a, b in zip(expected, got, strict=False))
    return max(len(expected), len(got)) - same

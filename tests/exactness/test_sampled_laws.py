"""Chi-square of the real sampler, noise included, for every drafter under every sampling rule."""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np
import pytest
import torch

from draftgym.clock import FakeClock
from draftgym.decoder import linear
from draftgym.decoder.config import SamplingConfig
from draftgym.decoder.controllers import RandomController
from draftgym.decoder.rules import new_rule
from draftgym.decoder.sampling.warp import warp
from draftgym.decoder.session import DecoderSession
from tests.tiny import tiny_model, tiny_pair

PROMPT = (3, 5, 7, 3, 5, 7, 3, 5)  # repeats itself, so that look-ups propose
VOCAB, TRIALS, ALPHA = 8, 300, 1e-4
CASES = [
    *(("rejection", "best", drafter, "whole") for drafter in ("hybrid", "eagle3", "lm", "ngram")),
    *(("rejection", "drawn", drafter, "whole") for drafter in ("eagle3", "lm")),
    *(("coupled", "best", drafter, "whole") for drafter in ("hybrid", "eagle3", "lm", "ngram")),
    ("rejection", "best", "hybrid", "truncated"),
    ("rejection", "drawn", "eagle3", "truncated"),
    ("coupled", "best", "lm", "truncated"),
]
WARPS: dict[str, dict[str, Any]] = {
    "whole": {"temperature": 1.0},
    "truncated": {"temperature": 1.2, "top_k": 5, "top_p": 0.9, "min_p": 0.05},
}


def chi_square_p(observed: np.ndarray, expected: np.ndarray) -> float:
    """Probability of a larger chi-square statistic if the law is the expected one.

    Cells expected less than five times are pooled; a cell that is impossible must be empty.
    """
    assert observed[expected == 0].sum() == 0
    often = expected >= 5
    seen = np.append(observed[often], observed[~often].sum())
    wanted = np.append(expected[often], expected[~often].sum())
    seen, wanted = seen[wanted > 0], wanted[wanted > 0]
    statistic = float((((seen - wanted) ** 2) / wanted).sum())
    half = torch.tensor([len(seen) - 1, statistic], dtype=torch.float64) / 2
    return float(torch.special.gammaincc(half[0], half[1]))


@cache
def next_two_law(warped: str) -> np.ndarray:
    """Joint law of the second and third new token, [8, 8], by Transformers' own forward."""
    model, sampling = tiny_model(4, vocab=VOCAB), SamplingConfig(**WARPS[warped])

    def laws(texts: list[tuple[int, ...]]) -> np.ndarray:
        with torch.no_grad():
            logits = model(torch.tensor(texts)).logits[:, -1]
        return warp(logits, sampling).double().exp().numpy()

    ids = range(VOCAB)
    first = laws([PROMPT])[0]  # [8]
    second = laws([(*PROMPT, a) for a in ids])  # [8, 8]
    third = laws([(*PROMPT, a, b) for a in ids for b in ids]).reshape(VOCAB, VOCAB, VOCAB)
    joint = np.einsum("a,ab,abc->bc", first, second, third)
    return joint / joint.sum()


@pytest.mark.parametrize(("rule", "proposals", "drafter", "warped"), CASES)
def test_next_token_and_pair_have_the_targets_law(
    monkeypatch: pytest.MonkeyPatch, rule: Any, proposals: Any, drafter: Any, warped: str
) -> None:
    """Under `coupled` every seed fixes its text; over seeds the texts have the target's law."""
    # Packing weights this small costs a third of the time and changes no law.
    monkeypatch.setattr(linear, "can_pack", lambda weight: False)
    drawn = proposals == "drawn"
    sampling = SamplingConfig(**WARPS[warped], rule=rule, proposals=proposals)
    pair = tiny_pair(
        4, drafter, beam_width=1 if drawn else 2, max_depth=2, eos=frozenset(), sampling=sampling,
        model=tiny_model(4, vocab=VOCAB), draft_layers=1 if drafter == "lm" else None, context=16,
    )  # fmt: skip
    session = DecoderSession(pair, pair.new_drafter(), clock=FakeClock(), max_size=16)
    controller = RandomController(3, 2, (0, 1, 2, 4, 8))
    counts, accepted = np.zeros((VOCAB, VOCAB)), 0
    for trial in range(TRIALS):
        session.rule = new_rule(sampling.model_copy(update={"seed": trial // 2}))
        session.start(PROMPT, 4, sequence=trial % 2)
        accepted += sum(record.accepted for record in session.run(controller))
        counts[session.tokens[1], session.tokens[2]] += 1
    expected = next_two_law(warped) * TRIALS
    assert accepted > TRIALS / 20
    assert chi_square_p(counts.sum(1), expected.sum(1)) > ALPHA
    assert chi_square_p(counts.flatten(), expected.flatten()) > ALPHA

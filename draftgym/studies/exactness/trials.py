"""The laws counted: many trials through the acceptance code of the session.

`draftgym.decoder.rules.chain.correct` decides every row of a drawn chain by itself; a session
reads rows up to the first rejection. Trials are rows of one long chain, so all of them are read
at once. The mistaken ways differ in nothing but the law that a rejected token is replaced from:
proposals, acceptance and the noise of the replacement are the same numbers.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from draftgym.benchmark.acceptance import coupled_hits
from draftgym.decoder.config import SamplingConfig
from draftgym.decoder.rules.chain import correct, residual
from draftgym.decoder.sampling.noise import gumbel, uniform
from draftgym.decoder.sampling.warp import warp
from draftgym.studies.exactness import laws
from draftgym.studies.exactness.laws import Law
from draftgym.studies.known import Known

TRIALS, SEED = 200_000, 20260923
STANDARD_ERRORS = 4.0
ROUNDING = 1e-12
P: Law = (0.5, 0.3, 0.2)
Q: Law = (0.2, 0.5, 0.3)
NARROW_Q: Law = (0.6, 0.4, 0.0)
"""Never drafts the last token, which P knows."""
ALLOWED = (True, True, False)
_DRAFT, _REPLACE, _ACCEPT = 1, 2, 3  # streams, as a rule numbers those of its first round


@dataclass(frozen=True, slots=True)
class Trials:
    """What became of every trial; all of shape [trials].

    Attributes:
        drawn: Proposals.
        kept: Whether the proposal was accepted.
        spare: What the residual replaces it by if it was not.
        restart: What a draw from the whole p, by the same noise, would replace it by.
        late: What the residual, masked by `ALLOWED`, would replace it by.
        matched: Whether the coupled rule, by the proposal's noise, draws the same from p.
    """

    drawn: Tensor
    kept: Tensor
    spare: Tensor
    restart: Tensor
    late: Tensor
    matched: Tensor

    def law(self, replacement: Tensor) -> list[float]:
        """Share of each of three tokens where `replacement` follows a rejection."""
        tokens = torch.where(self.kept, self.drawn, replacement)
        counts = torch.bincount(tokens, minlength=len(P))
        return [count / len(tokens) for count in counts.tolist()]

    @property
    def accepted(self) -> float:
        """Share of proposals that were kept."""
        return float(self.kept.double().mean())


def run_trials(p: Law, q: Law, trials: int = TRIALS, seed: int = SEED) -> Trials:
    """Draw from q, accept and replace.

    Args:
        p: The target's law, at least three tokens for a mask to leave one.
        q: The law of proposals.
        trials: Independent ones.
        seed: Of all noise.
    """
    settings = SamplingConfig(temperature=1.0, seed=seed)
    # Each row stands for a position; `correct` wants one row more, that of the bonus.
    at = torch.arange(trials + 1)
    log_p, log_q = (
        warp(torch.tensor([law], dtype=torch.float64).log(), settings).expand(trials + 1, -1)
        for law in (p, q)
    )

    def noise(stream: int) -> Tensor:
        return gumbel(seed, 0, at, vocab=len(p), stream=stream)

    draft = noise(_DRAFT)
    drawn = (draft + log_q).argmax(-1)[:-1]
    chance = uniform(seed, 0, at[:-1], _ACCEPT)
    kept, spare = correct(log_p, log_q[:-1], drawn, noise(_REPLACE), chance)
    rest = residual(log_p.double().exp(), log_q.double().exp())
    rest[:, ~torch.tensor(ALLOWED[: len(p)])] = 0
    again = noise(_REPLACE)
    return Trials(
        drawn,
        kept,
        spare[:-1],
        (again + log_p).argmax(-1)[:-1],
        (again + rest.log()).argmax(-1)[:-1],
        coupled_hits(log_p, log_q, draft, 1)[:-1],
    )


def known_values(trials: int = TRIALS, seed: int = SEED) -> list[Known]:
    """All values that theory or arithmetic by hand gives, beside what came out.

    Args:
        trials: Of each counted law.
        seed: Of all noise.
    """
    found = run_trials(P, Q, trials, seed)
    same, narrow = run_trials(P, P, trials, seed), run_trials(P, NARROW_Q, trials, seed)
    p2, q2 = (0.8, 0.2), (0.4, 0.6)
    two = run_trials(p2, q2, trials, seed)
    right_masked = laws.masked(P, ALLOWED)
    masked_q = laws.masked(Q, ALLOWED)
    early, late = (run_trials(law, masked_q, trials, seed) for law in (right_masked, P))
    appeared = (narrow.kept & (narrow.drawn == 2)).sum()

    def exact(name: str, expected: float, got: float) -> Known:
        return Known(name, expected, got, ROUNDING)

    def counted(name: str, expected: float, got: float) -> Known:
        error = math.sqrt(expected * (1 - expected) / trials)
        return Known(name, expected, got, STANDARD_ERRORS * error)

    def law(name: str, expected: Law, formula: Law, count: Sequence[float]) -> list[Known]:
        tokens = zip("abc", expected, formula, count, strict=True)
        return [
            known
            for token, want, form, share in tokens
            for known in (
                exact(f"{name}({token})", want, form),
                counted(f"{name}({token}), counted", want, share),
            )
        ]

    return [
        *law("corrected", (0.5, 0.3, 0.2), laws.corrected(P, Q), found.law(found.spare)),
        *law("restarted", (0.35, 0.39, 0.26), laws.restarted(P, Q), found.law(found.restart)),
        exact("TV(restarted, p)", 0.15, laws.total_variation(laws.restarted(P, Q), P)),
        exact("acceptance", 0.7, laws.acceptance(P, Q)),
        counted("acceptance, counted", 0.7, found.accepted),
        exact("two tokens, acceptance", 0.6, laws.acceptance(p2, q2)),
        counted("two tokens, acceptance, counted", 0.6, two.accepted),
        Known("p = q, residuals read", 0, float((~same.kept).sum()), 0),
        Known("q = 0, accepted", 0, float(appeared), 0),
        counted("q = 0, from the residual", 0.2, narrow.law(narrow.spare)[2]),
        *law(
            "masked before", (0.625, 0.375, 0.0),
            laws.corrected(right_masked, masked_q), early.law(early.spare),
        ),
        *law(
            "masked too late", (0.7, 0.3, 0.0),
            laws.masked_too_late(P, Q, ALLOWED), late.law(late.late),
        ),
        exact(
            "TV(masked too late, right)", 0.075,
            laws.total_variation(laws.masked_too_late(P, Q, ALLOWED), right_masked),
        ),
        exact("coupled match", 0.5 + 6 / 31, laws.coupled_match(P, Q)),
        counted("coupled match, counted", 0.5 + 6 / 31, float(found.matched.double().mean())),
        Known("float64 against exact arithmetic", 0, laws.worst_rounding(50, 40, seed), ROUNDING),
    ]  # fmt: skip


def laws_drawn(known: Sequence[Known]) -> Mapping[str, tuple[list[float], list[float]]]:
    """Expected and counted laws, by name, for the figure."""
    by_name = {value.name: value for value in known}
    found = {}
    for name in ("corrected", "restarted", "masked before", "masked too late"):
        values = [by_name[f"{name}({token}), counted"] for token in "abc"]
        found[name] = ([v.expected for v in values], [v.got for v in values])
    return found

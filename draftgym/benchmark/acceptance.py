"""How often the first drafted token is kept when sampling: each rule beside the chain's optimum.

At every position of sampled text it compares the target's law p with the drafter's law q, both
warped. It knows nothing of time; deeper levels are left out, so figures are of one token.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from draftgym.benchmark.runner import Request
from draftgym.benchmark.statistics import Interval, PromptTotals, paired_ratio, time_per_token
from draftgym.clock import Clock
from draftgym.console import Bar
from draftgym.decoder.config import SamplingConfig
from draftgym.decoder.controllers import FixedController
from draftgym.decoder.pair import ModelPair
from draftgym.decoder.rules.base import Verdict
from draftgym.decoder.rules.coupled import CoupledRule
from draftgym.decoder.sampling.noise import gumbel, uniform
from draftgym.decoder.sampling.warp import warp
from draftgym.decoder.session import DecoderSession
from draftgym.decoder.tree import Selection

WIDTHS = (1, 2, 4)
OPTIMUM = "optimum"
_DRAFT_STREAM = 1 << 20  # far from the streams of the measured noise


def optimum(log_p: Tensor, log_q: Tensor) -> Tensor:
    """1 - TV(p, q): no rule keeps a single drawn token more often.

    The rejection rule reaches it: it keeps x with min(1, p(x)/q(x)), so Σ min(p, q) in all.

    Args:
        log_p: Log-probabilities of the target, shape [n, vocabulary].
        log_q: The drafter's, over the same ids.

    Returns:
        float64, shape [n].

    Source: Leviathan et al. 2023 (arXiv 2211.17192), theorem 3.5.
    """
    return torch.minimum(log_p.double().exp(), log_q.double().exp()).sum(-1)


def top_mass(log_p: Tensor, log_q: Tensor, width: int) -> Tensor:
    """p of the drafter's best `width` tokens: how often a draw from p is among the children.

    Args:
        log_p: Log-probabilities of the target, shape [n, vocabulary].
        log_q: The drafter's; what it rules out is not proposed.
        width: Children, `W`.

    Returns:
        float64, shape [n].
    """
    best = log_q.topk(min(width, log_q.shape[-1]), -1)
    mass = log_p.gather(1, best.indices).double().exp()
    return mass.masked_fill(torch.isneginf(best.values), 0).sum(-1)


def coupled_match(log_p: Tensor, log_q: Tensor) -> Tensor:
    """Probability that argmax(log p + G) = argmax(log q + G) with one Gumbel noise G.

    It is Σ_i 1 / Σ_j max(p_j / p_i, q_j / q_i); sorted by p / q, the inner sum is a sum of p over
    the larger ratios and of q over the smaller ones.

    Args:
        log_p: Log-probabilities, shape [n, vocabulary].
        log_q: The same of another law.

    Returns:
        float64, shape [n].

    Source: Daliri et al. 2024 (arXiv 2408.07978).
    """
    log_p, log_q = log_p.double(), log_q.double()
    order = (log_p - log_q).nan_to_num(nan=0.0).argsort(-1)  # NaN: in neither law
    p, q = log_p.gather(1, order).exp(), log_q.gather(1, order).exp()
    p_above = p.flip(-1).cumsum(-1).flip(-1)  # its own included
    q_below = q.cumsum(-1) - q
    both = p * q
    return torch.where(both > 0, both / (q * p_above + p * q_below), 0).sum(-1)


def coupled_hits(log_p: Tensor, log_q: Tensor, noise: Tensor, width: int) -> Tensor:
    """Whether the coupled rule's token is among the drafter's best `width` under the same noise.

    Args:
        log_p: Log-probabilities of the target, shape [n, vocabulary].
        log_q: The drafter's.
        noise: Gumbel noise, shape [n, vocabulary].
        width: Children, `W`.

    Returns:
        Bool, shape [n].
    """
    token = (log_p + noise).argmax(-1, keepdim=True)
    children = (log_q + noise).topk(min(width, log_q.shape[-1]), -1)
    return ((children.indices == token) & ~torch.isneginf(children.values)).any(-1)


def drawn_hits(log_p: Tensor, log_q: Tensor, noise: Tensor, chance: Tensor) -> Tensor:
    """Whether the rejection rule keeps a token drawn from q.

    Args:
        log_p: Log-probabilities of the target, shape [n, vocabulary].
        log_q: The drafter's.
        noise: Gumbel noise that draws from q, shape [n, vocabulary].
        chance: Uniform numbers, shape [n].

    Returns:
        Bool, shape [n].
    """
    token = (log_q + noise).argmax(-1, keepdim=True)
    return chance.log() <= (log_p.gather(1, token) - log_q.gather(1, token))[:, 0]


class ProbeRule:
    """Coupled sampling that keeps both laws of the last round.

    Args:
        sampling: Warping and seed.

    Attributes:
        target_law: Position of the token after the root and its law, [1, vocabulary].
        draft_law: The drafter's law of the last pass from a single node, over target ids.
    """

    name = "probe"
    draws_proposals = False

    def __init__(self, sampling: SamplingConfig) -> None:
        self._sampling, self._rule = sampling, CoupledRule(sampling)
        self.start(0)

    def start(self, sequence: int) -> None:
        """Forget the laws of the last sequence."""
        self._rule.start(sequence)
        self.target_law: tuple[int, Tensor] | None = None
        self.draft_law: tuple[int, Tensor, Tensor | None] | None = None

    def rank(self, logits: Tensor, position: int, ids: Tensor | None) -> Tensor:
        """As `coupled`; the drafter's own law is kept."""
        self.draft_law = (position, warp(logits[:1], self._sampling), ids)
        return self._rule.rank(logits, position, ids)

    def verify(self, logits: Tensor, start: int, chosen: Selection | None) -> Verdict:
        """As `coupled`; the target's own law after the root is kept."""
        self.target_law = (start + 1, warp(logits[:1], self._sampling))
        return self._rule.verify(logits, start, chosen)

    def laws(self) -> tuple[int, Tensor, Tensor] | None:
        """Position, log p and log q, both [1, vocabulary]; None if it was not drafted for."""
        if self.target_law is None or self.draft_law is None:
            return None
        (position, log_p), (drafted, law, ids) = self.target_law, self.draft_law
        if drafted != position:
            return None
        log_q = torch.full_like(log_p, -torch.inf)
        log_q[:, slice(law.shape[-1]) if ids is None else ids] = law
        return position, log_p, log_q


@dataclass(frozen=True, slots=True)
class AcceptanceResult:
    """First-level acceptance with 95% intervals over prompts.

    Attributes:
        positions: Positions compared.
        methods: Share of positions at which the first drafted token is kept.
        over_optimum: The same divided by the optimum, paired by prompt.
    """

    positions: int
    methods: dict[str, Interval]
    over_optimum: dict[str, Interval]


@torch.inference_mode()
def measure(
    pair: ModelPair,
    drafter: str,
    sampling: SamplingConfig,
    requests: Sequence[Request],
    tokens: int,
    *,
    draws: int,
    clock: Clock,
    bar: Bar | None = None,
) -> AcceptanceResult:
    """Sample text plainly and draft one level at each position.

    Args:
        pair: Target and drafter.
        drafter: Name in the registry; it must make draft passes.
        sampling: Warping and seed.
        requests: At least two prompts; one whose answer ends at once is left out.
        tokens: Positions per prompt, fewer where the answer ends.
        draws: Noise samples per position for the figures without a closed form.
        clock: Source of time, which is not used.
        bar: Advanced once per prompt.

    Raises:
        StatisticsError: Fewer than two prompts with an answer.
    """
    rule = ProbeRule(sampling)
    # One level: what is verified is never read, so that the text is plainly sampled.
    session = DecoderSession(
        pair, pair.new_drafter(drafter), clock=clock, max_depth=1, max_size=1, rule=rule
    )
    ids, rows = [], []
    for sequence, request in enumerate(requests):
        # Prefill gives the first token, and nothing is drafted before the last.
        session.start(request.tokens, tokens + 2, sequence)
        found = []
        while not session.finished:
            session.step(FixedController(1, 0))
            laws = rule.laws()
            if laws is not None:
                found.append(compare(*laws, sampling.seed, sequence, draws))
        if found:
            ids.append(request.prompt_id)
            rows.append(found)
        if bar is not None:
            bar.advance()
    return summarise(ids, rows)


def compare(
    position: int, log_p: Tensor, log_q: Tensor, seed: int, sequence: int, draws: int
) -> dict[str, float]:
    """Acceptance of every method at one position.

    Args:
        position: Index in the sequence of the token.
        log_p: The target's law, shape [1, vocabulary].
        log_q: The drafter's.
        seed: Of the noise, which the text has not seen.
        sequence: Keys the noise.
        draws: Noise samples.
    """
    at, vocabulary = torch.tensor([position], device=log_p.device), log_p.shape[-1]
    sums: dict[str, float] = defaultdict(float)
    for stream in range(1, draws + 1):  # the text used stream 0
        noise = gumbel(seed, sequence, at, vocab=vocabulary, stream=stream)
        for width in WIDTHS:
            hit = coupled_hits(log_p, log_q, noise, width)
            sums[f"coupled_tree_w{width}_realised"] += float(hit) / draws
        noise = gumbel(seed, sequence, at, vocab=vocabulary, stream=stream + _DRAFT_STREAM)
        chance = uniform(seed, sequence, at, stream)
        hit = drawn_hits(log_p, log_q, noise, chance)
        sums["rejection_chain_realised"] += float(hit) / draws
    best = float(optimum(log_p, log_q))
    return {
        OPTIMUM: best,
        "rejection_chain": best,
        "coupled_chain": float(coupled_match(log_p, log_q)),
        **{f"rejection_tree_w{width}": float(top_mass(log_p, log_q, width)) for width in WIDTHS},
        **sums,
    }


def summarise(
    prompt_ids: Sequence[str], rows: Sequence[Sequence[dict[str, float]]]
) -> AcceptanceResult:
    """Mean over positions with intervals over prompts.

    Args:
        prompt_ids: Unique ids.
        rows: Per prompt and position, what `compare` returns; no prompt is without positions.

    Raises:
        StatisticsError: Fewer than two prompts.
    """
    counts = np.array([len(found) for found in rows], np.float64)

    def totals(name: str) -> PromptTotals:
        # The same statistic as time per token: a sum over a count, resampled by prompt.
        sums = np.array([sum(row[name] for row in found) for found in rows], np.float64)
        return PromptTotals(tuple(prompt_ids), sums, counts)

    names = list(rows[0][0]) if rows else [OPTIMUM]
    best = totals(OPTIMUM)
    means = {name: time_per_token(totals(name)) for name in names}
    # With few prompts the interval is Student's of the logarithm, which knows of no largest share.
    methods = {
        name: Interval(mean.estimate, mean.low, min(mean.high, 1.0)) for name, mean in means.items()
    }
    ratios: dict[str, Interval] = {
        name: paired_ratio(totals(name), best) for name in names if name != OPTIMUM
    }
    return AcceptanceResult(int(counts.sum()), methods, ratios)

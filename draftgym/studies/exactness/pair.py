"""One rule at one temperature on a model pair: what it decides, against what theory says.

It runs the session itself. It knows neither the figures nor which results are kept.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, cast

import numpy as np
import torch

from draftgym.benchmark.runner import Request
from draftgym.benchmark.statistics import (
    Interval,
    PromptTotals,
    Ratio,
    paired_ratio,
    time_per_token,
)
from draftgym.clock import Clock
from draftgym.console import Bar
from draftgym.decoder.config import SamplingConfig
from draftgym.decoder.controllers import FixedController
from draftgym.decoder.pair import ModelPair
from draftgym.decoder.rules import new_rule
from draftgym.decoder.rules.base import DrawingRule
from draftgym.decoder.sampling.warp import warp
from draftgym.decoder.session import DecoderSession
from draftgym.decoder.tree import Selection
from draftgym.errors import ConfigurationError
from draftgym.studies.exactness.chi_square import ChiSquare, of_many_laws, of_one_law
from draftgym.studies.exactness.witness import CELLS, Decided, Moment, Witness

RULES: dict[str, dict[str, Any]] = {
    "chain_rejection": {"rule": "rejection", "proposals": "drawn"},
    "rejection": {"rule": "rejection"},
    "coupled": {"rule": "coupled"},
}
"""Sampling settings by the rule's name in the registry."""
_REPEATS = 1 << 20  # sequence ids of repeated draws begin here: no text's


@dataclass(frozen=True, slots=True)
class Cell:
    """What one rule decided at one temperature.

    Attributes:
        rule: Its name in the registry.
        temperature: Of target and drafter.
        clusters: Request of each prompt, [prompts]; translations share one.
        positions: Positions with a proposal, [prompts].
        accepted: Proposals kept, [prompts].
        computed: Sum of their probabilities, [prompts].
        variance: Of all decisions, Σ c (1 - c).
        text: Emitted tokens against the laws of their positions.
        restarted: The same had every rejection been followed by a draw from p; None where
            nothing is corrected.
        restart_distance: Mean total variation of that law from p.
        repeated: Many draws at a few positions against the laws there.
    """

    rule: str
    temperature: float
    clusters: list[str]
    positions: list[int]
    accepted: list[int]
    computed: list[float]
    variance: float
    text: ChiSquare
    restarted: ChiSquare | None
    restart_distance: float
    repeated: ChiSquare

    @property
    def deviation(self) -> float:
        """(accepted - computed) in standard errors.

        Differences have mean 0 given the text before them, so their variances add up, however
        positions of one text depend on each other.
        """
        apart = sum(self.accepted) - sum(self.computed)
        return apart / math.sqrt(self.variance) if self.variance > 1e-9 else 0.0

    @property
    def measured_share(self) -> Interval:
        """Share of proposals kept, resampled by request."""
        found = time_per_token(self._totals(self.accepted))
        return Interval(found.estimate, found.low, min(found.high, 1.0))

    @property
    def computed_share(self) -> float:
        """Mean probability of that."""
        return sum(self.computed) / sum(self.positions)

    @property
    def over_computed(self) -> Ratio:
        """Measured over computed, paired and resampled by request."""
        return paired_ratio(self._totals(self.accepted), self._totals(self.computed))

    def _totals(self, values: Sequence[float]) -> PromptTotals:
        sums: dict[str, list[float]] = defaultdict(lambda: [0.0, 0.0])
        for cluster, value, count in zip(self.clusters, values, self.positions, strict=True):
            sums[cluster][0] += value
            sums[cluster][1] += count
        table = np.array(list(sums.values()), np.float64)  # [requests, 2]
        return PromptTotals(tuple(sums), table[:, 0], table[:, 1])


@torch.inference_mode()
def measure_cell(
    pair: ModelPair,
    rule: str,
    sampling: SamplingConfig,
    requests: Sequence[Request],
    clusters: Mapping[str, str],
    tokens: int,
    *,
    depth: int,
    repeats: int,
    moments: int,
    clock: Clock,
    bar: Bar | None = None,
) -> Cell:
    """Decode prompts in rounds of one depth, then repeat draws at single positions.

    Args:
        pair: Target and drafter; the drafter's beam is one node wide.
        rule: Of `RULES`.
        sampling: Warping, seed and that rule.
        requests: Prompts, encoded.
        clusters: Request of each prompt id.
        tokens: New tokens per prompt, at most.
        depth: Draft passes and proposals of a round.
        repeats: Draws at each repeated position.
        moments: Prompts, of the first ones, whose last round is repeated.
        clock: Source of time, which is not used.
        bar: Advanced once per prompt.

    Raises:
        ConfigurationError: No prompt's answer is long enough for a proposal.
    """
    witness = Witness(sampling)
    session = DecoderSession(
        pair, pair.new_drafter(), clock=clock, max_depth=depth, max_size=depth, rule=witness
    )
    ids, notes, repeated = [], [], ChiSquare(0.0, 0, 0)
    for request in requests:
        session.start(request.tokens, tokens, request.sequence)
        session.run(FixedController(depth, depth))
        if witness.decided:
            ids.append(clusters[request.prompt_id])
            notes.append(witness.decided)
        if moments > 0 and witness.moment is not None:
            moments -= 1
            repeated += repeat_draws(witness.moment, sampling, repeats)
        if bar is not None:
            bar.advance()
    if not notes:
        raise ConfigurationError(f"tokens: no answer of {tokens} tokens has a proposal")
    return summarise(rule, sampling.temperature, ids, notes, repeated)


def repeat_draws(moment: Moment, sampling: SamplingConfig, repeats: int) -> ChiSquare:
    """Propose one token and decide, many times over with fresh noise, at one position.

    Args:
        moment: Logits of drafter and target there.
        sampling: Rule, warping and seed.
        repeats: Draws.
    """
    rule, device = new_rule(sampling), moment.target.device
    law = warp(moment.target[:1], sampling)[0].double().exp().cpu().numpy()
    observed = np.zeros_like(law)
    pair_of = torch.arange(2, device=device)
    for k in range(repeats):
        rule.start(_REPEATS + k)
        scores = rule.rank(moment.draft, moment.start + 1, moment.ids)
        if rule.draws_proposals:
            pick = cast(DrawingRule, rule).draw(scores, moment.start + 1, moment.ids)
        else:
            pick = scores.argmax(-1)
        proposal = pick if moment.ids is None else moment.ids[pick]
        chosen = Selection(
            tokens=torch.cat((torch.zeros_like(proposal), proposal)),
            parents=torch.zeros_like(pair_of),
            depths=pair_of,
            visible=pair_of[:, None] >= pair_of,
            deepest=1,
        )
        observed[rule.verify(moment.target, moment.start, chosen).tokens[0]] += 1
    return of_one_law(observed, law)


def summarise(
    rule: str,
    temperature: float,
    clusters: list[str],
    notes: Sequence[Sequence[Decided]],
    repeated: ChiSquare,
) -> Cell:
    """Sums of the notes of every prompt.

    Args:
        rule: Its name.
        temperature: Of target and drafter.
        clusters: Request of each prompt.
        notes: Per prompt and round.
        repeated: See `Cell`.
    """
    rounds = [decided for prompt in notes for decided in prompt]
    chances = np.concatenate([decided.computed for decided in rounds])
    laws = np.concatenate([decided.cells for decided in rounds])

    def against_laws(found: Iterable[Sequence[int]]) -> ChiSquare:
        return of_many_laws(np.eye(CELLS)[np.concatenate(list(found))], laws)

    return Cell(
        rule,
        temperature,
        clusters,
        [sum(len(decided.kept) for decided in prompt) for prompt in notes],
        [sum(sum(decided.kept) for decided in prompt) for prompt in notes],
        [sum(sum(decided.computed) for decided in prompt) for prompt in notes],
        float((chances * (1 - chances)).clip(0).sum()),
        against_laws(decided.emitted for decided in rounds),
        against_laws(decided.restarted for decided in rounds) if rounds[0].restarted else None,
        float(np.concatenate([decided.distance for decided in rounds]).mean()),
        repeated,
    )

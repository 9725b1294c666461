"""What chains keep at every position of real texts, in order and with the order destroyed.

Two logs are kept for each text. `chain` is what a draft of K tokens keeps: from the second token on
the drafter reads its own features. `hits` says whether the first drafted token of a position is
right, which the drafter made with the target's features; a run of hits is what such a drafter would
keep, were it given them throughout. The two begin with the same mean.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.lib.stride_tricks import sliding_window_view
from numpy.typing import NDArray

from draftgym.benchmark.resampling import Resampling
from draftgym.benchmark.statistics import RESAMPLES, SIGNIFICANCE, Interval, StatisticsError
from draftgym.costs.times import Float64Array
from draftgym.theory.chain_cost import expected_tokens
from draftgym.theory.rounds import Positions
from draftgym.traces.trace import IntArray, Trace

SHUFFLES = 200


@dataclass(frozen=True, eq=False)
class Text:
    """Acceptance at the positions of one text after which K drafted tokens fit.

    Attributes:
        request: What is asked; translations share it.
        chain: Tokens kept of a chain of K, [m].
        hits: Whether a single drafted token is kept, [m + K - 1].
    """

    request: str
    chain: IntArray
    hits: NDArray[np.bool_]


def texts_of(trace: Trace) -> list[Text]:
    """Read the logs off a trace of a chain drafter; texts too short for a draft are left out.

    Args:
        trace: Of beam width 1, so that the j-th token of a path is the j-th drafted one.

    Raises:
        ValueError: The trace is of trees.
    """
    deepest = trace.shape.max_depth
    if trace.shape.beam_width != 1:
        raise ValueError(f"beam_width: a chain's is 1, the trace has {trace.shape.beam_width}")
    left, first, found = Positions.of(trace).left, trace.first, []
    for entry, begin, end in zip(trace.sequences, first, first[1:], strict=False):
        rows = np.arange(begin, end)
        count = int((left[rows] > deepest).sum())
        if count:
            whole, single = rows[:count], rows[: count + deepest - 1]
            chain = trace.accepted(whole, *(np.full(count, deepest),) * 2)
            hits = trace.accepted(single, *(np.ones(len(single), np.int64),) * 2) > 0
            found.append(Text(entry.request_id or entry.prompt_id, chain, hits))
    return found


def runs(hits: NDArray[np.bool_], longest: int) -> IntArray:
    """Hits in a row from every position, at most `longest`, [m + longest - 1] to [m]."""
    windows = sliding_window_view(hits, longest)
    found: IntArray = np.logical_and.accumulate(windows, axis=1).sum(1, dtype=np.int64)
    return found


def walk(kept: IntArray, gamma: int) -> tuple[int, int]:
    """Tokens and rounds of one text decoded with drafts of γ, the cut last round left out.

    Args:
        kept: Drafted tokens that a draft would keep at each position, [m].
        gamma: Drafted tokens of every round.
    """
    place = rounds = 0
    while place < len(kept):
        place += min(int(kept[place]), gamma) + 1
        rounds += 1
    return place, rounds


@dataclass(frozen=True, eq=False)
class Clusters:
    """Sums by request, and the draws of requests that intervals come from.

    Args:
        requests: Of each text, [texts].
        seed: Of the draws.

    Raises:
        StatisticsError: Fewer than two requests.
    """

    requests: Sequence[str]
    seed: int = 0

    def __post_init__(self) -> None:
        if len(set(self.requests)) < 2:
            raise StatisticsError(
                "an interval needs texts of at least 2 requests that are longer than a draft"
            )

    def ratio(self, above: Float64Array, below: Float64Array, most: float = np.inf) -> Interval:
        """Σ above / Σ below with its interval; both [texts].

        Args:
            above: Summed over texts.
            below: The same; positive in sum for every request.
            most: No limit lies beyond.
        """
        estimate = float(above.sum() / below.sum())
        return self.interval(estimate, self.draws(above, below), most)

    def draws(self, above: Float64Array, below: Float64Array) -> Float64Array:
        """Σ above / Σ below of every draw."""
        return self._resampling().paces(self._sum(above), self._sum(below))

    def interval(self, estimate: float, draws: Float64Array, most: float = np.inf) -> Interval:
        """Limits of a figure from its draws."""
        low, high = self._resampling().limits(estimate, draws)
        return Interval(estimate, low, min(high, most))

    def _resampling(self) -> Resampling:
        count = len(set(self.requests))
        return Resampling([np.arange(count)], RESAMPLES, self.seed, SIGNIFICANCE)

    def _sum(self, values: Float64Array) -> Float64Array:
        _, place = np.unique(self.requests, return_inverse=True)
        sums: Float64Array = np.bincount(place, values).astype(np.float64)
        return sums


@dataclass(frozen=True, eq=False)
class Joint:
    """Joint prefix acceptance beside powers of the mean, all by k from 1, [K].

    Attributes:
        positions: Where drafts may begin.
        requests: Clusters of the intervals.
        chain: P(the first k drafted tokens are all accepted).
        hits: P(k positions in a row are hits).
        power: The mean to the power of k.
        chain_over_power: Tokens of a round of γ = k, over what the constant mean promises.
        hits_over_power: The same of runs of hits.
    """

    positions: int
    requests: int
    chain: tuple[Interval, ...]
    hits: tuple[Interval, ...]
    power: tuple[Interval, ...]
    chain_over_power: tuple[Interval, ...]
    hits_over_power: tuple[Interval, ...]

    @property
    def mean(self) -> float:
        """Acceptance of the first drafted token, α."""
        return self.chain[0].estimate

    @property
    def prefix(self) -> Float64Array:
        """Estimates of `chain`, [K]."""
        return np.array([share.estimate for share in self.chain])


def joint_acceptance(texts: Sequence[Text], longest: int, seed: int = 0) -> Joint:
    """Measure both logs at the same positions.

    Args:
        texts: With K = `longest`.
        longest: Drafted tokens, K.
        seed: Of the intervals.

    Raises:
        StatisticsError: Texts of fewer than two requests.
    """
    clusters = Clusters([text.request for text in texts], seed)
    rows = np.array([len(text.chain) for text in texts], np.float64)
    lengths = np.arange(1, longest + 1)
    chain = np.array([(text.chain[:, None] >= lengths).sum(0) for text in texts], np.float64)
    hits = np.array(
        [(runs(text.hits, longest)[:, None] >= lengths).sum(0) for text in texts], np.float64
    )
    alphas = clusters.draws(chain[:, 0], rows)  # [draws]
    alpha = float(chain[:, 0].sum() / rows.sum())

    def over_power(counts: Float64Array, gamma: int) -> Interval:
        tokens = rows + counts[:, :gamma].sum(1)
        promised = (alphas[:, None] ** np.arange(gamma + 1)).sum(1)
        estimate = float(tokens.sum() / rows.sum()) / expected_tokens(alpha, gamma)
        return clusters.interval(estimate, clusters.draws(tokens, rows) / promised)

    return Joint(
        positions=int(rows.sum()),
        requests=len(set(clusters.requests)),
        chain=tuple(clusters.ratio(column, rows, 1.0) for column in chain.T),
        hits=tuple(clusters.ratio(column, rows, 1.0) for column in hits.T),
        power=tuple(clusters.interval(alpha**k, alphas**k, 1.0) for k in lengths),
        chain_over_power=tuple(over_power(chain, int(k)) for k in lengths),
        hits_over_power=tuple(over_power(hits, int(k)) for k in lengths),
    )


@dataclass(frozen=True, eq=False)
class EqualMeans:
    """Tokens per round of the same hits in other orders, by γ.

    Attributes:
        mean: Share of hits, the same in every order.
        gamma: Drafted tokens of every round.
        in_order: As the texts have them.
        within_texts: Shuffled within each text: the mean over shuffles, and what 95% of them span.
        over_texts: Shuffled over all texts.
        formula: What the constant mean promises.
    """

    mean: float
    gamma: tuple[int, ...]
    in_order: tuple[float, ...]
    within_texts: tuple[Interval, ...]
    over_texts: tuple[Interval, ...]
    formula: tuple[float, ...]


def equal_means(
    texts: Sequence[Text], lengths: Sequence[int], longest: int, seed: int = 0
) -> EqualMeans:
    """Equal mean acceptance, different tokens per round.

    Args:
        texts: With K = `longest`.
        lengths: Drafted tokens γ of each walk.
        longest: Drafted tokens, K.
        seed: Of the shuffles.
    """
    generator = np.random.default_rng(seed)
    hits = [text.hits for text in texts]
    cuts = np.cumsum([len(part) for part in hits])[:-1]
    pool = np.concatenate(hits)
    mean = float(pool.mean())

    def tokens(order: Sequence[NDArray[np.bool_]]) -> list[float]:
        kept = [runs(part, longest) for part in order]
        sums = [np.sum([walk(part, gamma) for part in kept], axis=0) for gamma in lengths]
        return [float(emitted / rounds) for emitted, rounds in sums]

    def spread(shuffle: Callable[[], Sequence[NDArray[np.bool_]]]) -> tuple[Interval, ...]:
        drawn = np.array([tokens(shuffle()) for _ in range(SHUFFLES)])  # [shuffles, lengths]
        low, high = np.quantile(drawn, (SIGNIFICANCE / 2, 1 - SIGNIFICANCE / 2), axis=0)
        values = zip(drawn.mean(0).tolist(), low.tolist(), high.tolist(), strict=True)
        return tuple(Interval(*three) for three in values)

    return EqualMeans(
        mean=mean,
        gamma=tuple(lengths),
        in_order=tuple(tokens(hits)),
        within_texts=spread(lambda: [generator.permutation(part) for part in hits]),
        over_texts=spread(lambda: np.split(generator.permutation(pool), cuts)),
        formula=tuple(expected_tokens(mean, gamma) for gamma in lengths),
    )


def rounds_walked(texts: Sequence[Text], longest: int, seed: int = 0) -> tuple[Interval, ...]:
    """Tokens per round of real chains from round to round, the texts' cut ends left out.

    Args:
        texts: The logs.
        longest: Drafted tokens, K.
        seed: Of the intervals.

    Returns:
        By γ from 0, [K + 1].
    """
    clusters = Clusters([text.request for text in texts], seed)
    found = []
    for gamma in range(longest + 1):
        tokens, rounds = np.array([walk(text.chain, gamma) for text in texts], np.float64).T
        found.append(clusters.ratio(tokens, rounds))
    return tuple(found)

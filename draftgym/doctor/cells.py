"""What fixed cells take on the same texts, and what a user may expect of the best one.

It does not know how the seconds were found: predicted on a trace, or measured.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Container, Mapping, Sequence
from dataclasses import dataclass
from itertools import product

import numpy as np
from numpy.typing import ArrayLike, NDArray

from draftgym.benchmark.runner import Measurement, Sample
from draftgym.benchmark.statistics import Interval, PromptTotals, paired_ratio
from draftgym.benchmark.summary import PLAIN, emitting_prompts
from draftgym.costs.times import Float64Array, Times, Work
from draftgym.runtime.timing import DecisionSeconds
from draftgym.theory.fixed import fixed
from draftgym.theory.rounds import Positions
from draftgym.traces.trace import Trace

Setting = tuple[int, int]
"""Depth and size."""

POSITIONS_SHOWN = 8
"""Drafted tokens whose acceptance is told."""

T_95 = 3.18
"""Student's t of three degrees of freedom: costs are measured in four parts."""


@dataclass(frozen=True, eq=False)
class Cells:
    """Seconds of fixed cells, each request's texts together.

    Attributes:
        cells: Those that can draft something; sizes of 1 and more, [k].
        seconds: Of all rounds, [k, requests].
        drafting: Of these, in draft passes, [k, requests].
        checking: Of these, what checking drafted tokens adds to the target's passes, [k, requests].
        plain: Plain decoding of the same texts, [requests].
        tokens: Emitted by rounds, positive, [requests].
        requests: Names.
        domains: Of each.
    """

    cells: tuple[Setting, ...]
    seconds: Float64Array
    drafting: Float64Array
    checking: Float64Array
    plain: Float64Array
    tokens: Float64Array
    requests: tuple[str, ...]
    domains: tuple[str, ...]

    @property
    def best(self) -> int:
        """Index of the cheapest cell."""
        return int(self.seconds.sum(1).argmin())

    def speedup(self, error: float = 0.0) -> Interval:
        """Of the best cell over plain decoding, for each request chosen on the others.

        Args:
            error: 95% half-width, in logarithms, of what is the same for all requests: the costs,
                the prediction.

        Returns:
            With 95% limits.

        Raises:
            StatisticsError: Fewer than two requests.
        """
        others = self.seconds.sum(1, keepdims=True) - self.seconds
        tuned = self.seconds[others.argmin(0), np.arange(len(self.requests))]
        found = paired_ratio(
            PromptTotals(self.requests, self.plain, self.tokens),
            PromptTotals(self.requests, tuned, self.tokens),
            dict(zip(self.requests, self.domains, strict=True)),
        )
        below, above = (
            math.hypot(math.log(limit / found.estimate), error) for limit in found.limits
        )
        return Interval(
            found.estimate, found.estimate * math.exp(-below), found.estimate * math.exp(above)
        )

    def over_plain(self, seconds: Float64Array, depths: Container[int] | None = None) -> float:
        """Speed of the cheapest cell over plain decoding; 0 without a cell.

        Args:
            seconds: Of every cell, [k, requests].
            depths: Of the cells that count; all when None.
        """
        mine = [i for i, (depth, _) in enumerate(self.cells) if depths is None or depth in depths]
        return float(self.plain.sum() / seconds[mine].sum(1).min()) if mine else 0.0

    @property
    def pass_limit(self) -> float | None:
        """Draft passes pay up to this multiple of what they cost; None without a pass.

        Below 0 not even free passes pay. The alternative is plain decoding or, if it is faster, the
        best cell without passes.
        """
        drafts = np.array([depth > 0 for depth, _ in self.cells])
        spent = self.drafting.sum(1)
        drafts &= spent > 0
        if not drafts.any():
            return None
        totals = self.seconds.sum(1)
        free = [total for total, (depth, _) in zip(totals, self.cells, strict=True) if depth == 0]
        otherwise = min([float(self.plain.sum()), *free])
        return float(((otherwise - totals + spent)[drafts] / spent[drafts]).max())

    def by_domain(self) -> dict[str, float]:
        """Speed of the best cell over plain decoding in each domain, slowest first."""
        domains = np.array(self.domains)
        speeds = {
            str(domain): float(
                self.plain[domains == domain].sum()
                / self.seconds[self.best, domains == domain].sum()
            )
            for domain in np.unique(domains)
        }
        return dict(sorted(speeds.items(), key=lambda entry: entry[1]))


def traced_cells(trace: Trace, times: Times) -> Cells:
    """Predict every cell of a trace's depths and sizes.

    Args:
        trace: Positions and what each setting accepts there.
        times: Mean seconds of work.

    Raises:
        ValueError: Every text ended with its first token.
    """
    used = trace.lengths > 1
    if not used.any():
        raise ValueError("every text ended with its first token, so there is no round to judge")
    drafted = trace.nodes.max(0) > 0
    drafted[-1] = True  # also where nothing is ever drafted there is an answer
    cells = tuple(
        (depth, size)
        for depth, size in product(range(trace.shape.max_depth + 1), trace.shape.size_grid)
        if size > 0 and drafted[depth]
    )
    entries = [entry for entry, mine in zip(trace.sequences, used, strict=True) if mine]
    names, index = np.unique([e.request_id or e.prompt_id for e in entries], return_inverse=True)

    def by_request(values: Float64Array) -> Float64Array:
        return np.bincount(index, values[used], len(names)).astype(np.float64)

    def of(costs: Times) -> Float64Array:
        return np.stack([by_request(fixed(trace, costs, *cell)) for cell in cells])

    seconds = of(times)
    return Cells(
        cells,
        seconds,
        drafting=seconds - of(_Free(times, ("first", "later"))),
        checking=seconds - of(_Free(times, ("verify",))),
        plain=by_request(fixed(trace, times, 0, 0)),
        tokens=by_request((trace.lengths - 1).astype(np.float64)),
        requests=tuple(names.tolist()),
        domains=tuple(entries[int(np.argmax(index == i))].domain for i in range(len(names))),
    )


def measured_cells(
    samples: Sequence[Sample], cells: Mapping[str, Setting], domains: Mapping[str, str]
) -> Cells:
    """Cells that were measured beside plain decoding.

    Args:
        samples: Of plain decoding and every cell, one per prompt.
        cells: By method.
        domains: By prompt, each another request.
    """
    prompts = sorted(emitting_prompts(samples))
    found = {(s.method, s.prompt_id): s.measurement for s in samples}
    plain = [found[PLAIN, prompt] for prompt in prompts]
    steps = [record.verify_seconds for m in plain for record in m.records]
    step = sum(steps) / len(steps)

    def of(measure: Callable[[Measurement], float]) -> Float64Array:
        return np.array([[measure(found[name, prompt]) for prompt in prompts] for name in cells])

    return Cells(
        tuple(cells.values()),
        seconds=of(lambda m: m.seconds),
        drafting=of(lambda m: sum(record.draft_seconds for record in m.records)),
        checking=of(lambda m: sum(record.verify_seconds - step for record in m.records)),
        plain=np.array([m.seconds for m in plain]),
        tokens=np.array([m.emitted for m in plain], np.float64),
        requests=tuple(prompts),
        domains=tuple(domains[prompt] for prompt in prompts),
    )


def acceptance_by_position(trace: Trace, depth: int) -> list[float]:
    """Share of positions at which the first 1, 2, ... drafted tokens are all right.

    Of the deepest trees, verified at the largest size. Positions that the end of a text cuts
    short are left out where there are others.

    Args:
        trace: Positions.
        depth: Draft passes.
    """
    shown = min(POSITIONS_SHOWN, trace.shape.path)
    whole = np.flatnonzero(Positions.of(trace).left > shown)
    rows = whole if len(whole) else np.arange(len(trace))
    most = np.full(len(rows), trace.shape.size_grid[-1])
    accepted = trace.accepted(rows, np.full(len(rows), depth), most)
    return [float((accepted >= place).mean()) for place in range(1, shown + 1)]


def cost_error(trace: Trace, parts: Sequence[Times], cell: Setting) -> float:
    """95% half-width of a cell's log speedup by the chance in measured costs.

    Args:
        trace: Positions.
        parts: Costs from four separate parts of a measurement.
        cell: Depth and size.
    """
    logs = [
        math.log(fixed(trace, part, 0, 0).sum() / fixed(trace, part, *cell).sum()) for part in parts
    ]
    return T_95 * float(np.std(logs, ddof=1)) / math.sqrt(len(logs))


@dataclass(frozen=True, slots=True)
class _Free:
    """Times in which passes cost nothing, or checking costs what a plain step does."""

    times: Times
    kinds: tuple[Work, ...]

    @property
    def decision_seconds(self) -> DecisionSeconds:
        return self.times.decision_seconds

    def mean(self, kind: Work, units: ArrayLike, context: ArrayLike) -> Float64Array:
        if kind not in self.kinds:
            return self.times.mean(kind, units, context)
        none: NDArray[np.int64] = np.zeros_like(np.broadcast_arrays(units, context)[0])
        return self.times.mean(kind, none, context) if kind == "verify" else none.astype(np.float64)

    def draw(
        self, kind: Work, units: ArrayLike, context: ArrayLike, rng: np.random.Generator
    ) -> Float64Array:
        return self.mean(kind, units, context)

"""Learns a threshold table: a greedy policy tree on the gains of every (depth, size).

On a trace each round start has a known gain for every cell, so a leaf's value is the largest
column sum, without propensities: the cost-sensitive tree of policy learning (Athey and Wager,
"Policy Learning With Observational Data", Econometrica 2021) where every outcome is seen, grown
greedily, best split first. A gain is the time saved until the request ends if the best fixed cell
takes over. Each table is replayed to get the rounds that the next one is learned on. How many
splits to keep is cross-validated over prompts.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass

import numpy as np

from draftgym.batch_features import BatchFeatures
from draftgym.batch_state import IntArray
from draftgym.costs.times import Float64Array, Times
from draftgym.features import FeatureLayout
from draftgym.runtime.table import TableNode, TableRow, TableSplit, ThresholdTable
from draftgym.state import MeasuredCosts
from draftgym.storage import plain
from draftgym.theory.bounds import fold_of
from draftgym.theory.fixed import best_fixed
from draftgym.theory.held import HeldCells, held_cells
from draftgym.theory.to_go import TimeToGo
from draftgym.traces.judge import judge_rounds
from draftgym.traces.replay import ReplayBatch
from draftgym.traces.trace import Trace
from policies.export import PolicyCard
from policies.pretraining import hold_out

FEATURES = (
    "best_path_probability", "expected_accepted", "accepted_1", "accepted_2", "accepted_3",
    "mean_accepted", "mean_drafted", "mean_verified", "last_fully_accepted", "uningested",
    "remaining_near", "context_fraction",
)  # fmt: skip
"""What may be asked at the start of a round, as far as the layout has it."""

ROWS = 8
TURNS = 4
THRESHOLDS = 32
LEAST_SHARE = 0.02
"""Rows that fewer of the rounds reach would be fitted to chance."""
NEAR_BEST = 0.002
"""The shortest table this close to the best one on held-out prompts is taken: it is to be read."""


@dataclass(frozen=True, eq=False)
class _Grown:
    """A node; `order` says when it was split, so that earlier splits alone are a tree, too."""

    row: TableRow
    order: int | None = None
    feature: str = ""
    at_most: float = 0.0
    sides: tuple[int, int] = (0, 0)


def learn_table(
    trace: Trace,
    times: Times,
    layout: FeatureLayout,
    costs: MeasuredCosts,
    *,
    rows: int = ROWS,
    card: PolicyCard | None = None,
) -> ThresholdTable:
    """Learn a table from a trace; nothing about it is random.

    Args:
        trace: Of the policy split.
        times: Mean seconds of work; a decision takes as long as one of the depth.
        layout: Observations.
        costs: Cost ratios of the machine.
        rows: Most rows of the table.
        card: Origin of the table.

    Raises:
        ValueError: The prompts are too few to hold some out.
    """
    spent = np.zeros(rows)
    for fold in range(len(np.unique(fold_of(trace)))):
        ours, theirs = hold_out(trace, fold)
        spent += [
            judge_rounds(theirs, times, layout, TableChoice(table), costs).sum()
            for table in nested_tables(ours, times, layout, costs, rows)
        ]
    splits = int((spent <= (1 + NEAR_BEST) * spent.min()).argmax())
    best = nested_tables(trace, times, layout, costs, rows)[splits]
    known = card or PolicyCard({}, {}, {})
    training = {
        "method": "greedy policy tree",
        "costs": asdict(costs),
        "law": known.law,
        "trace_positions": len(trace),
        "held_out_ms_per_token_by_splits": 1e3 * spent / _tokens(trace),
    }
    return ThresholdTable(layout, best.root, known.pair, known.hardware, plain(training))


def nested_tables(
    trace: Trace, times: Times, layout: FeatureLayout, costs: MeasuredCosts, rows: int
) -> list[ThresholdTable]:
    """Tables of up to so many rows, each with one split more; arguments as `learn_table`."""
    cell = best_fixed(trace, times)
    to_go = TimeToGo(trace, times, *cell)
    start = ThresholdTable(layout, TableRow(*cell))
    watched = _Watched(start, held_cells(trace, times), to_go, times)
    for _ in range(TURNS):
        judge_rounds(trace, times, layout, watched, costs)
        values, gains = (np.concatenate(part) for part in watched.seen)
        grown = grow(values, gains, watched.held.cells, rows, watched.questions)
        watched.table = ThresholdTable(layout, _tree(grown, 0, rows))
    return [ThresholdTable(layout, _tree(grown, 0, splits)) for splits in range(rows)]


def _tokens(trace: Trace) -> float:
    return float((trace.lengths - 1).clip(min=0).sum())


class TableChoice:
    """Follows a table on a trace.

    Args:
        table: Checked table.
    """

    def __init__(self, table: ThresholdTable) -> None:
        self._table, self._features = table, BatchFeatures(table.layout)

    def __call__(self, batch: ReplayBatch, who: IntArray) -> tuple[IntArray, IntArray]:
        """Depth and size of open rounds, [k] each."""
        return self._table.decide_many(self._features.depth_raw(batch.rounds(who)))


class _Watched:
    """Follows a table and keeps every round start: features, and each cell's gain."""

    def __init__(
        self, table: ThresholdTable, held: HeldCells, to_go: TimeToGo, times: Times
    ) -> None:
        self.table, self.held, self._to_go, self._times = table, held, to_go, times
        self._features, names = BatchFeatures(table.layout), table.layout.depth_names
        self.questions = [name for name in FEATURES if name in names]
        self._columns = [names.index(name) for name in self.questions]
        self.seen: tuple[list[Float64Array], ...] = ([], [])

    def __call__(self, batch: ReplayBatch, who: IntArray) -> tuple[IntArray, IntArray]:
        raw = self._features.depth_raw(batch.rounds(who))
        rows, unread = batch.row[who], batch.uningested[who]
        _, seconds = self.held.outcome(rows, self._times, unread, batch.context[who])
        gains = self.held.saved(self._to_go, rows, unread, seconds)
        for kept, part in zip(self.seen, (raw[:, self._columns], gains), strict=True):
            kept.append(part)
        return self.table.decide_many(raw)


def grow(
    values: Float64Array, gains: Float64Array, cells: IntArray, rows: int, names: Sequence[str]
) -> list[_Grown]:
    """A tree of at most so many rows, split where the most is gained, best split first.

    Args:
        values: What may be asked of each round, [n, questions].
        gains: What each cell would gain there, [n, cells].
        cells: Depth and size, [cells, 2].
        rows: Most leaves.
        names: Of the questions.

    Returns:
        Nodes, the root first.
    """
    least = max(1, int(LEAST_SHARE * len(values)))
    nodes = [_Grown(_best_row(gains, cells))]
    parts = [np.arange(len(values))]
    splits = [_best_split(values, gains, least)]
    for order in range(rows - 1):
        index = max(range(len(nodes)), key=lambda i: splits[i][0])
        gain, question, at_most = splits[index]
        if gain <= 0:
            break
        low = values[parts[index], question] <= at_most
        sides = (len(nodes), len(nodes) + 1)
        nodes[index] = _Grown(nodes[index].row, order, names[question], at_most, sides)
        splits[index] = _NO_SPLIT
        for part in (parts[index][low], parts[index][~low]):
            parts.append(part)
            nodes.append(_Grown(_best_row(gains[part], cells)))
            splits.append(_best_split(values[part], gains[part], least))
    return nodes


_NO_SPLIT = (0.0, 0, 0.0)


def _best_split(values: Float64Array, gains: Float64Array, least: int) -> tuple[float, int, float]:
    """What the best question gains, which it is, and its threshold; no gain if there is none."""
    best, total = _NO_SPLIT, gains.sum(0)
    # A gain within rounding is none.
    floor = total.max() + 1e-9 * np.abs(gains).sum(0).max()
    for question in range(values.shape[1]):
        column = values[:, question]
        cuts = np.unique(np.quantile(column, np.linspace(0, 1, THRESHOLDS + 2)[1:-1]))
        bins = np.searchsorted(cuts, column)  # x <= cuts[i] from bin i down
        inside = np.arange(len(cuts))[:, None] >= bins  # [cuts, n]
        low = inside.astype(np.float64) @ gains  # [cuts, cells]
        count = inside.sum(1)
        reached = low.max(1) + (total - low).max(1)
        reached[(count < least) | (len(column) - count < least)] = -np.inf
        cut = int(reached.argmax())
        if reached[cut] - floor > best[0]:
            best = (float(reached[cut] - floor), question, float(cuts[cut]))
    return best


def _best_row(gains: Float64Array, cells: IntArray) -> TableRow:
    depth, size = cells[int(gains.sum(0).argmax())].tolist()
    return TableRow(depth, size)


def _tree(nodes: list[_Grown], index: int, splits: int) -> TableNode:
    """The tree of the first so many splits, without questions whose answer does not matter."""
    node = nodes[index]
    if node.order is None or node.order >= splits:
        return node.row
    yes, no = (_tree(nodes, side, splits) for side in node.sides)
    return yes if yes == no else TableSplit(node.feature, node.at_most, yes, no)

"""The information bound: what could be gained by whoever sees the whole deepest tree.

A network predicts from everything that is known at a position (every level of the deepest tree,
the accepted lengths of earlier positions as far as the text has confirmed them, the room left) how
many drafted tokens each (depth, size) would keep. Each round then takes the setting with the most
saved time. It is cross-fitted: a sequence is decided by a network that saw only other prompts. A
policy sees less: it has not drafted the levels that it decides about. So this estimates from
above what causal policies can reach; as an estimate it may fall short of it.
"""

from __future__ import annotations

from itertools import product

import numpy as np
import torch
from torch import Tensor, nn

from draftgym.costs.times import Float64Array, Times
from draftgym.state import Float32Array
from draftgym.theory.follow import follow
from draftgym.theory.rounds import Positions, play
from draftgym.traces.trace import IntArray, Trace

HISTORY_POSITIONS = 8
LEAST_SCORE = -16.0
HIDDEN = 128
EPOCHS = 60
PATIENCE = 6
BATCH = 64
LEARNING_RATE = 1e-3
WEIGHT_DECAY = 1e-3
PACE_STEPS = 6
_ROWS_AT_A_TIME = 4096


def information_bound(
    trace: Trace, times: Times, folds: IntArray, *, more: Trace | None = None, seed: int = 0
) -> Float64Array:
    """Seconds under the cross-fitted decisions.

    Args:
        trace: Positions.
        times: Mean seconds of work; deciding costs nothing.
        folds: Fold of each sequence, [sequences]; translations of a prompt belong together.
        more: Positions of yet other prompts, which all networks learn from.
        seed: Of the networks.

    Returns:
        Seconds of all rounds of each sequence, [sequences].

    Raises:
        ValueError: If there are fewer than three folds, or the traces are of different shapes.
    """
    return informed(trace, times, expected_kept(trace, folds, more=more, seed=seed))


def expected_kept(
    trace: Trace, folds: IntArray, *, more: Trace | None = None, seed: int = 0
) -> Float64Array:
    """Drafted tokens that each cell of `all_cells` is expected to keep, [n, cells].

    What costs time is of no concern here, so the same numbers serve any times. Arguments and
    errors as `information_bound`.
    """
    if more is not None and more.shape != trace.shape:
        raise ValueError(f"more: its shape is {more.shape}, expected {trace.shape}")
    cells = all_cells(trace)
    extra = None if more is None else (known(more), kept(more, cells))
    return cross_fitted(known(trace), kept(trace, cells), folds[trace.sequence], seed, extra)


def all_cells(trace: Trace) -> IntArray:
    """Every depth with every size of the grid, [cells, 2]."""
    return np.array(list(product(range(trace.shape.max_depth + 1), trace.shape.size_grid)))


def informed(trace: Trace, times: Times, expected: Float64Array) -> Float64Array:
    """Seconds of whoever decides each round by what cells are expected to keep.

    Args:
        trace: Positions.
        times: Mean seconds of work; deciding costs nothing.
        expected: From `expected_kept`, [n, cells].

    Returns:
        Seconds of all rounds of each sequence, [sequences].
    """
    cells = all_cells(trace)
    positions = Positions.of(trace)
    emitted = np.minimum(expected.clip(min=0.0) + 1.0, np.maximum(positions.room, 1)[:, None])
    seconds = _seconds(trace, positions, times, cells)
    drafts = np.minimum(cells[:, 0], trace.depth_limit[:, None]) > 0  # [n, cells]

    def under(pace: float) -> Float64Array:
        def choose(rows: IntArray, unread: IntArray) -> tuple[IntArray, IntArray]:
            saved = pace * emitted[rows] - seconds[rows]
            if drafts.any():
                first = times.mean("first", unread, positions.context[rows])
                saved = saved - drafts[rows] * first[:, None]
            best = saved.argmax(1)
            return cells[best, 0], cells[best, 1]

        return follow(trace, times, choose)

    # Dinkelbach: the decisions that are best against a pace reach a better one. Only one number
    # is shared by all folds.
    tokens = float((trace.lengths - 1).clip(min=0).sum())
    best = follow(trace, times, lambda rows, _: (np.zeros_like(rows), np.zeros_like(rows)))
    for _ in range(PACE_STEPS):
        reached = under(float(best.sum()) / tokens)
        if reached.sum() >= best.sum():
            break
        best = reached
    return best


def known(trace: Trace) -> Float32Array:
    """Everything that may be known at each position, [n, features]."""
    n = len(trace)
    positions = Positions.of(trace)
    deepest, widest = trace.shape.max_depth, np.iinfo(np.int16).max
    rows = np.arange(n)
    most = trace.accepted(rows, np.full(n, deepest), np.full(n, widest))
    free = trace.accepted(rows, np.zeros(n, np.int64), np.full(n, widest))
    past = []
    for age in range(1, HISTORY_POSITIONS + 1):
        before = np.maximum(rows - age, 0)
        same = (rows >= age) & (trace.sequence[before] == trace.sequence)
        # Of a tree `age` tokens ago the text has confirmed no more than `age` tokens.
        for lengths in (most, free):
            past.append(np.where(same, np.minimum(lengths[before], age), -1.0))
    columns = (
        np.maximum(trace.frontier, LEAST_SCORE).reshape(n, -1),
        trace.entropy,
        trace.margin,
        trace.total,
        trace.partial.reshape(n, -1),
        trace.nodes,
        np.minimum(positions.room, 4 * (deepest + 1))[:, None],
        np.log2(positions.context)[:, None],
        np.stack(past, axis=1),
    )
    return np.concatenate(columns, axis=1).astype(np.float32)


def kept(trace: Trace, cells: IntArray) -> Float32Array:
    """Drafted tokens that each cell keeps at each position, [n, cells]."""
    n = len(trace)
    rows = np.arange(n)
    columns = [trace.accepted(rows, np.full(n, d), np.full(n, v)) for d, v in cells]
    return np.stack(columns, axis=1).astype(np.float32)


def cross_fitted(
    inputs: Float32Array,
    targets: Float32Array,
    folds: IntArray,
    seed: int,
    extra: tuple[Float32Array, Float32Array] | None = None,
) -> Float64Array:
    """Predictions for every row by a network that never saw a row of its fold.

    Args:
        inputs: Shape [n, features].
        targets: Shape [n, outputs].
        folds: Fold of each row, [n].
        seed: Of the networks.
        extra: Inputs and targets that all networks learn from.

    Returns:
        Means of the targets given the inputs, [n, outputs].

    Raises:
        ValueError: If there are fewer than three folds: one is predicted, one stops the training.
    """
    names = np.unique(folds)
    if len(names) < 3:
        raise ValueError(f"folds: cross-fitting needs three or more, got {len(names)}")
    predicted = np.zeros(targets.shape)
    for turn, fold in enumerate(names):
        held = names[(turn + 1) % len(names)]
        train = ~np.isin(folds, (fold, held))
        x, y = inputs[train], targets[train]
        if extra is not None:
            x, y = np.concatenate((x, extra[0])), np.concatenate((y, extra[1]))
        mean, spread = x.mean(0), x.std(0) + 1e-3

        def scaled(
            rows: Float32Array, mean: Float32Array = mean, spread: Float32Array = spread
        ) -> Tensor:
            return torch.from_numpy(((rows - mean) / spread).clip(-8.0, 8.0))

        stop_by = (scaled(inputs[folds == held]), torch.from_numpy(targets[folds == held]))
        network = _fit(scaled(x), torch.from_numpy(y), *stop_by, seed + turn)
        with torch.inference_mode():
            predicted[folds == fold] = network(scaled(inputs[folds == fold])).numpy()
    return predicted


def _fit(x: Tensor, y: Tensor, x_held: Tensor, y_held: Tensor, seed: int) -> nn.Sequential:
    """Least squares, stopped where the held-out rows stop improving."""
    generator = torch.Generator().manual_seed(seed)
    network = nn.Sequential(
        nn.Linear(x.shape[1], HIDDEN), nn.GELU(),
        nn.Linear(HIDDEN, HIDDEN), nn.GELU(),
        nn.Linear(HIDDEN, y.shape[1]),
    )  # fmt: skip
    for layer in network:
        if isinstance(layer, nn.Linear):
            nn.init.xavier_uniform_(layer.weight, generator=generator)
            nn.init.zeros_(layer.bias)
    optimiser = torch.optim.AdamW(network.parameters(), lr=LEARNING_RATE, weight_decay=WEIGHT_DECAY)
    best, best_loss, since = network.state_dict(), float("inf"), 0
    for _ in range(EPOCHS):
        for batch in torch.randperm(len(x), generator=generator).split(BATCH):
            loss = nn.functional.mse_loss(network(x[batch]), y[batch])
            optimiser.zero_grad()
            loss.backward()
            optimiser.step()
        with torch.inference_mode():
            held_loss = float(nn.functional.mse_loss(network(x_held), y_held))
        since += 1
        if held_loss < best_loss:
            best = {name: value.clone() for name, value in network.state_dict().items()}
            best_loss, since = held_loss, 0
        if since >= PATIENCE:
            break
    network.load_state_dict(best)
    return network


def _seconds(trace: Trace, positions: Positions, times: Times, cells: IntArray) -> Float64Array:
    """Mean seconds of every cell at every position, the first pass left out, [n, cells]."""
    blocks = [
        play(trace, positions, times, rows[:, None], cells[:, 0], cells[:, 1]).seconds
        for start in range(0, len(trace), _ROWS_AT_A_TIME)
        for rows in [np.arange(start, min(start + _ROWS_AT_A_TIME, len(trace)))]
    ]
    return np.concatenate(blocks)

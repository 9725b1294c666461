"""The information bound: what could be gained by whoever sees the whole deepest tree.

A network predicts from everything that is known at a position (every level of the deepest tree,
the accepted lengths of earlier positions as far as the text has confirmed them, the room left) how
much time each (depth, size) would save until the end of the text if the best fixed cell went on.
Each round then takes the setting that saves the most. It is cross-fitted: a sequence is decided
by networks that saw only other prompts. A policy sees less: it has not drafted the levels that it
decides about. So this estimates from above what causal policies can reach; as an estimate it may
fall short of it.
"""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor, nn

from draftgym.costs.times import Float64Array, Times
from draftgym.state import Float32Array
from draftgym.theory.fixed import best_fixed
from draftgym.theory.follow import follow
from draftgym.theory.held import all_cells, held_cells
from draftgym.theory.rounds import Positions
from draftgym.theory.to_go import TimeToGo
from draftgym.traces.trace import IntArray, Trace

HISTORY_POSITIONS = 8
LEAST_SCORE = -16.0
HIDDEN = 128
EPOCHS = 60
PATIENCE = 6
BATCH = 64
MEMBERS = 3
"""Networks whose predictions are averaged: what a position saves is noisy."""
COARSE_EPOCHS = 8
LEARNING_RATE = 1e-3
WEIGHT_DECAY = 1e-3
_SEEDS = 1000


def information_bound(
    trace: Trace,
    times: Times,
    folds: IntArray,
    *,
    more: Trace | None = None,
    seed: int = 0,
    coarse: bool = False,
) -> Float64Array:
    """Seconds under the cross-fitted decisions.

    Args:
        trace: Positions.
        times: Mean seconds of work; deciding costs nothing.
        folds: Fold of each sequence, [sequences]; translations of a prompt belong together.
        more: Positions of yet other prompts, which all networks learn from.
        seed: Of the networks.
        coarse: One network and few epochs: a sixth of the work, and a bound that is lower.

    Returns:
        Seconds of all rounds of each sequence, [sequences].

    Raises:
        ValueError: If there are fewer than three folds, or the traces are of different shapes.
    """
    if more is not None and more.shape != trace.shape:
        raise ValueError(f"more: its shape is {more.shape}, expected {trace.shape}")
    cell = best_fixed(trace, times)
    inputs, targets = known(trace), _savings(trace, times, cell)
    extra = None if more is None else (known(more), _savings(more, times, cell))
    fold = folds[trace.sequence]
    count, epochs = (1, min(COARSE_EPOCHS, EPOCHS)) if coarse else (MEMBERS, EPOCHS)
    members = (
        cross_fitted(inputs, targets, fold, seed + _SEEDS * member, extra, epochs=epochs)
        for member in range(count)
    )
    expected, cells = np.mean(list(members), axis=0), all_cells(trace)

    def choose(rows: IntArray, unread: IntArray) -> tuple[IntArray, IntArray]:
        best = cells[expected[rows].argmax(1)]
        return best[:, 0], best[:, 1]

    return follow(trace, times, choose)


def _savings(trace: Trace, times: Times, cell: tuple[int, int]) -> Float32Array:
    """What every cell saves until the text ends if the given one takes over, in plain steps."""
    held, to_go = held_cells(trace, times), TimeToGo(trace, times, *cell)
    rows, context = np.arange(len(trace)), Positions.of(trace).context
    # What is not read now must be read later at about the same price: how much does not matter.
    unread = np.ones_like(rows)
    _, seconds = held.outcome(rows, times, unread, context)
    saved = held.saved(to_go, rows, unread, seconds)  # [n, cells]
    # How lucky the fixed cell is at a position helps no cell against another.
    saved -= saved.mean(1, keepdims=True)
    return (saved / times.mean("verify", 0, context)[:, None]).astype(np.float32)


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


def cross_fitted(
    inputs: Float32Array,
    targets: Float32Array,
    folds: IntArray,
    seed: int,
    extra: tuple[Float32Array, Float32Array] | None = None,
    *,
    epochs: int | None = None,
) -> Float64Array:
    """Predictions for every row by a network that never saw a row of its fold.

    Args:
        inputs: Shape [n, features].
        targets: Shape [n, outputs].
        folds: Fold of each row, [n].
        seed: Of the networks.
        extra: Inputs and targets that all networks learn from.
        epochs: Most of them; `EPOCHS` when None.

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
        network = _fit(scaled(x), torch.from_numpy(y), *stop_by, seed + turn, epochs or EPOCHS)
        with torch.inference_mode():
            predicted[folds == fold] = network(scaled(inputs[folds == fold])).numpy()
    return predicted


def _fit(
    x: Tensor, y: Tensor, x_held: Tensor, y_held: Tensor, seed: int, epochs: int
) -> nn.Sequential:
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
    for _ in range(epochs):
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

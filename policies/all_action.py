"""Both policies from a trace, by the exact gradient over all decisions of a round.

A trace tells what every (depth, size) at a position keeps, and the table what it costs. So the
expected reward of a round under both stochastic policies is a sum, not a sample: with S_d what
stopping after d passes is worth and c_d the price of one more,

    S_d = sum_V size(V | d) (tokens(d, V) pace - seconds(V)),    V_D = S_D,
    V_d = stop(d) S_d + draft(d) (V_{d+1} - c_d)

is differentiable in both networks at once. Only where rounds start, and with which history, is
sampled, by playing the present policies. The credit horizon is one round, as in PPO's rewards.

Source: the recursion of optimal stopping, with the expected-gradient estimator of "Mean Actor
Critic" (Allen et al. 2017, arXiv 1709.00503) in place of sampled actions.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
import torch
from torch import Tensor, nn

from draftgym.batch_features import BatchFeatures
from draftgym.batch_state import IntArray
from draftgym.costs.times import Float64Array, Times, Work
from draftgym.features import FeatureLayout
from draftgym.runtime import Normaliser, PolicyHead
from draftgym.state import Float32Array, MeasuredCosts
from draftgym.traces.judge import MeanTimes
from draftgym.traces.replay import ReplayBatch
from draftgym.traces.trace import Trace

WARM_UP_ROUNDS = 24
PACE_MEMORY = 0.98


@dataclass(frozen=True, slots=True)
class AllActionConfig:
    """How long and how fast.

    Attributes:
        steps: Gradient steps, each over one round of every request.
        requests: Requests played at once.
        learning_rate: Adam's, falling to a tenth along a cosine.
        entropy: Weight of the policies' entropy at first, in plain steps; it falls to 0.
        hidden: Units per tanh layer.
        clip: Bound of a normalised feature.
        minimum_variance: Floor of a feature's variance.
        seed: Of networks, prompts and sampled decisions.
    """

    steps: int = 1500
    requests: int = 256
    learning_rate: float = 2e-3
    entropy: float = 0.02
    hidden: tuple[int, ...] = (64, 64)
    clip: float = 10.0
    minimum_variance: float = 1e-3
    seed: int = 0


@dataclass(frozen=True, eq=False)
class _Round:
    """All that can happen in one round of each request; levels beyond the limit are not read.

    Attributes:
        depth_inputs: Observations of the depth decision, [levels, m, features].
        size_inputs: Of the size decision, [levels, m, features].
        tokens: Emitted when drafting stops there with each size, [levels, m, sizes].
        seconds: Of such a round, decisions included and passes left out, [levels, m, sizes].
        price: Of the pass that leaves a level, [levels - 1, m].
        limit: Deepest level, [m].
    """

    depth_inputs: Float32Array
    size_inputs: Float32Array
    tokens: Float64Array
    seconds: Float64Array
    price: Float64Array
    limit: IntArray


class AllActionTrainer:
    """Learns depth and size together.

    Args:
        trace: Of the training prompts.
        times: Mean seconds of work and of decisions.
        layout: Observations and actions.
        costs: Cost ratios that policies are shown.
        config: How long and how fast.

    Raises:
        ValueError: The trace does not fit the layout.
    """

    def __init__(
        self,
        trace: Trace,
        times: Times,
        layout: FeatureLayout,
        costs: MeasuredCosts,
        config: AllActionConfig,
    ) -> None:
        self._trace, self._times, self._config = trace, times, config
        self._features, self._grid = BatchFeatures(layout), np.array(layout.size_grid)
        self._random = np.random.default_rng(config.seed)
        self._batch = ReplayBatch(
            trace, MeanTimes(times), layout, config.requests, costs=costs, seed=config.seed
        )
        self._who = np.arange(config.requests)
        self._usable = np.flatnonzero(trace.lengths > 1)
        self._levels = trace.shape.max_depth + 1
        self._seconds, self._tokens = 0.0, 0.0
        generator = torch.Generator().manual_seed(config.seed)
        self.depth = _network(len(layout.depth_names), config.hidden, 2, generator)
        self.size = _network(len(layout.size_names), config.hidden, len(self._grid), generator)
        self._restart(self._who)
        self._normalisers = self._first_statistics()
        self._plain = self._seconds / self._tokens  # the scale of rewards: some seconds a token

    @property
    def pace(self) -> float:
        """Recent seconds per token."""
        return self._seconds / self._tokens

    def heads(self) -> dict[str, PolicyHead]:
        """Both networks, as an exported policy holds them."""
        return {
            name: _head(network, normaliser)
            for name, network, normaliser in zip(
                ("depth", "size"), (self.depth, self.size), self._normalisers, strict=True
            )
        }

    def train(self, steps: int) -> float:
        """Make gradient steps; call it again to go on.

        Returns:
            Mean expected gain of a round over the last tenth of them, seconds.
        """
        gains = [self._step() for _ in range(steps)]
        return float(np.mean(gains[-max(1, steps // 10) :]))

    def _step(self) -> float:
        """One round of every request: learn from all decisions, then take sampled ones."""
        if not hasattr(self, "_optimiser"):
            parameters = [*self.depth.parameters(), *self.size.parameters()]
            self._optimiser = torch.optim.Adam(parameters, lr=self._config.learning_rate)
            self._schedule = torch.optim.lr_scheduler.CosineAnnealingLR(
                self._optimiser, self._config.steps, self._config.learning_rate / 10
            )
        played = self._look()
        depth = torch.log_softmax(self.depth(self._scaled(0, played.depth_inputs)), -1)
        size = torch.log_softmax(self.size(self._scaled(1, played.size_inputs)), -1)
        gain = torch.from_numpy(self.pace * played.tokens - played.seconds).float()
        value = expected_gain(
            depth, size, gain, torch.from_numpy(played.price).float(),
            torch.from_numpy(played.limit),
        )  # fmt: skip
        left = 1.0 - self._schedule.last_epoch / self._config.steps
        entropy = _entropy(depth).mean() + _entropy(size).mean()
        loss = -value.mean() / self._plain - max(left, 0.0) * self._config.entropy * entropy
        self._optimiser.zero_grad()
        loss.backward()
        self._optimiser.step()
        if self._schedule.last_epoch < self._config.steps:
            self._schedule.step()
        self._act(played, depth.detach().exp().numpy(), size.detach().exp().numpy())
        return float(value.detach().mean())

    def _look(self) -> _Round:
        """Everything that every decision of the open rounds would see and bring."""
        batch, who = self._batch, self._who
        limit, context = batch.max_depth.copy(), batch.context
        decision = self._times.decision_seconds
        depth_inputs, size_inputs, tokens, seconds, prices = [], [], [], [], []
        fixed = self._times.mean("propose", 0, context) + self._times.mean("commit", 0, context)
        left = self._trace.lengths[batch.sequence] - batch.emitted
        for level in range(self._levels):
            batch.depth[:] = np.minimum(level, limit)
            rounds = batch.rounds(slice(None))
            depth_inputs.append(self._features.depth_observation(rounds))
            size_inputs.append(self._features.size_observation(rounds))
            nodes = batch.nodes(who)
            kept = np.minimum(self._grid, np.minimum(nodes, batch.max_size)[:, None])  # [m, V]
            rows = np.repeat(batch.row, len(self._grid))
            made = np.repeat(batch.depth, len(self._grid))
            accepted = self._trace.accepted(rows, made, kept.ravel()).reshape(kept.shape)
            tokens.append(np.minimum(accepted + 1, left[:, None]))
            verify = self._times.mean("verify", kept, context[:, None])
            asked = (decision.size * (nodes > 0))[:, None]
            seconds.append(verify + asked + fixed[:, None])
            if level + 1 < self._levels:
                kind: Work = "later" if level else "first"
                prices.append(self._times.mean(kind, batch.uningested, context))
        batch.depth[:] = 0
        price = np.stack(prices) if prices else np.zeros((0, len(who)))
        # Asked before every pass that may be made, whatever is answered.
        questions = decision.depth * (np.arange(self._levels)[:, None] < limit)
        return _Round(
            np.stack(depth_inputs),
            np.stack(size_inputs),
            np.stack(tokens).astype(np.float64),
            np.stack(seconds) + np.cumsum(questions, 0)[:, :, None],
            price,
            limit,
        )

    def _act(self, played: _Round, depth: Float32Array, size: Float32Array) -> None:
        """Take one sampled decision of each kind and play the rounds to their ends."""
        stop = np.zeros(len(self._who), np.int64)
        going = played.limit > 0
        for level in range(self._levels - 1):
            going &= (level < played.limit) & (self._random.random(len(stop)) < depth[level, :, 1])
            stop[going] = level + 1
        law = size[stop, self._who]
        draws = self._random.random((len(stop), 1))
        action = np.minimum((law.cumsum(1) < draws).sum(1), len(self._grid) - 1)
        self._play(played, stop, action)

    def _play(self, played: _Round, stop: IntArray, action: IntArray) -> None:
        """Close the rounds at these levels and sizes, count them, open the next ones."""
        who = self._who
        passes = np.concatenate((np.zeros((1, len(who))), np.cumsum(played.price, 0)))
        seconds = played.seconds[stop, who, action] + passes[stop, who]
        self._seconds = PACE_MEMORY * self._seconds + float(seconds.sum())
        self._tokens = PACE_MEMORY * self._tokens + float(played.tokens[stop, who, action].sum())
        self._batch.depth[:] = stop
        self._batch.close(who, self._grid[action])
        self._restart(np.flatnonzero(self._batch.finished))

    def _restart(self, ended: IntArray) -> None:
        """New requests for ended ones, drawn anew each time; then every round is opened."""
        if len(ended):
            self._batch.start(ended, self._random.choice(self._usable, len(ended)))
        self._batch.open(self._who)

    def _first_statistics(self) -> tuple[Normaliser, Normaliser]:
        """Observations under random decisions; the pace starts there, too."""
        seen: tuple[list[Float32Array], list[Float32Array]] = ([], [])
        for _ in range(WARM_UP_ROUNDS):
            played = self._look()
            inside = np.arange(self._levels)[:, None] <= played.limit
            seen[0].append(played.depth_inputs[inside])
            seen[1].append(played.size_inputs[inside])
            stop = self._random.integers(0, played.limit + 1)
            self._play(played, stop, self._random.integers(0, len(self._grid), len(stop)))
        first, second = (_statistics(np.concatenate(part), self._config) for part in seen)
        return first, second

    def _scaled(self, which: int, inputs: Float32Array) -> Tensor:
        return torch.from_numpy(self._normalisers[which](inputs))


def expected_gain(
    depth: Tensor, size: Tensor, gain: Tensor, price: Tensor, limit: Tensor
) -> Tensor:
    """Expected reward of a round under both policies.

    Args:
        depth: Log-probabilities of stop and draft, [levels, m, 2].
        size: Log-probabilities of the sizes, [levels, m, sizes].
        gain: What each size brings after each number of passes, [levels, m, sizes].
        price: Of the pass that leaves each level, [levels - 1, m].
        limit: Deepest level that each round may reach, [m].

    Returns:
        Shape [m].
    """
    stopping = (size.exp() * gain).sum(-1)  # [levels, m]
    law = depth.exp()
    value = stopping[-1]
    for level in range(len(stopping) - 2, -1, -1):
        going = law[level, :, 0] * stopping[level] + law[level, :, 1] * (value - price[level])
        value = torch.where(level < limit, going, stopping[level])
    return value


def _network(
    inputs: int, hidden: Sequence[int], actions: int, generator: torch.Generator
) -> nn.Sequential:
    layers: list[nn.Module] = []
    for width, out in pairwise((inputs, *hidden)):
        layers += [nn.Linear(width, out), nn.Tanh()]
    layers.append(nn.Linear(hidden[-1] if hidden else inputs, actions))
    for layer in layers:
        if isinstance(layer, nn.Linear):
            last = layer is layers[-1]
            nn.init.orthogonal_(layer.weight, 0.01 if last else 2**0.5, generator=generator)
            nn.init.zeros_(layer.bias)
    return nn.Sequential(*layers)


def _head(network: nn.Sequential, normaliser: Normaliser) -> PolicyHead:
    linear = [layer for layer in network if isinstance(layer, nn.Linear)]
    return PolicyHead(
        weights=tuple(layer.weight.detach().numpy().copy() for layer in linear),
        biases=tuple(layer.bias.detach().numpy().copy() for layer in linear),
        normaliser=normaliser,
    )


def _statistics(observations: Float32Array, config: AllActionConfig) -> Normaliser:
    variance = np.maximum(observations.var(0, dtype=np.float64), config.minimum_variance)
    mean = observations.mean(0, dtype=np.float64)
    return Normaliser(mean.astype(np.float32), variance.astype(np.float32), config.clip)


def _entropy(log_law: Tensor) -> Tensor:
    return -(log_law.exp() * log_law).sum(-1)

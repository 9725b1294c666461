"""Both policies from a trace, by the exact gradient over all decisions of a round.

A trace tells what every (depth, size) at a position keeps, and the table what it costs. So the
expected reward of a round under both stochastic policies is a sum, not a sample: with R the reward
of a round of so many tokens and seconds, and S_d what stopping after d passes is worth,

    S_d = sum_V size(V | d) R(tokens(d, V), seconds(d, V)),    V_D = S_D,
    V_d = stop(d) S_d + draft(d) V_{d+1}

is differentiable in both networks at once. Only where rounds start, and with which history, is
sampled, by playing the present policies. By default R is the time that the round saves until the
request ends if the best fixed cell takes over; other rewards look at the round alone.

Source: the recursion of optimal stopping, with the expected-gradient estimator of "Mean Actor
Critic" (Allen et al. 2017, arXiv 1709.00503) in place of sampled actions.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from draftgym.batch_features import BatchFeatures
from draftgym.batch_state import IntArray
from draftgym.costs.times import Float64Array, Times, Work
from draftgym.features import FeatureLayout
from draftgym.runtime import DecisionSeconds, Normaliser, PolicyHead
from draftgym.state import Float32Array, MeasuredCosts
from draftgym.theory.fixed import best_fixed
from draftgym.theory.to_go import TimeToGo
from draftgym.traces.judge import MeanTimes
from draftgym.traces.replay import ReplayBatch
from draftgym.traces.trace import Trace
from policies.config import PolicyName
from policies.feature_groups import untold
from policies.objectives import Objective, round_reward
from policies.small_network import entropy, exported, seen_entries, statistics, tanh_network

WARM_UP_ROUNDS = 24
PACE_MEMORY = 0.98
CERTAIN = -1e4
"""Log-probability of what a fixed decision never does: not -inf, whose entropy would be NaN."""


@dataclass(frozen=True, slots=True)
class AllActionConfig:
    """How long and how fast.

    Attributes:
        steps: Gradient steps, each over one round of every request.
        requests: Requests played at once.
        learning_rate: Adam's, falling to a tenth along a cosine.
        entropy: Weight of the policies' entropy at first, in plain steps; it falls to 0.
        hidden: Units per tanh layer.
        clip: Bound of a normalised feature: what lies beyond all that was learned from is
            taken for the edge of it, as a threshold would.
        minimum_variance: Floor of a feature's variance.
        seed: Of networks, prompts and sampled decisions.
        reward: What a round is worth.
        unseen: Names of observations that the networks are not shown; None stands for those that
            `policies.feature_groups.untold` leaves out.
        fixed_depth: Draft passes where the depth is not learned.
        fixed_size: Verification size, one of the grid, where the size is not learned.
        deepest: Draft passes after which the depth is not asked; absent, the layout's most
            (`policies.pretraining` chooses it on held-out prompts).
    """

    steps: int = 600
    requests: int = 256
    learning_rate: float = 2e-3
    entropy: float = 0.02
    hidden: tuple[int, ...] = (64, 64)
    clip: float = 5.0
    minimum_variance: float = 1e-3
    seed: int = 0
    reward: Objective = "time_to_go"
    unseen: tuple[str, ...] | None = None
    fixed_depth: int | None = None
    fixed_size: int | None = None
    deepest: int | None = None

    def hidden_from(self, layout: FeatureLayout) -> frozenset[str]:
        """Names of observations that the networks are not shown.

        Raises:
            ValueError: A name is no observation of the layout.
        """
        unseen = untold(layout) if self.unseen is None else self.unseen
        unknown = sorted(set(unseen) - set(layout.size_names))
        if unknown:
            raise ValueError(f"unseen: {unknown[0]!r} is no observation")
        return frozenset(unseen)

    def charged(self, decisions: DecisionSeconds) -> DecisionSeconds:
        """Seconds of decisions, those that are fixed being free."""
        return DecisionSeconds(
            decisions.depth if self.fixed_depth is None else 0.0,
            decisions.size if self.fixed_size is None else 0.0,
        )


@dataclass(frozen=True, eq=False)
class _Round:
    """All that can happen in one round of each request; levels beyond the limit are not read.

    Attributes:
        depth_inputs: Observations of the depth decision, [levels, m, features].
        size_inputs: Of the size decision, [levels, m, features].
        tokens: Emitted when drafting stops there with each size, [levels, m, sizes].
        seconds: Of such a round, passes and decisions included, [levels, m, sizes].
        limit: Deepest level, [m].
    """

    depth_inputs: Float32Array
    size_inputs: Float32Array
    tokens: Float64Array
    seconds: Float64Array
    limit: IntArray


class AllActionTrainer:
    """Learns depth and size together.

    Args:
        trace: Of the training prompts.
        times: Mean seconds of work and of decisions.
        layout: Observations and actions.
        costs: Cost ratios that policies are shown.
        config: How long and how fast.

    Attributes:
        cell: Best fixed depth and size on the trace.

    Raises:
        ValueError: The trace does not fit the layout, or a name is no observation.
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
        self.cell = best_fixed(trace, times)
        self._to_go = TimeToGo(trace, times, *self.cell)
        self._decision = config.charged(times.decision_seconds)
        self._kept = trace.accepted_by_size(self._grid)  # [rows, levels, sizes]
        self._who = np.arange(config.requests)
        self._usable = np.flatnonzero(trace.lengths > 1)
        self._deepest = trace.shape.max_depth if config.deepest is None else config.deepest
        self._levels = self._deepest + 1
        self._seconds, self._tokens = 0.0, 0.0
        generator = torch.Generator().manual_seed(config.seed)
        names = (layout.depth_names, layout.size_names)
        unseen = config.hidden_from(layout)
        self._seen = [seen_entries(part, unseen) for part in names]
        self.depth = tanh_network(self._seen[0], config.hidden, 2, generator)
        self.size = tanh_network(self._seen[1], config.hidden, len(self._grid), generator)
        self._restart(self._who)
        self._normalisers = self._first_statistics()
        self._plain = self._seconds / self._tokens  # the scale of rewards: some seconds a token
        parameters = [*self.depth.parameters(), *self.size.parameters()]
        self._optimiser = torch.optim.Adam(parameters, lr=config.learning_rate)
        self._schedule = torch.optim.lr_scheduler.CosineAnnealingLR(
            self._optimiser, config.steps, config.learning_rate / 10
        )

    @property
    def pace(self) -> float:
        """Recent seconds per token."""
        return self._seconds / self._tokens

    def heads(self) -> dict[PolicyName, PolicyHead | None]:
        """Both networks, as an exported policy holds them; None where a decision is fixed."""
        config = self._config
        first, second = self._normalisers
        return {
            "depth": exported(self.depth, first) if config.fixed_depth is None else None,
            "size": exported(self.size, second) if config.fixed_size is None else None,
        }

    def train(self, steps: int) -> float:
        """Make gradient steps; call it again to go on.

        Returns:
            Mean expected reward of a round over the last tenth of them, with the pace of random
            decisions as the unit of time.
        """
        gains = [self._step() for _ in range(steps)]
        return float(np.mean(gains[-max(1, steps // 10) :]))

    def _step(self) -> float:
        """One round of every request: learn from all decisions, then take sampled ones."""
        played, config = self._look(), self._config
        depth, size = self._laws(played)
        gain = torch.from_numpy(self._gain(played)).float()
        value = expected_gain(depth, size, gain, torch.from_numpy(played.limit)).mean()
        left = max(1.0 - self._schedule.last_epoch / config.steps, 0.0)
        loss = -value - left * config.entropy * (entropy(depth).mean() + entropy(size).mean())
        self._optimiser.zero_grad()
        loss.backward()
        self._optimiser.step()
        if self._schedule.last_epoch < config.steps:
            self._schedule.step()
        self._act(played, depth.detach().exp().numpy(), size.detach().exp().numpy())
        return float(value.detach())

    def _gain(self, played: _Round) -> Float64Array:
        """Reward of stopping at each level with each size, of order one, [levels, m, sizes]."""
        plain, reward = self._plain, self._config.reward
        if reward != "time_to_go":
            return round_reward(reward, played.tokens, played.seconds / plain, self.pace / plain)
        rows, unread = self._batch.row, self._batch.uningested
        made = np.minimum(np.arange(self._levels)[:, None], played.limit) > 0  # [levels, m]
        tokens = played.tokens.astype(np.int64)
        later = tokens + np.where(made, 0, unread)[:, :, None]
        before = self._to_go(rows, unread)[:, None]
        after = self._to_go.after(rows[:, None], tokens, later)
        return (before - played.seconds - after) / plain

    def _laws(self, played: _Round) -> tuple[Tensor, Tensor]:
        """Log-probabilities of both decisions, [levels, m, 2] and [levels, m, sizes]."""
        config = self._config
        if config.fixed_depth is None:
            depth = torch.log_softmax(self.depth(self._scaled(0, played.depth_inputs)), -1)
        else:
            draft = (np.arange(self._levels) < config.fixed_depth).astype(np.int64)
            depth = self._certain(draft[:, None], np.arange(2))
        if config.fixed_size is None:
            size = torch.log_softmax(self.size(self._scaled(1, played.size_inputs)), -1)
        else:
            size = self._certain(np.full((self._levels, 1), config.fixed_size), self._grid)
        return depth, size

    def _certain(self, taken: IntArray, actions: IntArray) -> Tensor:
        """The law that takes one action at each level, [levels, m, actions]."""
        law = np.where(taken[:, :, None] == actions, 0.0, CERTAIN)
        return torch.from_numpy(law).float().expand(-1, len(self._who), -1)

    def _look(self) -> _Round:
        """Everything that every decision of the open rounds would see and bring."""
        batch, who = self._batch, self._who
        limit, context = np.minimum(batch.max_depth, self._deepest), batch.context
        inputs, tokens, seconds, prices = [], [], [], [np.zeros(len(who))]
        fixed = self._times.mean("propose", 0, context) + self._times.mean("commit", 0, context)
        left = self._trace.lengths[batch.sequence] - batch.emitted
        for level in range(self._levels):
            batch.depth[:] = np.minimum(level, limit)
            inputs.append(self._features.size_observation(batch.rounds(slice(None))))
            nodes = batch.nodes(who)
            kept = np.minimum(self._grid, np.minimum(nodes, batch.max_size)[:, None])  # [m, V]
            # No token is left for a path longer than what the size limit would keep.
            tokens.append(np.minimum(self._kept[batch.row, batch.depth] + 1, left[:, None]))
            verify = self._times.mean("verify", kept, context[:, None])
            asked = (self._decision.size * (nodes > 0))[:, None]
            seconds.append(verify + asked + fixed[:, None])
            if level + 1 < self._levels:
                kind: Work = "later" if level else "first"
                prices.append(self._times.mean(kind, batch.uningested, context))
        batch.depth[:] = 0
        # Asked before every pass that may be made, whatever is answered.
        questions = self._decision.depth * (np.arange(self._levels)[:, None] < limit)
        before = np.cumsum(questions, 0) + np.cumsum(prices, 0)  # [levels, m]
        size_inputs = np.stack(inputs)
        return _Round(
            size_inputs[..., : len(self._seen[0])],  # the depth observation is its beginning
            size_inputs,
            np.stack(tokens).astype(np.float64),
            np.stack(seconds) + before[:, :, None],
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
        seconds = played.seconds[stop, who, action]
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
        config = self._config
        first, second = (
            statistics(np.concatenate(part), config.minimum_variance, config.clip) for part in seen
        )
        return first, second

    def _scaled(self, which: int, inputs: Float32Array) -> Tensor:
        return torch.from_numpy(self._normalisers[which](inputs) * self._seen[which])


def expected_gain(depth: Tensor, size: Tensor, gain: Tensor, limit: Tensor) -> Tensor:
    """Expected reward of a round under both policies.

    Args:
        depth: Log-probabilities of stop and draft, [levels, m, 2].
        size: Log-probabilities of the sizes, [levels, m, sizes].
        gain: Reward of the whole round that stops at each level with each size, [levels, m, sizes].
        limit: Deepest level that each round may reach, [m]; nothing beyond it counts.

    Returns:
        Shape [m].
    """
    stopping = (size.exp() * gain).sum(-1)  # [levels, m]
    law = depth.exp()
    value = stopping[-1]
    for level in range(len(stopping) - 2, -1, -1):
        going = law[level, :, 0] * stopping[level] + law[level, :, 1] * value
        value = torch.where(level < limit, going, stopping[level])
    return value

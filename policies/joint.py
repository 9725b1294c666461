"""One decision for depth and size together, before the first pass, kept for some rounds.

Every (depth, size) at the start of a round has a known outcome on a trace, also when it is held
for several rounds, so the expected reward under a stochastic policy is a sum over cells: the
gradient of `policies.all_action` with a single decision in place of the recursion.
"""

from __future__ import annotations

import numpy as np
import torch

from draftgym.batch_features import BatchFeatures
from draftgym.batch_state import IntArray
from draftgym.console import Bar
from draftgym.costs.times import Float64Array, Times
from draftgym.features import FeatureLayout
from draftgym.runtime import PolicyHead
from draftgym.runtime.network import BatchNetwork
from draftgym.state import Float32Array, MeasuredCosts
from draftgym.theory.fixed import best_fixed
from draftgym.theory.held import held_cells
from draftgym.theory.to_go import TimeToGo
from draftgym.traces.judge import MeanTimes, judge_rounds
from draftgym.traces.replay import ReplayBatch
from draftgym.traces.trace import Trace
from policies.all_action import PACE_MEMORY, WARM_UP_ROUNDS, AllActionConfig
from policies.objectives import round_reward
from policies.pretraining import CHECKS, hold_out
from policies.small_network import entropy, exported, seen_entries, statistics, tanh_network

JOINT_ENTROPY = 0.3
"""First weight of the entropy: a law over a hundred cells soon settles on a merely good one."""


class JointPolicy:
    """Chooses a cell at the start of rounds.

    Args:
        head: From the depth observation before any pass to a preference for each cell.
        cells: Depth and size, [cells, 2].
        layout: Of the observation.
    """

    def __init__(self, head: PolicyHead, cells: IntArray, layout: FeatureLayout) -> None:
        self._network = BatchNetwork(head, layout.depth_features)
        self._features, self._cells = BatchFeatures(layout), cells

    def __call__(self, batch: ReplayBatch, who: IntArray) -> tuple[IntArray, IntArray]:
        """Depth and size of open rounds, [k] each."""
        chosen = self._cells[self._network.act(self._features.depth_raw(batch.rounds(who)))]
        return chosen[:, 0], chosen[:, 1]


class JointTrainer:
    """Learns one network for both decisions.

    Args:
        trace: Of the training prompts.
        times: Mean seconds of work; a decision takes as long as one of the depth.
        layout: Observations.
        costs: Cost ratios that the policy is shown.
        config: How long and how fast; nothing of it may be fixed.
        every: Rounds that a decision is kept for; a new request decides anew.
    """

    def __init__(
        self,
        trace: Trace,
        times: Times,
        layout: FeatureLayout,
        costs: MeasuredCosts,
        config: AllActionConfig,
        every: int = 1,
    ) -> None:
        self._times, self._layout, self._config, self._every = times, layout, config, every
        self._held = held_cells(trace, times, every)
        self._to_go = TimeToGo(trace, times, *best_fixed(trace, times))
        self._features = BatchFeatures(layout)
        self._random = np.random.default_rng(config.seed)
        self._batch = ReplayBatch(
            trace, MeanTimes(times), layout, config.requests, costs=costs, seed=config.seed
        )
        self._who = np.arange(config.requests)
        self._usable = np.flatnonzero(trace.lengths > 1)
        generator = torch.Generator().manual_seed(config.seed)
        self._seen = seen_entries(layout.depth_names, config.hidden_from(layout))
        cells = len(self._held.cells)
        self.network = tanh_network(self._seen, config.hidden, cells, generator)
        self._seconds, self._tokens = 0.0, 0.0
        self._restart()
        seen_first = [self._warm_up() for _ in range(WARM_UP_ROUNDS)]
        self._normaliser = statistics(np.concatenate(seen_first))
        self._plain = self._seconds / self._tokens  # the scale of rewards: some seconds a token
        self._optimiser = torch.optim.Adam(self.network.parameters(), lr=config.learning_rate)
        self._schedule = torch.optim.lr_scheduler.CosineAnnealingLR(
            self._optimiser, config.steps, config.learning_rate / 10
        )

    def policy(self) -> JointPolicy:
        """The present network; a copy."""
        head = exported(self.network, self._normaliser)
        return JointPolicy(head, self._held.cells, self._layout)

    def train(self, steps: int) -> None:
        """Make gradient steps; call it again to go on."""
        for _ in range(steps):
            self._step()

    def _step(self) -> None:
        """One decision of every request: learn from all cells, then play a sampled one."""
        config, pace = self._config, self._seconds / self._tokens
        tokens, seconds = self._outcome()
        if config.reward == "time_to_go":
            rows, unread = self._batch.row, self._batch.uningested
            gain = self._held.saved(self._to_go, rows, unread, seconds) / self._plain
        else:
            gain = round_reward(config.reward, tokens, seconds / self._plain, pace / self._plain)
        inputs = self._normaliser(self._observe()) * self._seen
        law = torch.log_softmax(self.network(torch.from_numpy(inputs)), -1)  # [m, cells]
        value = (law.exp() * torch.from_numpy(gain).float()).sum(-1).mean() / self._every
        left = max(1.0 - self._schedule.last_epoch / config.steps, 0.0)
        loss = -value - left * config.entropy * entropy(law).mean()
        self._optimiser.zero_grad()
        loss.backward()
        self._optimiser.step()
        if self._schedule.last_epoch < config.steps:
            self._schedule.step()
        chances = law.detach().exp().numpy().cumsum(1)
        draws = self._random.random((len(self._who), 1))
        cell = np.minimum((chances < draws).sum(1), len(self._held.cells) - 1)
        self._play(cell, tokens, seconds)

    def _observe(self) -> Float32Array:
        return self._features.depth_observation(self._batch.rounds(slice(None)))

    def _outcome(self) -> tuple[Float64Array, Float64Array]:
        """Tokens and seconds of every cell, one decision included, [m, cells] each."""
        batch = self._batch
        tokens, seconds = self._held.outcome(
            batch.row, self._times, batch.uningested, batch.context
        )
        return tokens, seconds + self._times.decision_seconds.depth

    def _play(self, cell: IntArray, tokens: Float64Array, seconds: Float64Array) -> None:
        """Hold the cells, count what they brought, open the next rounds."""
        batch, who = self._batch, self._who
        self._seconds = PACE_MEMORY * self._seconds + float(seconds[who, cell].sum())
        self._tokens = PACE_MEMORY * self._tokens + float(tokens[who, cell].sum())
        depth, size = self._held.cells[cell].T
        for turn in range(self._every):
            running = who[~batch.finished]
            if turn:
                batch.open(running)
            batch.depth[running] = np.minimum(depth[running], batch.max_depth[running])
            batch.close(running, size[running])
        self._restart()

    def _restart(self) -> None:
        """New requests for ended ones, drawn anew each time; then every round is opened."""
        ended = np.flatnonzero(self._batch.finished)
        if len(ended):
            self._batch.start(ended, self._random.choice(self._usable, len(ended)))
        self._batch.open(self._who)

    def _warm_up(self) -> Float32Array:
        """Observations, then a decision of every request at random."""
        seen = self._observe()
        cell = self._random.integers(0, len(self._held.cells), len(self._who))
        self._play(cell, *self._outcome())
        return seen


def learn_joint(
    trace: Trace,
    times: Times,
    layout: FeatureLayout,
    costs: MeasuredCosts,
    config: AllActionConfig,
    every: int,
    bar: Bar,
) -> JointPolicy:
    """Learn from most prompts of a trace, keep what is fastest on the others.

    Args:
        trace: Of the policy split.
        times: Mean seconds of work and of decisions.
        layout: Observations.
        costs: Cost ratios that the policy is shown.
        config: How long and how fast.
        every: Rounds that a decision is kept for.
        bar: Advanced by steps.

    Raises:
        ValueError: The prompts are too few to hold some out.
    """
    ours, theirs = hold_out(trace)
    trainer = JointTrainer(ours, times, layout, costs, config, every)
    best, best_seconds = trainer.policy(), np.inf
    checks = min(CHECKS, config.steps)
    for check in range(checks):
        steps = config.steps * (check + 1) // checks - config.steps * check // checks
        trainer.train(steps)
        policy = trainer.policy()
        seconds = float(judge_rounds(theirs, times, layout, policy, costs, every=every).sum())
        if seconds < best_seconds:
            best, best_seconds = policy, seconds
        bar.advance(steps)
    return best

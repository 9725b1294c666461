"""PPO on a trace: what a run does live, on hundreds of replayed requests at once.

Size first beside random depths, then depth beside the frozen size policy, and so on in turn, as
Learning to Draft does and `policies.training` does live. It shows what sampled decisions teach,
beside learning from all of them (`policies.all_action`).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from draftgym.batch_state import BatchController
from draftgym.console import Bar, say
from draftgym.features import FeatureLayout
from draftgym.runtime import ExportedPolicy
from draftgym.runtime.batch import ExportedBatch
from draftgym.traces.controllers import RandomBatch
from policies.config import PolicyName, PPOConfig
from policies.replay_learner import ReplayEnvironment, ReplayLearner
from policies.small_network import seen_entries

NAMES: tuple[PolicyName, PolicyName] = ("size", "depth")

HYPERPARAMETERS = PPOConfig(
    rollout_steps=4096, batch_size=1024, epochs=4, learning_rate=1e-3, entropy_coefficient=0.001
)
"""For 256 requests at once; chosen on held-out prompts of a trace of the policy split."""

Environments = Callable[[PolicyName, BatchController], ReplayEnvironment]
"""(who learns, who takes the other decision) to environments, as many every time."""


@dataclass(frozen=True, slots=True)
class ReplayPPOConfig:
    """How long and how fast.

    Attributes:
        rollouts: Of each turn.
        seed: Of networks and decisions.
        turns: Of size and depth, alternating; an even number.
        ppo: Of both policies; a rollout is over all requests together.
        depth_ppo: Of the depth policy, where it has its own.
        unseen: Names of observations that the policies are not shown.
    """

    rollouts: int
    seed: int = 0
    turns: int = 10
    ppo: PPOConfig = HYPERPARAMETERS
    depth_ppo: PPOConfig | None = None
    unseen: tuple[str, ...] = ()

    @property
    def decisions(self) -> int:
        """Learned from, of both policies together."""
        turns = self.turns // 2 * self.rollouts
        return turns * sum(self.ppo_of(name).rollout_steps for name in NAMES)

    def ppo_of(self, name: PolicyName) -> PPOConfig:
        """Hyperparameters of one policy."""
        own = self.depth_ppo if name == "depth" else None
        return self.ppo if own is None else own


def learn_on_replays(
    environments: Environments,
    held_out_seconds: Callable[[ExportedPolicy], float],
    layout: FeatureLayout,
    config: ReplayPPOConfig,
    reward_unit: float,
    bar: Bar,
    steps: int,
    tell: Callable[[str], None] = say,
) -> ExportedPolicy:
    """Learn both decisions in turn.

    Args:
        environments: Of the training prompts.
        held_out_seconds: Judges a pair on other prompts.
        layout: Observations and actions.
        config: How long and how fast.
        reward_unit: What counts as a reward of one; of seconds, those of a plain step.
        bar: Progress.
        steps: That it is advanced by in all.
        tell: Told of every turn.

    Returns:
        The pair that was fastest on held-out prompts; a pair counts only once both have learned.
    """
    names = {"size": layout.size_names, "depth": layout.depth_names}
    actions = {"size": len(layout.size_grid), "depth": 2}
    learners = {
        name: ReplayLearner(
            len(names[name]), actions[name], config.ppo_of(name),
            config.rollouts * config.turns // 2, reward_unit, 2 * config.seed + place,
            seen_entries(names[name], config.unseen),
        )
        for place, name in enumerate(NAMES)
    }  # fmt: skip
    other: BatchController = RandomBatch(config.seed, layout.max_depth, layout.size_grid)
    best, best_seconds = None, np.inf
    for turn in range(config.turns):
        name = NAMES[turn % 2]
        learners[name].learn(environments(name, other), config.rollouts)
        present = _pair(layout, learners)
        other = ExportedBatch(present)
        bar.advance(steps * (turn + 1) // config.turns - steps * turn // config.turns)
        if turn:
            seconds = held_out_seconds(present)
            tell(f"turn {turn + 1}, {name}: {seconds:.2f} s for the held-out prompts")
            if seconds < best_seconds:
                best, best_seconds = present, seconds
    assert best is not None  # there are two turns at least
    return best


def _pair(layout: FeatureLayout, learners: dict[PolicyName, ReplayLearner]) -> ExportedPolicy:
    """The present pair; a policy that has learned nothing never acts."""
    size, depth = (learners[name].head() if learners[name].rollouts else None for name in NAMES)
    fallback = {name: 0 for name, head in (("size", size), ("depth", depth)) if head is None}
    return ExportedPolicy(layout=layout, depth=depth, size=size, fallback=fallback)

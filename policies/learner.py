"""One policy being trained: its PPO, its observation statistics and its counters."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch

from draftgym.features import FeatureLayout
from draftgym.runtime import PolicyHead
from policies.checkpoint import ppo_tensors, restore_ppo
from policies.config import PolicyName, TrainConfig
from policies.export import head_tensors
from policies.normaliser import RunningNormaliser
from policies.ppo import build_ppo, update
from policies.rollout import Collector, Environment, RolloutStatistics, observe_only
from policies.warm_start import imitate, spread, teacher_actions


class Learner:
    """Trains one head.

    Args:
        name: Which decision it learns.
        config: The run's configuration.
        layout: Observations and actions.
        reward_scale: Multiplies rewards for PPO.
    """

    def __init__(
        self, name: PolicyName, config: TrainConfig, layout: FeatureLayout, reward_scale: float
    ) -> None:
        names = layout.size_names if name == "size" else layout.depth_names
        self.name = name
        self.config = config.ppo(name)
        self.actions = len(layout.size_grid) if name == "size" else 2
        self.normaliser = RunningNormaliser(len(names), config.normaliser)
        # Distinct seeds: the heads must not start from the same weights.
        seed = config.seed + (0 if name == "size" else 1_000_003)
        self.model = build_ppo(self.config, len(names), self.actions, seed, config.device)
        self.steps = 0
        self.rollouts = 0
        self._pretrained = False
        self._run = config
        self._layout = layout
        self._collector = Collector(
            self.model,
            self.normaliser,
            reward_scale,
            config.reward.clip_plain_steps,
            self.config.credit_horizon,
        )

    @property
    def knows(self) -> bool:
        """Whether it has learned anything yet."""
        return self._pretrained or self.rollouts > 0

    def start_from(self, head: PolicyHead) -> None:
        """Act as an exported head does, from the first rollout on.

        Args:
            head: With observation statistics; of the configured widths.
        """
        assert head.normaliser is not None  # the configuration requires it
        network = self.model.policy
        with torch.no_grad():
            for name, values in head_tensors(head).items():
                network.get_parameter(name.removeprefix("network.")).copy_(values)
        # What was left out stays out: reading it may cost more than it can tell.
        layers = (*network.mlp_extractor.policy_net.parameters(), *network.action_net.parameters())
        first = layers[0]  # [out, features]
        shown = torch.ne(first.detach(), 0.0).any(0)
        first.register_hook(lambda gradient: gradient * shown)
        self.normaliser.start(head.normaliser)
        self._pretrained = True

    def rollout(
        self,
        environment: Environment,
        seed: int,
        progress_share: Callable[[], float],
        on_step: Callable[[], None],
    ) -> tuple[RolloutStatistics, dict[str, float]]:
        """Collect one rollout and learn from it.

        Args:
            environment: The live environment of this policy.
            seed: Seeds this rollout's prompts.
            progress_share: Share of this policy's training done, asked after collecting.
            on_step: Called after each decision.

        Returns:
            Statistics of the rollout and PPO's metrics.
        """
        if not self.knows:
            self._begin(environment, seed)
        statistics, raw = self._collector.collect(environment, seed, on_step)
        metrics = update(self.model, progress_share())
        # Only now: the buffer was filled, and learned from, under the old statistics.
        self.normaliser.update(raw)
        self.steps += statistics.decisions
        self.rollouts += 1
        return statistics, metrics

    def _begin(self, environment: Environment, seed: int) -> None:
        """First statistics, and the start at a rule, from decisions taken at random."""
        run = self._run
        raw = observe_only(self.model, environment, run.normaliser.warmup_steps, seed)
        self.normaliser.update(raw)
        if run.warm_start.enabled:
            shown = spread(raw, run.warm_start.rows, run.seed)
            actions = teacher_actions(run, self.name, self._layout, shown)
            imitate(self.model, self.normaliser(shown), actions, run.warm_start)

    def tensors(self) -> dict[str, torch.Tensor]:
        """Networks, optimiser and observation statistics."""
        tensors = ppo_tensors(self.model)
        for name, values in self.normaliser.state().items():
            tensors[f"statistics.{name}"] = torch.from_numpy(values)
        return tensors

    def state(self) -> dict[str, Any]:
        """Counters."""
        return {
            "steps": self.steps,
            "rollouts": self.rollouts,
            "updates": int(self.model._n_updates),
        }

    def load(self, tensors: Mapping[str, torch.Tensor], state: Mapping[str, Any]) -> None:
        """Restore `tensors()` and `state()`."""
        head = "statistics."
        self.normaliser.load(
            {k.removeprefix(head): v.numpy() for k, v in tensors.items() if k.startswith(head)}
        )
        restore_ppo(self.model, tensors, state["updates"])
        self.steps = state["steps"]
        self.rollouts = state["rollouts"]

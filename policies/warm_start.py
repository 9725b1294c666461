"""Start a policy at a fixed setting instead of at chance.

From chance, PPO first has to find out that drafting pays at all; in a few minutes of live rounds,
whose gain is a few percent and whose noise is a hundred times that, it may as well drift into
never drafting. Imitating a sensible fixed cell first (soft targets, so that everything else is
still tried) leaves to the rewards what they can tell: where to deviate from it.
"""

from __future__ import annotations

import numpy as np
import torch
from numpy.typing import NDArray
from stable_baselines3 import PPO

from draftgym.features import FeatureLayout
from draftgym.state import Float32Array
from policies.config import PolicyName, WarmStartConfig


def fixed_actions(
    name: PolicyName, layout: FeatureLayout, observations: Float32Array, depth: int, size: int
) -> NDArray[np.int64]:
    """What a fixed cell does at each raw observation, as action indices.

    Args:
        name: Which decision.
        layout: Of the observations.
        observations: Shape [n, features], not normalised.
        depth: Draft passes of the cell.
        size: Verification size of the cell; the nearest of the grid is taken.

    Returns:
        Shape [n].
    """
    if name == "size":
        grid = np.asarray(layout.size_grid)
        return np.full(len(observations), int(np.abs(grid - size).argmin()), np.int64)
    column = layout.depth_names.index("depth")
    passes = np.rint(observations[:, column] * layout.max_depth)
    return (passes < depth).astype(np.int64)


def imitate(
    model: PPO,
    inputs: Float32Array,
    actions: NDArray[np.int64],
    config: WarmStartConfig,
) -> float:
    """Fit the policy network to soft targets around given actions.

    The optimiser is its own, so PPO's moments start clean.

    Args:
        model: Its policy is trained in place; the value network is left alone.
        inputs: Network inputs, shape [n, features].
        actions: Preferred actions, shape [n].
        config: Probability of the preferred action, steps, learning rate.

    Returns:
        Final cross-entropy, nats.
    """
    policy = model.policy
    count = int(model.action_space.n)  # type: ignore[attr-defined]
    observations = torch.as_tensor(inputs, device=model.device)  # [n, features]
    targets = torch.full((len(actions), count), (1 - config.probability) / (count - 1))
    targets[torch.arange(len(actions)), torch.from_numpy(actions)] = config.probability
    targets = targets.to(model.device)  # [n, actions]
    parameters = [*policy.mlp_extractor.policy_net.parameters(), *policy.action_net.parameters()]
    optimiser = torch.optim.Adam(parameters, lr=config.learning_rate)
    policy.set_training_mode(True)
    loss = torch.zeros(())
    for _ in range(config.steps):
        logits = policy.action_net(policy.mlp_extractor.forward_actor(observations))
        loss = torch.nn.functional.cross_entropy(logits, targets)
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
    policy.set_training_mode(False)
    # Adam's gradients must not leak into PPO's first step.
    policy.optimizer.zero_grad()
    return float(loss.detach())

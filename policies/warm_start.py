"""Start a policy at a sensible rule instead of at chance.

From chance, PPO first has to find out that drafting pays at all; in a few minutes of live rounds,
whose gain is a few percent and whose noise is a hundred times that, it may as well drift into
never drafting. Imitating a rule first (soft targets, so that everything else is still tried)
leaves to the rewards what they can tell: where to deviate from it.
"""

from __future__ import annotations

import numpy as np
import torch
from numpy.typing import NDArray
from stable_baselines3 import PPO

from draftgym.features import FeatureLayout
from draftgym.state import Float32Array
from policies.config import PolicyName, TrainConfig, WarmStartConfig

HIT_RATE = 0.45
"""Share of a frontier's path probability that one more pass turns into accepted tokens."""

FIRST_MARGIN, LATER_MARGIN = 1.5, 4.0
"""A pass must promise this many times its price: what it drafts must still be verified, and the
deeper it is, the more of its promise is already in the tree."""

PACE = 0.5
"""Plain steps per token that speculation is expected to reach."""


def teacher_actions(
    config: TrainConfig, name: PolicyName, layout: FeatureLayout, observations: Float32Array
) -> NDArray[np.int64]:
    """What the configured rule does at each raw observation, as action indices.

    Args:
        config: Names the rule and the fixed cell.
        name: Which decision.
        layout: Of the observations.
        observations: Shape [n, features], not normalised.

    Returns:
        Shape [n].
    """
    if config.warm_start.rule == "survival_cost":
        return survival_cost_actions(name, layout, observations)
    return fixed_actions(name, layout, observations, config.fixed_depth, config.fixed_size)


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


def survival_cost_actions(
    name: PolicyName, layout: FeatureLayout, observations: Float32Array
) -> NDArray[np.int64]:
    """Expected tokens against measured cost, the rule that serving engines converged on.

    A token is worth `PACE` plain steps. The size with the largest
    `PACE` · expected accepted - slope · size is verified; a pass is made while `PACE` times the
    tokens it promises exceeds a margin times its price. Before the first pass it promises tokens
    only where no free proposal is already likely.

    Args:
        name: Which decision.
        layout: Of the observations.
        observations: Shape [n, features], not normalised.

    Returns:
        Shape [n].
    """
    features = layout.size_features if name == "size" else layout.depth_features
    scales = np.array([feature.scale for feature in features], np.float32)
    values: Float32Array = (observations / scales).astype(np.float32)
    names = [feature.name for feature in features]

    def column(feature: str) -> Float32Array:
        result: Float32Array = values[:, names.index(feature)]
        return result

    slope, price = column("verify_slope_over_plain"), column("draft_pass_over_plain")
    if name == "size":
        sizes = layout.size_grid[1:]
        gains = [np.zeros(len(values))] + [
            PACE * column(f"expected_accepted_{size}") - slope * size for size in sizes
        ]
        best: NDArray[np.int64] = np.stack(gains).argmax(0)
        return best
    slots = [column(f"frontier_score_{slot}") for slot in range(1, layout.beam_width + 1)]
    frontier = np.exp(np.stack(slots)).sum(0)
    first = column("depth") == 0
    reach = np.where(first, 1 - column("best_path_probability"), frontier)
    margin = np.where(first, FIRST_MARGIN, LATER_MARGIN)
    return (PACE * HIT_RATE * reach > margin * price).astype(np.int64)


def spread(observations: Float32Array, rows: int, seed: int) -> Float32Array:
    """Observations seen, and as many with every column shuffled for itself.

    A few observations would leave it open which columns a rule depends on.

    Args:
        observations: Shape [n, features].
        rows: Observations wanted of each kind.
        seed: Of the draws.

    Returns:
        Shape [2 * rows, features].
    """
    random = np.random.default_rng(seed)
    seen = observations[random.integers(len(observations), size=rows)]
    picks = random.integers(len(observations), size=(rows, observations.shape[1]))
    return np.concatenate((seen, np.take_along_axis(observations, picks, 0)))


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

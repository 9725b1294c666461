"""Learning to Draft as published, on a trace: a rival of what this project learns.

"Learning to Draft: Adaptive Speculative Decoding with Reinforcement Learning", Zhang et al., ICLR
2026, arXiv 2603.01639; what the text leaves open was read in the released code.

From the paper: two policies, one asked whether to draft on, one how many tokens to verify. The
reward is the throughput of the round, emitted tokens over its seconds, at its end, and a round is
an episode. The depth policy sees the cumulative scores of the newest level, the context's length
and the depth; the size policy sees all scores of the tree and the same two numbers. Neither sees
history or costs. SB3's PPO: tanh networks of 1024 and 256 units (depth: 1024), rollouts of 128
decisions, batches of 64, one epoch, learning rate 3e-4 warmed up over 1 % and then falling to 0,
discount .99, SB3's own GAE factor .95, no entropy bonus; 100,000 decisions of each policy. The size
policy learns first, then depth beside it, and so on.

Chosen here: scores of a level are those of its W frontier nodes, and all scores of the tree are
sums of the largest for every size of the grid, as the one observation layout has them; sizes are
that grid, where the paper has multiples of ten up to 240. The depth policy is asked before every
pass, the first included; the paper always makes the first, and its released decoder asks at every
third. Observations are normalised. 16 requests are replayed from a trace at mean costs, decisions
charged, where the paper decodes live. The value networks have the layers of the policies, the size
policy learns first beside random depths, each policy learns in two turns, and the pair that is
fastest on held-out prompts is taken.
"""

from __future__ import annotations

from collections.abc import Callable

from draftgym.console import Bar
from draftgym.features import FeatureLayout
from draftgym.runtime import ExportedPolicy, PolicyHead
from policies.config import PolicyName, PPOConfig
from policies.export import PolicyCard, export_heads
from policies.ppo_replay import Environments, ReplayPPOConfig, learn_on_replays

METHOD = "learning to draft"
"""In the summary of the training, by which such a policy is told from ours."""

REQUESTS = 16
"""Replayed at once: 8 decisions of each make a rollout."""

TURNS = 4
ROLLOUTS = 390
"""Of each turn: two turns of a policy are 100,000 decisions."""

REWARD_UNIT = 100.0
"""Tokens per second: the paper counts hundredths of a second."""

SIZE_PPO = PPOConfig(
    rollout_steps=128,
    batch_size=64,
    epochs=1,
    learning_rate=3e-4,
    warmup_fraction=0.01,
    final_learning_rate_fraction=0.0,
    entropy_coefficient=0.0,
    hidden_sizes=(1024, 256),
    discount=0.99,
    gae_lambda=0.95,
)
DEPTH_PPO = SIZE_PPO.model_copy(update={"hidden_sizes": (1024,)})

_OBSERVED = ("frontier_score_", "expected_accepted_")


def unseen(layout: FeatureLayout) -> tuple[str, ...]:
    """Names of both observations' entries that the paper's policies do not see.

    Args:
        layout: The observations.
    """
    seen = {"depth", "context_fraction"}
    return tuple(
        name for name in layout.size_names if name not in seen and not name.startswith(_OBSERVED)
    )


def learn_as_published(
    environments: Environments,
    held_out_seconds: Callable[[ExportedPolicy], float],
    layout: FeatureLayout,
    card: PolicyCard,
    seed: int,
    bar: Bar,
) -> ExportedPolicy:
    """Learn both policies.

    Args:
        environments: Of the training prompts: `REQUESTS` of them, rewarded by throughput.
        held_out_seconds: Judges a pair on other prompts.
        layout: Observations and actions.
        card: Origin of the exported policy.
        seed: Of networks and decisions.
        bar: Advanced by `TURNS`.
    """
    config = ReplayPPOConfig(
        rollouts=ROLLOUTS, seed=seed, turns=TURNS, ppo=SIZE_PPO, depth_ppo=DEPTH_PPO,
        unseen=unseen(layout),
    )  # fmt: skip
    policy = learn_on_replays(
        environments, held_out_seconds, layout, config, REWARD_UNIT, bar, TURNS
    )
    assert policy.size is not None and policy.depth is not None  # both have learned
    heads: dict[PolicyName, PolicyHead] = {"size": policy.size, "depth": policy.depth}
    training = {"method": METHOD, "decisions": config.decisions, "seed": seed}
    return export_heads(layout, heads, {"kind": "throughput"}, card, training)

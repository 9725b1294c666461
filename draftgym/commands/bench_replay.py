"""Measure how fast policies decide and learn on replayed traces; no model is loaded."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Annotated

import numpy as np
import torch
import tyro
from stable_baselines3 import PPO

from draftgym.clock import Clock, WallClock
from draftgym.console import print_result, say
from draftgym.errors import ConfigurationError
from draftgym.features import FeatureLayout
from draftgym.provenance import provenance
from draftgym.traces.controllers import RandomBatch
from draftgym.traces.replay import ReplayBatch
from draftgym.traces.synthetic import SyntheticTimes, synthetic_trace
from draftgym.traces.trace import Trace
from envs.replay import DepthReplayVecEnv, ReplayVecEnv, SizeReplayVecEnv
from policies.config import PPOConfig

SCHEMA = "draftgym.bench_replay/1"

_ROLLOUT_STEPS = 16
_BATCHES_PER_ROLLOUT = 4
_WARM_UP_STEPS = 32


@dataclass(frozen=True)
class Arguments:
    """Decisions per second of both replay environments, and PPO's steps per second.

    The trace and its seconds are made up: they have the shapes of real ones, and a policy that
    learned on them would have learned nothing. Decisions are random; the other decision is
    random too. PPO collects and learns the size decision, with the networks of a training run.
    """

    environments: Annotated[int, tyro.conf.arg(help="Requests replayed at once.")] = 256
    seconds: Annotated[float, tyro.conf.arg(help="Of each of the three measurements.")] = 3.0
    seed: Annotated[int, tyro.conf.arg(help="Of the trace, the orders and the decisions.")] = 0


def main(argv: Sequence[str]) -> int:
    """Run the measurement; returns the exit status."""
    arguments = tyro.cli(Arguments, args=list(argv), prog="python -m draftgym bench-replay")
    if arguments.environments < 1:
        raise ConfigurationError(
            f"--environments: must be at least 1, got {arguments.environments}"
        )
    if not 0 < arguments.seconds < np.inf:
        raise ConfigurationError(f"--seconds: must be positive, got {arguments.seconds:g}")
    layout = FeatureLayout()
    trace = synthetic_trace(layout, seed=arguments.seed)
    say(f"synthetic trace: {len(trace)} positions of {len(trace.sequences)} sequences")
    clock = WallClock()
    size = _environments(SizeReplayVecEnv, trace, layout, arguments)
    depth = _environments(DepthReplayVecEnv, trace, layout, arguments)
    figures = {
        "size_decisions_per_s": decisions_per_second(size, clock, arguments.seconds),
        "depth_decisions_per_s": decisions_per_second(depth, clock, arguments.seconds),
        "ppo_steps_per_s": ppo_steps_per_second(size, clock, arguments.seconds, arguments.seed),
    }
    for name, value in figures.items():
        say(f"{name:<22} {value:>10,.0f}")
    print_result(
        SCHEMA,
        {
            **figures,
            "environments": arguments.environments,
            "trace": "synthetic",
            "provenance": provenance("cpu"),
        },
    )
    return 0


def decisions_per_second(env: ReplayVecEnv, clock: Clock, seconds: float) -> float:
    """Steps times environments per second, under random decisions.

    Args:
        env: The environments.
        clock: Source of time.
        seconds: To measure for.
    """
    count = env.action_space.n  # type: ignore[attr-defined]
    actions = np.random.default_rng(0).integers(count, size=(_WARM_UP_STEPS, env.num_envs))
    env.reset()

    def play() -> int:
        for row in actions:
            env.step(row)
        return actions.size

    return _per_second(play, clock, seconds)


def ppo_steps_per_second(env: ReplayVecEnv, clock: Clock, seconds: float, seed: int) -> float:
    """Environment steps per second while PPO collects and learns.

    Args:
        env: The environments.
        clock: Source of time.
        seconds: To measure for.
        seed: Of the network.
    """
    config = PPOConfig()
    layers = list(config.hidden_sizes)
    rollout = _ROLLOUT_STEPS * env.num_envs
    model = PPO(
        "MlpPolicy",
        env,
        n_steps=_ROLLOUT_STEPS,
        batch_size=max(2, rollout // _BATCHES_PER_ROLLOUT),
        n_epochs=config.epochs,
        learning_rate=config.learning_rate,
        gamma=config.discount,
        gae_lambda=config.gae_lambda,
        policy_kwargs={
            "net_arch": {"pi": layers, "vf": layers},
            "activation_fn": torch.nn.Tanh,
        },
        seed=seed,
        device="cpu",
    )

    def learn() -> int:
        model.learn(rollout)
        return rollout

    return _per_second(learn, clock, seconds)


def _per_second(work: Callable[[], int], clock: Clock, seconds: float) -> float:
    """Units of work per second; the first call warms up."""
    work()
    begin, done = clock.boundary(), 0
    while (spent := clock.boundary() - begin) < seconds or not done:
        done += work()
    return done / spent


def _environments(
    kind: type[SizeReplayVecEnv] | type[DepthReplayVecEnv],
    trace: Trace,
    layout: FeatureLayout,
    arguments: Arguments,
) -> ReplayVecEnv:
    """Environments whose other decision is random."""
    batch = ReplayBatch(trace, SyntheticTimes(), layout, arguments.environments)
    other = RandomBatch(arguments.seed, layout.max_depth, layout.size_grid)
    return kind(batch, other, seed=arguments.seed)

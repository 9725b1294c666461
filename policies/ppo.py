"""Builds Stable-Baselines3's PPO for one decision.

The trainer collects rollouts itself (`policies.rollout`) and calls only PPO's `train`, so the
algorithm is handed the spaces through an environment that refuses to be stepped.
"""

from __future__ import annotations

from typing import Any

import gymnasium
import numpy as np
import torch
from gymnasium import spaces
from numpy.typing import NDArray
from stable_baselines3 import PPO
from stable_baselines3.common.logger import Logger

from policies.config import PPOConfig
from policies.rollout import RoundRolloutBuffer
from policies.schedule import LinearSchedule


class _SpacesOnly(gymnasium.Env[NDArray[np.float32], np.int64]):
    """Carries spaces to PPO's constructor; the live environment is stepped by the trainer."""

    def __init__(self, features: int, actions: int) -> None:
        self.observation_space = spaces.Box(-np.inf, np.inf, (features,), np.float32)
        self.action_space = spaces.Discrete(actions)

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[NDArray[np.float32], dict[str, Any]]:
        raise RuntimeError("rollouts are collected by policies.rollout, not by PPO.learn")

    def step(self, action: np.int64) -> Any:
        raise RuntimeError("rollouts are collected by policies.rollout, not by PPO.learn")


def build_ppo(config: PPOConfig, features: int, actions: int, seed: int, device: str) -> PPO:
    """A fresh PPO over normalised observations.

    Args:
        config: Hyperparameters.
        features: Observation length.
        actions: Number of discrete actions.
        seed: Seeds the weights.
        device: Device of the small networks.

    Returns:
        PPO whose rollout buffer ends returns where the buffer is told that a credit horizon
        ended, and whose metrics go to an empty logger that `update` reads.
    """
    layers = list(config.hidden_sizes)
    model = PPO(
        "MlpPolicy",
        _SpacesOnly(features, actions),
        learning_rate=config.learning_rate,
        n_steps=config.rollout_steps,
        batch_size=config.batch_size,
        n_epochs=config.epochs,
        gamma=config.discount,
        gae_lambda=config.gae_lambda,
        clip_range=config.clip_range,
        ent_coef=config.entropy_coefficient,
        vf_coef=config.value_coefficient,
        max_grad_norm=config.max_gradient_norm,
        target_kl=config.target_kl,
        rollout_buffer_class=RoundRolloutBuffer,
        policy_kwargs={
            "net_arch": {"pi": layers, "vf": layers},
            "activation_fn": torch.nn.Tanh,
        },
        seed=seed,
        device=device,
    )
    model.lr_schedule = LinearSchedule.of(config)
    model.set_logger(Logger(folder=None, output_formats=[]))
    return model


def update(model: PPO, progress: float) -> dict[str, float]:
    """One PPO update from the collected buffer.

    Args:
        model: Its rollout buffer is full.
        progress: Share of this policy's training that is done, for the learning rate.

    Returns:
        PPO's own metrics, such as `approx_kl` and `explained_variance`.
    """
    model._current_progress_remaining = 1.0 - progress
    model.train()
    metrics = {
        name.removeprefix("train/"): float(value)
        for name, value in model.logger.name_to_value.items()
        if name.startswith("train/")
    }
    model.logger.name_to_value.clear()
    return metrics

"""Running observation statistics of our own.

VecNormalize pickles its statistics and updates them inside a rollout; these are plain arrays,
stand still while a rollout is collected and learned from, and travel with checkpoint and export.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from draftgym.runtime import Normaliser
from policies.config import NormaliserConfig

Float32Array = NDArray[np.float32]

KNOWN_COUNT = 1e6
"""Observations that known statistics count as."""


class RunningNormaliser:
    """Mean and variance of all observations so far (Chan et al. 1979, batch merge).

    Args:
        size: Features per observation.
        config: Clip, variance floor and whether to normalise at all.
    """

    def __init__(self, size: int, config: NormaliserConfig) -> None:
        self._config = config
        self.count = 0.0
        self.mean = np.zeros(size, np.float64)
        self.variance = np.ones(size, np.float64)
        self._frozen = self._freeze()

    @property
    def frozen(self) -> Normaliser | None:
        """What the export carries: the present statistics; None when disabled."""
        return self._frozen if self._config.enabled else None

    def update(self, observations: Float32Array) -> None:
        """Merge a batch of raw observations, shape [batch, features]."""
        batch = np.asarray(observations, np.float64)
        count = float(len(batch))
        if count == 0:
            return
        total = self.count + count
        delta = batch.mean(axis=0) - self.mean
        squares = self.variance * self.count + batch.var(axis=0) * count
        squares += delta**2 * (self.count * count / total)
        self.mean = self.mean + delta * (count / total)
        self.variance = squares / total
        self.count = total
        self._frozen = self._freeze()

    def start(self, frozen: Normaliser) -> None:
        """Begin with known statistics, so many that a run's own observations hardly move them."""
        self.count = KNOWN_COUNT
        self.mean = frozen.mean.astype(np.float64)
        self.variance = frozen.variance.astype(np.float64)
        self._frozen = self._freeze()

    def __call__(self, observation: Float32Array) -> Float32Array:
        """The observation as the networks see it, by the exported controller's own arithmetic."""
        frozen = self.frozen
        return observation if frozen is None else frozen(observation)

    def state(self) -> dict[str, NDArray[np.float64]]:
        """Plain arrays for a checkpoint."""
        return {"count": np.array([self.count]), "mean": self.mean, "variance": self.variance}

    def load(self, state: dict[str, NDArray[np.float64]]) -> None:
        """Restore `state()` exactly."""
        self.count = float(state["count"][0])
        self.mean = np.array(state["mean"], np.float64)
        self.variance = np.array(state["variance"], np.float64)
        self._frozen = self._freeze()

    def _freeze(self) -> Normaliser:
        floored = np.maximum(self.variance, self._config.minimum_variance)
        return Normaliser(
            mean=self.mean.astype(np.float32),
            variance=floored.astype(np.float32),
            clip=self._config.clip,
        )

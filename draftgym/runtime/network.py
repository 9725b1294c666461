"""A small tanh network in numpy, for one observation at a time."""

from __future__ import annotations

import numpy as np

from draftgym.runtime.policy import PolicyHead
from draftgym.state import Float32Array


class Network:
    """Evaluates a head with preallocated memory; not for concurrent use.

    Each bias is the last column of its matrix and each input ends in a constant one, which
    makes a layer one product and one tanh.

    Args:
        head: Checked weights and statistics.
    """

    def __init__(self, head: PolicyHead) -> None:
        self._normaliser = head.normaliser
        self._matrices = [
            np.ascontiguousarray(np.concatenate([weight, bias[:, None]], axis=1))
            for weight, bias in zip(head.weights, head.biases, strict=True)
        ]  # [out, in + 1]
        self._inputs = [np.ones(matrix.shape[1], np.float32) for matrix in self._matrices]
        self._logits = np.zeros(len(self._matrices[-1]), np.float32)
        self._observation = self._inputs[0][:-1]
        # Per hidden layer: its matrix, its input with the one, where its activation goes.
        self._hidden = [
            (matrix, before, after[:-1])
            for matrix, before, after in zip(
                self._matrices[:-1], self._inputs[:-1], self._inputs[1:], strict=True
            )
        ]

    def logits(self, observation: Float32Array) -> Float32Array:
        """Action preferences.

        Args:
            observation: Shape [features].

        Returns:
            A buffer that the next call overwrites, shape [actions].
        """
        if self._normaliser is None:
            self._observation[:] = observation
        else:
            self._normaliser(observation, out=self._observation)
        for matrix, before, after in self._hidden:
            matrix.dot(before, after)
            np.tanh(after, out=after)
        self._matrices[-1].dot(self._inputs[-1], self._logits)
        return self._logits

    def act(self, observation: Float32Array) -> int:
        """Index of the preferred action; the first of equals."""
        return int(self.logits(observation).argmax())

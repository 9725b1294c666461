"""A small tanh network in numpy, for one observation or for many at a time."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from draftgym.feature_list import Feature
from draftgym.runtime.policy import PolicyHead
from draftgym.state import Float32Array


class Network:
    """Evaluates a head with preallocated memory; not for concurrent use.

    Each bias is the last column of its matrix and each input ends in a constant one, which makes
    a layer one product and one tanh.

    Args:
        head: Checked weights and statistics.
        features: What the entries are, when `logits` is given raw values; None when it is given
            observations.
    """

    def __init__(self, head: PolicyHead, features: Sequence[Feature] | None = None) -> None:
        low, high, matrices = _fold(head, features)
        # Bounds in float32, the constant one included: a clip that casts costs three times as much.
        self._low, self._high = (np.append(bound, 1.0).astype(np.float32) for bound in (low, high))
        inputs = [np.ones(matrix.shape[1], np.float32) for matrix in matrices]
        self._input, self._values = inputs[0], inputs[0][:-1]
        # Per hidden layer: its matrix, its input with the one, where its activation goes.
        self._hidden = [
            (matrix, before, after[:-1])
            for matrix, before, after in zip(matrices[:-1], inputs[:-1], inputs[1:], strict=True)
        ]
        self._last, self._last_input = matrices[-1], inputs[-1]
        self._logits = np.zeros(len(matrices[-1]), np.float32)

    def logits(self, values: Sequence[float] | NDArray[np.floating[Any]]) -> Float32Array:
        """Action preferences.

        Args:
            values: Raw values or an observation, [features], of magnitudes that float32 holds.

        Returns:
            A buffer that the next call overwrites, shape [actions].
        """
        self._values[:] = values
        inputs = self._input
        np.fmax(inputs, self._low, inputs)  # drops NaN
        np.fmin(inputs, self._high, inputs)
        for matrix, before, after in self._hidden:
            matrix.dot(before, after)
            np.tanh(after, after)
        self._last.dot(self._last_input, self._logits)
        return self._logits

    def act(self, values: Sequence[float] | NDArray[np.floating[Any]]) -> int:
        """Index of the preferred action; the first of equals."""
        logits = self.logits(values).tolist()  # plain numbers: cheaper than `argmax` when cold
        return int(logits.index(max(logits)))


class BatchNetwork:
    """The same network for many observations at once; sums may round differently.

    Args:
        head: Checked weights and statistics.
        features: As for `Network`.
    """

    def __init__(self, head: PolicyHead, features: Sequence[Feature] | None = None) -> None:
        self._low, self._high, matrices = _fold(head, features)
        self._layers = [
            (np.ascontiguousarray(matrix[:, :-1].T), np.ascontiguousarray(matrix[:, -1]))
            for matrix in matrices
        ]

    def logits(self, values: NDArray[np.floating[Any]]) -> Float32Array:
        """Action preferences; a fresh array.

        Args:
            values: Raw values or observations, shape [m, features].

        Returns:
            Shape [m, actions].
        """
        bounded = np.fmax(values, self._low)  # drops NaN
        layer = np.empty(bounded.shape, np.float32)
        np.minimum(bounded, self._high, out=layer)
        for weight, bias in self._layers[:-1]:
            layer = layer @ weight
            layer += bias
            np.tanh(layer, out=layer)
        weight, bias = self._layers[-1]
        return layer @ weight + bias

    def act(self, values: NDArray[np.floating[Any]]) -> NDArray[np.int64]:
        """Indices of the preferred actions, the first of equals, shape [m]."""
        preferred: NDArray[np.int64] = self.logits(values).argmax(1)
        return preferred


def _fold(
    head: PolicyHead, features: Sequence[Feature] | None
) -> tuple[NDArray[np.float64], NDArray[np.float64], list[Float32Array]]:
    """A head as bounds of the raw values and one matrix per layer, its bias the last column.

    Scale and bounds of the features, and the normaliser's shift and clip, are increasing in
    every entry: together they are one clip of the raw value and one affine map, and the map is
    part of the first matrix.

    Returns:
        Lower and upper bounds, [features], and matrices, [out, in + 1].
    """
    count = head.weights[0].shape[1]
    table: list[tuple[float, float, float]] = [(1.0, -np.inf, np.inf)] * count
    if features is not None:
        table = [(feature.scale, feature.low, feature.high) for feature in features]
    scale, low, high = np.array(table, np.float64).T
    gain, offset = np.ones(count), np.zeros(count)
    if (known := head.normaliser) is not None:
        gain = 1.0 / np.sqrt(known.variance.astype(np.float64))
        offset = -gain * known.mean
        low = np.maximum(low, (-known.clip - offset) / gain)
        high = np.minimum(high, (known.clip - offset) / gain)
    weights = [weight.astype(np.float64) for weight in head.weights]
    biases = [bias.astype(np.float64) for bias in head.biases]
    biases[0] += weights[0] @ offset
    weights[0] *= gain * scale
    matrices = [
        np.concatenate([weight, bias[:, None]], axis=1).astype(np.float32)
        for weight, bias in zip(weights, biases, strict=True)
    ]
    return low / scale, high / scale, matrices

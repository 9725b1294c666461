"""What an exported policy is: plain arrays and plain data, checked when they are put together.

It knows nothing of how a policy was trained or where it is stored.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from draftgym.errors import DraftGymError
from draftgym.features import FeatureLayout
from draftgym.state import Float32Array

HeadName = Literal["depth", "size"]
HEADS: tuple[HeadName, ...] = ("depth", "size")

CADENCE: dict[HeadName, str] = {
    "depth": "before every draft pass, the first included",
    "size": "once per round, after drafting",
}
"""When each head is asked; a policy trained at another cadence is refused."""


class PolicyError(DraftGymError, ValueError):
    """A policy cannot be used; the message names the file and the field."""


@dataclass(frozen=True)
class Normaliser:
    """Frozen observation statistics: `clip((x - mean) / sqrt(variance))`, in float32.

    Args:
        mean: Shape [features].
        variance: Positive, shape [features]; floor it before freezing.
        clip: Largest magnitude afterwards.

    Raises:
        PolicyError: If shapes differ or a value is not finite or not positive.
    """

    mean: Float32Array
    variance: Float32Array
    clip: float

    def __post_init__(self) -> None:
        for name in ("mean", "variance"):
            values = np.ascontiguousarray(getattr(self, name), np.float32)
            if values.ndim != 1 or not np.isfinite(values).all():
                raise PolicyError(f"normaliser.{name}: must be a vector of finite numbers")
            object.__setattr__(self, name, values)
        if self.mean.shape != self.variance.shape:
            raise PolicyError(
                f"normaliser.variance: {len(self.variance)} entries, but mean has {len(self.mean)}"
            )
        if not (self.variance > 0.0).all():
            raise PolicyError("normaliser.variance: must be positive everywhere")
        if not 0.0 < self.clip < np.inf:
            raise PolicyError(f"normaliser.clip: must be positive and finite, got {self.clip}")
        object.__setattr__(self, "_inverse", 1.0 / np.sqrt(self.variance))
        # Zero-dimensional arrays keep the arithmetic in float32 and skip a conversion per call.
        object.__setattr__(self, "_high", np.float32(self.clip))
        object.__setattr__(self, "_low", np.float32(-self.clip))

    _inverse: Float32Array = field(init=False, repr=False, compare=False)
    _high: np.float32 = field(init=False, repr=False, compare=False)
    _low: np.float32 = field(init=False, repr=False, compare=False)

    def __call__(self, observation: Float32Array, out: Float32Array | None = None) -> Float32Array:
        """Normalise observations, shape [..., features], into `out` or a fresh array."""
        out = np.subtract(observation, self.mean, out=out)
        np.multiply(out, self._inverse, out=out)
        np.maximum(out, self._low, out=out)
        np.minimum(out, self._high, out=out)
        return out


@dataclass(frozen=True)
class PolicyHead:
    """One tanh network: hidden layers, then one logit per action.

    Args:
        weights: Layer matrices, shapes [out, in] as torch keeps them, input to output.
        biases: Layer biases, shapes [out].
        normaliser: Observation statistics; None states that observations go in as they are.
    """

    weights: tuple[Float32Array, ...]
    biases: tuple[Float32Array, ...]
    normaliser: Normaliser | None

    @property
    def hidden(self) -> tuple[int, ...]:
        """Widths of the hidden layers."""
        return tuple(len(bias) for bias in self.biases[:-1])


@dataclass(frozen=True)
class ExportedPolicy:
    """Everything a policy folder holds.

    Args:
        layout: Observation layout that the heads were trained on.
        depth: Network of the "draft again?" decision, or None.
        size: Network of the verification size, or None.
        reward: Reward kind and its settings, plain data.
        pair: Fingerprint of the model pair it was trained on, plain data.
        hardware: Fingerprint of the machine it was trained on, plain data.
        training: Summary of the training run, plain data.
        fallback: Fixed decision for a head that is missing, such as ``{"depth": 2}``.
        deepest: Draft passes after which the depth head is not asked but answers "stop": asking
            after a pass costs more than what still deeper drafts bring; absent, the layout's most.

    Raises:
        PolicyError: If a head does not fit the layout, holds values that are not finite, or is
            missing without a fallback.
    """

    layout: FeatureLayout
    depth: PolicyHead | None
    size: PolicyHead | None
    reward: Mapping[str, Any] = field(default_factory=dict)
    pair: Mapping[str, Any] = field(default_factory=dict)
    hardware: Mapping[str, Any] = field(default_factory=dict)
    training: Mapping[str, Any] = field(default_factory=dict)
    fallback: Mapping[str, int] = field(default_factory=dict)
    deepest: int | None = None

    def __post_init__(self) -> None:
        most = self.layout.max_depth
        if self.deepest is not None and (
            isinstance(self.deepest, bool) or not 1 <= self.deepest <= most
        ):
            raise PolicyError(f"deepest_draft: must be 1 to {most} or null, got {self.deepest}")
        if self.depth is None and self.size is None:
            raise PolicyError("heads: a policy needs at least one of depth, size")
        for name in self.fallback:
            if name not in HEADS:
                raise PolicyError(f"fallback.{name}: unknown; accepted: {', '.join(HEADS)}")
        for name in HEADS:
            head = self.head(name)
            if head is not None:
                check_head(name, head, self.layout)
            else:
                self._check_fallback(name)

    @property
    def most_passes(self) -> int:
        """Draft passes after which nobody is asked."""
        return self.layout.max_depth if self.deepest is None else self.deepest

    def head(self, name: HeadName) -> PolicyHead | None:
        """The network of one decision."""
        return self.depth if name == "depth" else self.size

    def _check_fallback(self, name: HeadName) -> None:
        if name not in self.fallback:
            raise PolicyError(
                f"heads.{name}: missing, and fallback.{name} gives no fixed value instead"
            )
        value = self.fallback[name]
        if isinstance(value, bool) or not isinstance(value, int) or value < 0:
            raise PolicyError(f"fallback.{name}: must be an integer of at least 0, got {value!r}")


def action_table(name: HeadName, layout: FeatureLayout) -> dict[str, Any]:
    """What each action index of a head means."""
    if name == "depth":
        return {"0": "stop", "1": "draft"}
    return {str(index): size for index, size in enumerate(layout.size_grid)}


def check_head(name: HeadName, head: PolicyHead, layout: FeatureLayout) -> None:
    """Check that a head's arrays are finite float32 and fit the layout.

    Raises:
        PolicyError: Naming the tensor or field that does not.
    """
    features = len(layout.depth_names if name == "depth" else layout.size_names)
    actions = len(action_table(name, layout))
    if not head.weights or len(head.weights) != len(head.biases):
        raise PolicyError(f"{name}: needs one bias per weight, and at least one layer")
    width = features
    for layer, (weight, bias) in enumerate(zip(head.weights, head.biases, strict=True)):
        last = layer == len(head.weights) - 1
        out = actions if last else len(bias)
        _check_array(f"{name}.{layer}.weight", weight, (out, width))
        _check_array(f"{name}.{layer}.bias", bias, (out,))
        width = out
    if head.normaliser is not None and len(head.normaliser.mean) != features:
        raise PolicyError(
            f"heads.{name}.normaliser: {len(head.normaliser.mean)} entries, "
            f"but the layout has {features} features"
        )


def _check_array(name: str, values: NDArray[Any], shape: tuple[int, ...]) -> None:
    if values.dtype != np.float32:
        raise PolicyError(f"{name}: must be float32, got {values.dtype}")
    if values.shape != shape:
        raise PolicyError(f"{name}: shape {list(values.shape)}, expected {list(shape)}")
    if not np.isfinite(values).all():
        raise PolicyError(f"{name}: holds values that are not finite")

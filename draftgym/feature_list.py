"""What the entries of an observation are: names, units, bounds and scales, in their order.

It knows numpy and the sizes of a layout, not how a value is found.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from draftgym.state import Float32Array

if TYPE_CHECKING:
    from draftgym.features import FeatureLayout

Float64Array = NDArray[np.float64]

# Scores are divided by this many nats: a whole frontier that deep holds no usable probability.
_SCORE_NATS = 16.0
_ENTROPY_NATS = 10.0
# log2(1 + tokens) / 12: a long prompt before the first pass, a handful of tokens afterwards.
_UNINGESTED_DOUBLINGS = 12.0
_NEAR_ROUNDS = 4


@dataclass(frozen=True, slots=True)
class Feature:
    """One entry of an observation.

    Attributes:
        name: Unique within its observation.
        unit: What the raw value counts, and what it is divided by.
        low: Smallest value after scaling.
        high: Largest value after scaling.
        scale: Factor from the raw value to the observation.
    """

    name: str
    unit: str
    low: float
    high: float
    scale: float = 1.0


class Block:
    """Scale and bounds of one observation kind.

    Args:
        features: Its entries.

    Attributes:
        low: Lower bounds, [entries].
        high: Upper bounds, [entries].
    """

    def __init__(self, features: Sequence[Feature]) -> None:
        self._scale = np.array([feature.scale for feature in features], np.float64)
        # Rounded to float32 first, so that clipped values equal the declared bounds exactly.
        self.low: Float32Array = np.array([feature.low for feature in features], np.float32)
        self.high: Float32Array = np.array([feature.high for feature in features], np.float32)
        self._low, self._high = self.low.astype(np.float64), self.high.astype(np.float64)

    def __len__(self) -> int:
        return len(self.low)

    def bounded(self, raw: Sequence[float] | Float64Array) -> Float32Array:
        """Raw values, [..., entries], scaled, clipped, in float32; NaN becomes the lower bound."""
        # In float64, so that no raw value overflows on its way to the bounds.
        scaled = np.asarray(raw, np.float64) * self._scale
        np.fmax(scaled, self._low, out=scaled)
        out = np.empty(scaled.shape, np.float32)
        np.minimum(scaled, self._high, out=out)
        return out


def history_features(layout: FeatureLayout) -> list[Feature]:
    """Acceptance of the last rounds, newest first, and what sums it up."""
    tokens = (f"tokens / {layout.max_depth}", 0.0, _most_tokens(layout), 1.0 / layout.max_depth)
    passes = (f"draft passes / {layout.max_depth}", 0.0, 1.0, 1.0 / layout.max_depth)
    sizes = (f"drafted tokens / {layout.max_size}", 0.0, 1.0, 1.0 / layout.max_size)
    kinds = (("accepted", tokens), ("drafted", passes), ("verified", sizes))
    return [
        *(
            Feature(f"{kind}_{age}", *rest)
            for kind, rest in kinds
            for age in range(1, layout.history + 1)
        ),
        Feature("rounds_seen", f"rounds / {layout.history}", 0.0, 1.0, 1.0 / layout.history),
        *(Feature(f"mean_{kind}", *rest) for kind, rest in kinds),
        Feature("last_fully_accepted", "0 or 1", 0.0, 1.0),
    ]


def round_features(layout: FeatureLayout) -> list[Feature]:
    """What is known of the running round before each decision."""
    deep, near = layout.max_depth, _NEAR_ROUNDS * (layout.max_depth + 1)
    score = (f"nats / {_SCORE_NATS:g}", -1.0, 0.0, 1.0 / _SCORE_NATS)
    return [
        Feature("has_confidence", "0 or 1", 0.0, 1.0),
        *(Feature(f"frontier_score_{slot}", *score) for slot in range(1, layout.beam_width + 1)),
        Feature("best_path_probability", "probability", 0.0, 1.0),
        Feature("expected_accepted", f"tokens / {deep}", 0.0, _most_tokens(layout), 1.0 / deep),
        Feature("margin", "probability", 0.0, 1.0),
        Feature("entropy", f"nats / {_ENTROPY_NATS:g}", 0.0, 1.0, 1.0 / _ENTROPY_NATS),
        Feature("depth", f"draft passes / {deep}", 0.0, 1.0, 1.0 / deep),
        Feature("depth_allowed", f"draft passes / {deep}", 0.0, 1.0, 1.0 / deep),
        Feature("size_allowed", f"drafted tokens / {layout.max_size}", 0.0, 1.0,
                1.0 / layout.max_size),
        Feature("context_fraction", "tokens / context limit", 0.0, 1.0),
        Feature("remaining_fraction", "tokens / budget", 0.0, 1.0),
        Feature("remaining_near", f"tokens / {near}", 0.0, 1.0, 1.0 / near),
        Feature("uningested", f"log2(1 + tokens) / {_UNINGESTED_DOUBLINGS:g}", 0.0, 1.0,
                1.0 / _UNINGESTED_DOUBLINGS),
        Feature("draft_pass_over_plain", "ratio", 0.0, 2.0),
        Feature("verify_slope_over_plain", "ratio per token", 0.0, 2.0),
    ]  # fmt: skip


def size_features(layout: FeatureLayout) -> list[Feature]:
    """What the size decision sees besides all that the depth decision does."""
    most_nodes = layout.beam_width + (layout.max_depth - 1) * layout.beam_width**2
    tokens = (f"tokens / {layout.max_depth}", 0.0, _most_tokens(layout), 1.0 / layout.max_depth)
    return [
        Feature("nodes", f"drafted tokens / {most_nodes}", 0.0, 1.0, 1.0 / most_nodes),
        *(Feature(f"expected_accepted_{size}", *tokens) for size in layout.size_grid[1:]),
    ]


def _most_tokens(layout: FeatureLayout) -> float:
    """Accepted tokens over the depth: look-ups may bring as many as are verified."""
    return max(2.0, layout.max_size / layout.max_depth)

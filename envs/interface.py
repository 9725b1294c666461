"""What environments need from others: a session, controllers that can be restarted, actions."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol, runtime_checkable

import numpy as np
from numpy.typing import NDArray

from draftgym.clock import Clock
from draftgym.state import RoundRecord, RoundState

Action = int | np.integer[Any] | NDArray[np.integer[Any]]


class Session(Protocol):
    """The part of `draftgym.decoder.session.DecoderSession` that environments drive."""

    @property
    def clock(self) -> Clock:
        """Source of time."""

    @property
    def max_depth(self) -> int:
        """Most draft passes in a round; 0 when the drafter makes none."""

    @property
    def max_size(self) -> int:
        """Most drafted tokens verified in a round."""

    @property
    def finished(self) -> bool:
        """Whether the request ended."""

    @property
    def stop_reason(self) -> str | None:
        """Why it ended."""

    def start(self, prompt_tokens: Sequence[int], max_new_tokens: int, sequence: int = 0) -> None:
        """Prefill a prompt; the first token may already end the request."""

    def begin_round(self) -> RoundState:
        """Open a round; the state is updated in place while it runs."""

    def draft(self) -> None:
        """One draft pass."""

    def end_round(self, size: int) -> RoundRecord:
        """Verify and commit."""

    def charge_policy(self, seconds: float) -> None:
        """Add policy seconds to the running round."""

    def last_pass_seconds(self) -> float:
        """Seconds of the newest draft pass."""


@runtime_checkable
class Reseedable(Protocol):
    """A controller with a random stream that a seeded reset restarts."""

    def reseed(self, seed: int) -> None:
        """Restart the stream."""


@runtime_checkable
class Resumable(Protocol):
    """A controller with a state worth saving."""

    def state_dict(self) -> dict[str, object]:
        """Plain data."""

    def load_state_dict(self, state: dict[str, object]) -> None:
        """Continue from `state_dict`."""


def as_index(value: Action, count: int, name: str = "action") -> int:
    """One integer from what agents and users pass: int, numpy integer, array of one element.

    Raises:
        ValueError: If it is not one integer in 0 to `count - 1`.
    """
    array = np.asarray(value)
    if array.size != 1 or array.dtype.kind not in "iub":
        raise ValueError(f"{name}: must be one integer, got {value!r}")
    index = int(array.item())
    if not 0 <= index < count:
        raise ValueError(f"{name}: must be 0 to {count - 1}, got {index}")
    return index

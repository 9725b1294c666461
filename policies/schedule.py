"""Learning-rate schedules and phase progress, as plain data (nothing here is ever pickled)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from policies.config import PhaseConfig, PolicyName, PPOConfig


@dataclass(frozen=True, slots=True)
class LinearSchedule:
    """Linear warm-up from near zero to `peak`, then linear decay to `final_fraction` of it.

    Attributes:
        peak: Learning rate at the end of the warm-up.
        warmup_fraction: Share of training that warms up.
        final_fraction: Share of the peak left at the end.
    """

    peak: float
    warmup_fraction: float
    final_fraction: float

    @classmethod
    def of(cls, config: PPOConfig) -> LinearSchedule:
        """The schedule that a configuration describes."""
        return cls(
            config.learning_rate, config.warmup_fraction, config.final_learning_rate_fraction
        )

    def __call__(self, progress_remaining: float) -> float:
        """Learning rate; the argument goes from 1 to 0, as in Stable-Baselines3."""
        done = min(max(1.0 - progress_remaining, 0.0), 1.0)
        if done < self.warmup_fraction:
            # Never quite zero: a first update without effect would waste its rollout.
            return self.peak * max(done / self.warmup_fraction, 0.1)
        decayed = (done - self.warmup_fraction) / (1.0 - self.warmup_fraction)
        return self.peak * (1.0 - decayed * (1.0 - self.final_fraction))


def phase_limit(phase: PhaseConfig) -> float:
    """Length of a phase in its own unit, steps or seconds."""
    if phase.steps is not None:
        return float(phase.steps)
    assert phase.seconds is not None  # the configuration requires exactly one
    return phase.seconds


def phase_done(phase: PhaseConfig, steps: int, seconds: float) -> float:
    """How much of a phase is done, in its own unit, at most its limit."""
    return min(float(steps) if phase.steps is not None else seconds, phase_limit(phase))


def policy_progress(
    schedule: Sequence[PhaseConfig], policy: PolicyName, index: int, done: float
) -> float:
    """Share of one policy's whole training that is done, over all of its phases.

    Args:
        schedule: All phases.
        policy: Whose share.
        index: The running phase; earlier ones are finished.
        done: Done in the running phase, in its unit.

    Returns:
        0 to 1; 0 for a policy without phases.
    """
    limits = [phase_limit(p) if p.policy == policy else 0.0 for p in schedule]
    total = sum(limits)
    if total == 0:
        return 0.0
    running = min(done, limits[index]) if index < len(schedule) else 0.0
    return (sum(limits[:index]) + running) / total

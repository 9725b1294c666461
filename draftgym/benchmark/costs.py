"""What a draft pass and a verification cost on this machine, in plain decoding steps.

Measured once per run in ordinary rounds of the session itself, so that the figures hold for
what a user waits for. Training puts them in the observation; the benchmark reports them.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch

from draftgym.benchmark.exactness import Setting
from draftgym.benchmark.runner import Request
from draftgym.clock import Clock
from draftgym.console import Bar
from draftgym.costs.measure import measure_rounds
from draftgym.decoder.session import DecoderSession
from draftgym.errors import DraftGymError
from draftgym.state import MeasuredCosts, RoundRecord


@dataclass(frozen=True, slots=True)
class CostCurve:
    """Medians over rounds; seconds unless the name says otherwise.

    Attributes:
        plain_seconds: One plain decoding step (size 0, no draft pass), the whole round.
        first_pass_seconds: First draft pass, which ingests what the last round committed.
        later_pass_seconds: One later draft pass; 0 for drafters without passes.
        round_seconds: By verified tokens V: a round less its drafting, so target pass,
            acceptance and commit; entry 0 is the plain step itself.
        rounds: Rounds measured, by V.
    """

    plain_seconds: float
    first_pass_seconds: float
    later_pass_seconds: float
    round_seconds: dict[int, float]
    rounds: dict[int, int]

    @property
    def draft_pass_over_plain(self) -> float:
        """One later draft pass over one plain step."""
        return self.later_pass_seconds / self.plain_seconds

    @property
    def verify_over_plain(self) -> dict[int, float]:
        """Time to verify V tokens over one plain step, by V."""
        return {size: value / self.plain_seconds for size, value in self.round_seconds.items()}

    @property
    def measured(self) -> MeasuredCosts:
        """The two ratios of the observation; the slope is a least-squares fit through V = 0."""
        sizes = np.array(sorted(self.round_seconds), np.float64)
        extra = np.array([self.verify_over_plain[int(size)] - 1.0 for size in sizes])
        weight = float((sizes**2).sum())
        slope = float((sizes * extra).sum()) / weight if weight else 0.0
        return MeasuredCosts(self.draft_pass_over_plain, max(0.0, slope))


def measure_costs(
    session: DecoderSession,
    requests: Sequence[Request],
    table: Sequence[Setting],
    *,
    rounds_per_setting: int = 12,
    max_new_tokens: int = 64,
    seed: int = 0,
    bar: Bar | None = None,
) -> CostCurve:
    """Medians of rounds of every setting, from `measure_rounds`.

    Args:
        session: With a drafter; its clock must mark draft passes.
        requests: Prompts, gone round as often as needed.
        table: From `cost_table`; must hold (0, 0).
        rounds_per_setting: Rounds wanted of each setting.
        max_new_tokens: Budget per prompt.
        seed: Of the order of settings.
        bar: Advanced once per round.

    Raises:
        DraftGymError: If the prompts end too early to ever reach the number of rounds, or no
            plain step is among them.
    """
    measured = measure_rounds(
        session,
        requests,
        [(setting,) for setting in table],
        repeats=rounds_per_setting,
        max_new_tokens=max_new_tokens,
        seed=seed,
        bar=bar,
    )
    return summarise_costs(measured.records)


def summarise_costs(records: Sequence[RoundRecord]) -> CostCurve:
    """Medians of measured rounds.

    Args:
        records: Rounds with pass seconds; some must be plain steps.

    Raises:
        DraftGymError: If no round is a plain step.
    """
    by_size: dict[int, list[float]] = defaultdict(list)
    for record in records:
        # A round that drafted and then verified nothing still commits its draft: no plain step.
        if record.size > 0 or record.depth == 0:
            spent = record.draft_seconds + record.policy_seconds
            by_size[record.size].append(record.seconds - spent)
    if not by_size[0]:
        raise DraftGymError("no plain decoding step was measured")
    return CostCurve(
        plain_seconds=float(np.median(by_size[0])),
        first_pass_seconds=_median([record.pass_seconds[:1] for record in records]),
        later_pass_seconds=_median([record.pass_seconds[1:] for record in records]),
        round_seconds={size: float(np.median(by_size[size])) for size in sorted(by_size)},
        rounds={size: len(by_size[size]) for size in sorted(by_size)},
    )


def read_bandwidth(device: torch.device, clock: Clock, *, repeats: int = 7) -> float:
    """Bytes per second at which the device reads a large buffer, the best of several runs.

    A sum of float32 values reads every byte once and writes nothing; the buffer is larger
    than any cache that the weights of a model could stay in.

    Args:
        device: Where the model runs.
        clock: Source of time.
        repeats: Runs.
    """
    megabytes = 2048 if device.type == "cuda" else 512
    buffer = torch.zeros(megabytes * 2**20 // 4, dtype=torch.float32, device=device)
    buffer.sum()
    seconds = []
    for _ in range(repeats):
        start = clock.boundary()
        buffer.sum()
        clock.note("read")
        seconds.append(clock.boundary() - start)
    fastest = min(seconds)
    if fastest <= 0:
        raise DraftGymError("the clock did not advance while a buffer was read")
    return buffer.numel() * buffer.element_size() / fastest


def _median(groups: Sequence[Sequence[float]]) -> float:
    values = [value for group in groups for value in group]
    return float(np.median(values)) if values else 0.0

"""Measures the latency table of a pair, with its plot, and reads off it what policies are told."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np

from draftgym.benchmark.runner import pinned_threads
from draftgym.benchmark.untrained import untrained_controller
from draftgym.clock import Clock
from draftgym.commands._live import load_requests, open_session
from draftgym.console import progress, say
from draftgym.costs.fingerprint import fingerprint
from draftgym.costs.measure import (
    Run,
    cost_table,
    measure_rounds,
    pause_runs,
    reading_seconds,
    spread_by_length,
)
from draftgym.costs.plot import latency_plot
from draftgym.costs.ratios import cost_ratios, plain_step_seconds
from draftgym.costs.table import TABLE, LatencyTable
from draftgym.decoder.pair import ModelPair
from draftgym.provenance import HARDWARE
from draftgym.runtime import DecisionSeconds, decision_seconds
from draftgym.state import MeasuredCosts
from draftgym.storage import write_bytes
from policies.config import TrainConfig
from policies.export import PolicyCard

PROMPTS = 12
"""Prompts of the policy split, spread over their lengths."""

PLOT = "latency.png"
ROUNDS_PER_CYCLE = 5
"""Rounds of each setting for every long pause."""


@dataclass(frozen=True, slots=True)
class Calibration:
    """What policies are told about costs.

    Attributes:
        table: Raw samples of every kind of work.
        plain_seconds: One plain decoding step.
        costs: Ratios shown to the policies.
    """

    table: LatencyTable
    plain_seconds: float
    costs: MeasuredCosts

    @classmethod
    def of(
        cls,
        table: LatencyTable,
        size_grid: Sequence[int],
        prompt_tokens: Sequence[int],
        max_depth: int,
    ) -> Calibration:
        """Read a table at the median prompt's context.

        Args:
            table: Of the pair and machine.
            size_grid: Sizes that the slope of verification is fitted over.
            prompt_tokens: Lengths of prompts.
            max_depth: Passes that a round may make.
        """
        context = int(np.median(prompt_tokens))
        costs = cost_ratios(table, size_grid, context, max_depth=max_depth)
        return cls(table, plain_step_seconds(table, context), costs)

    @property
    def card(self) -> PolicyCard:
        """Origin of a policy that is learned with these costs."""
        known = self.table.fingerprint
        return PolicyCard(
            known["pair"],
            {name: known[name] for name in HARDWARE},
            {"plain_seconds": self.plain_seconds, **asdict(self.costs)},
            known.get("law", "greedy"),
        )

    def describe(self) -> str:
        """One line for people."""
        return (
            f"a plain step {1e3 * self.plain_seconds:.1f} ms; over it, a draft pass "
            f"{self.costs.draft_pass_over_plain:.3f}, a verified token "
            f"{self.costs.verify_slope_over_plain:.3f}"
        )


def run_table(config: TrainConfig, folder: Path, pair: ModelPair, clock: Clock) -> LatencyTable:
    """A run's own table: measured once, kept in its folder.

    Args:
        config: Of the run.
        folder: Of the run.
        pair: Whose work is measured.
        clock: Measures it.

    Raises:
        DraftGymError: If the prompts end too early to measure anything, or the kept
            table is damaged.
    """
    file = folder / TABLE
    if not file.is_file():
        rounds = config.calibration_rounds
        with pinned_threads(config.pair.threads) as threads:
            save(measure(config, pair, clock, rounds, PROMPTS, threads), folder)
    # Read back also when it was just written: the numbers are then the same after a resume.
    return LatencyTable.load(file)


def save(table: LatencyTable, folder: Path) -> None:
    """Write `latency.png`, then `latency.json`, whose presence says that both are there."""
    write_bytes(folder / PLOT, latency_plot(table))
    table.save(folder / TABLE)


def measure(
    config: TrainConfig, pair: ModelPair, clock: Clock, rounds: int, prompts: int, threads: int
) -> LatencyTable:
    """Time draft passes, verification and the rest of a round, interleaved in one session.

    Args:
        config: Layout, prompts, networks whose decisions are timed.
        pair: Whose work is measured.
        clock: Measures it.
        rounds: Per setting, roughly.
        prompts: Prompts to decode.
        threads: That compute, for the fingerprint.

    Raises:
        DraftGymError: If the prompts end too early to measure anything.
    """
    session = open_session(config, pair, clock)
    requests = spread_by_length(load_requests(config, pair, "policy", None), prompts)
    settings = cost_table(pair.config.drafter, config.layout.size_grid)
    # Long pauses are few, or most rounds would be plain steps.
    singles: list[Run] = [(setting,) for setting in settings for _ in range(ROUNDS_PER_CYCLE)]
    runs = singles + pause_runs(pair.config.drafter)
    cycles = math.ceil(rounds / ROUNDS_PER_CYCLE)
    with progress("calibrate", cycles * sum(map(len, runs))) as bar:
        measured = measure_rounds(
            session,
            requests,
            runs,
            repeats=cycles,
            max_new_tokens=config.max_new_tokens,
            seed=config.seed,
            bar=bar,
        )
    reading = reading_seconds(session, requests)
    table = LatencyTable.from_records(
        measured.records,
        fingerprint(pair.fingerprint(), pair.device, pair.dtype, threads, pair.config.sampling.law),
        _decisions(config, clock, reading),
        openings=measured.openings,
    )
    seen = {bucket.units for bucket in table.buckets("verify")}
    missing = sorted({size for _, size in settings} - seen)
    if missing:
        say(
            f"hardly any tree had {', '.join(map(str, missing))} nodes: taken from their neighbours"
        )
    return table


def _decisions(config: TrainConfig, clock: Clock, reading: float) -> DecisionSeconds:
    """One decision of each kind, with reading the confidence."""
    layout = config.layout.features()

    def of(hidden: Sequence[int]) -> DecisionSeconds:
        controller = untrained_controller(layout.max_depth, layout.beam_width, hidden=hidden)
        return decision_seconds(controller, layout, clock)

    depth, size = of(config.depth_ppo.hidden_sizes), of(config.size_ppo.hidden_sizes)
    # A size chosen right after a "stop" finds the tree read; charging it again errs against
    # the policy.
    return DecisionSeconds(depth.depth + reading, size.size + reading)

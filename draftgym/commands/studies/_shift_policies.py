"""Policies of the study of shifts: learned from parts of traces, several seeds each."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from pathlib import Path

import numpy as np

from draftgym.commands._calibration import Calibration
from draftgym.commands.studies._shift_inputs import ShiftInputs
from draftgym.console import Bar
from draftgym.costs.table import LatencyTable
from draftgym.costs.times import Float64Array
from draftgym.features import FeatureLayout
from draftgym.kept import keep, kept
from draftgym.provenance import git_state
from draftgym.state import MeasuredCosts
from draftgym.storage import dump_json
from draftgym.studies.shift import planted
from draftgym.studies.shift.temperatures import COLD
from draftgym.traces.trace import Trace
from policies.all_action import AllActionConfig
from policies.export import PolicyCard
from policies.parts import PartLearner, found_schedule

SCHEDULE = "schedule.json"


class PartPolicies:
    """Learns from parts and judges on test traces; what is learned is kept.

    Args:
        inputs: Traces and tables.
        steps: Most gradient steps of a policy.
        seeds: Policies of each part.
        folder: Of the study; policies of the same inputs go to a folder of their own.
        bar: Advanced by one for the length and by one for each policy.

    Attributes:
        length: Gradient steps of every policy: best on held-out learning prompts of temperature 0.
        deepest: Draft passes after which the depth is not asked, chosen likewise; None for all.

    Raises:
        ValueError: The prompts are too few to hold some out.
    """

    def __init__(self, inputs: ShiftInputs, steps: int, seeds: int, folder: Path, bar: Bar) -> None:
        self._inputs, self._steps, self._seeds, self._bar = inputs, steps, seeds, bar
        self._homes = {
            t: folder / f"policies-t{t:g}-{_digest(inputs, t, steps)}" for t in inputs.learning
        }
        self.length = 0
        self.deepest: int | None = None
        self.length, self.deepest = self._found_schedule()

    def seconds(
        self, name: str, temperature: float, learned_from: Trace, tested_on: Mapping[float, Trace]
    ) -> dict[float, list[Float64Array]]:
        """Learn from a part, judge wherever asked.

        Args:
            name: Of the part.
            temperature: Of `learned_from`; its costs are learned with.
            learned_from: The part.
            tested_on: Test traces by temperature; judged by the costs of each.

        Returns:
            By temperature and seed, seconds of each sequence, [sequences].
        """
        learner = self._learner(temperature)
        found: dict[float, list[Float64Array]] = {there: [] for there in tested_on}
        for seed in range(self._seeds):
            self._bar.describe(f"policies: {name}, seed {seed}")
            policy = learner.learn(name, learned_from, seed)
            for there, trace in tested_on.items():
                found[there].append(self._learner(there).seconds(policy, trace))
            self._bar.advance()
        return found

    def _learner(self, temperature: float) -> PartLearner:
        trace = self._inputs.learning[temperature]
        config = AllActionConfig(steps=self._steps, deepest=self.deepest)
        table, home = self._inputs.tables[temperature], self._homes[temperature]
        return part_learner(trace, table, config, self.length, home)

    def _found_schedule(self) -> tuple[int, int | None]:
        file = self._homes[COLD] / SCHEDULE
        found = kept(file, file.parent.name)
        if found is None:
            self._bar.describe("policies: how long to learn")
            found = found_schedule(self._learner(COLD), self._inputs.learning[COLD])
            keep(file, file.parent.name, found)
        self._bar.advance()
        steps, deepest = found
        return steps, deepest


def part_learner(
    trace: Trace, table: LatencyTable, config: AllActionConfig, length: int, folder: Path
) -> PartLearner:
    """A learner that is told the costs of a table.

    Args:
        trace: Gives shape and prompt lengths.
        table: Measured costs.
        config: How policies learn.
        length: Gradient steps of each.
        folder: Keeps them.
    """
    shape = trace.shape
    layout = FeatureLayout(shape.max_depth, shape.beam_width, size_grid=shape.size_grid)
    lengths = [entry.prompt_tokens for entry in trace.sequences]
    told = Calibration.of(table, shape.size_grid, lengths, shape.max_depth)
    return PartLearner(table, layout, told.costs, told.card, config, length, folder)


def planted_policy(learned_from: Trace, tested_on: Trace) -> Float64Array:
    """Seconds under a policy of a planted trace, learned and judged like those of a real pair.

    Args:
        learned_from: Of `draftgym.studies.shift.planted`.
        tested_on: Another one, or the same.
    """
    config = AllActionConfig(steps=120, requests=32, hidden=(16,), learning_rate=1e-2)
    costs, card = MeasuredCosts(planted.TIMES.draft, planted.TIMES.slope), PolicyCard({}, {}, {})
    learner = PartLearner(planted.TIMES, planted.LAYOUT, costs, card, config, config.steps)
    return learner.seconds(learner.learn("planted", learned_from, 0), tested_on)


def mean_seconds(runs: list[Float64Array]) -> Float64Array:
    """Of the seeds, [sequences]."""
    return np.asarray(np.mean(runs, axis=0), np.float64)


def _digest(inputs: ShiftInputs, temperature: float, steps: int) -> str:
    """Of everything that a policy hangs on, seed and part left out."""
    digest = hashlib.sha256(dump_json([steps, git_state()[0]]).encode())
    for needed in (COLD, temperature):  # the former says how long to learn
        digest.update(dump_json(dict(inputs.learning[needed].source)).encode())
        digest.update(Path(inputs.files[needed]).read_bytes())
    return digest.hexdigest()[:12]

"""What a trace was made of, put together again for comparisons with live decoding."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from draftgym.benchmark.config import Cell, depths, largest_size
from draftgym.benchmark.runner import Request, encode
from draftgym.clock import Clock
from draftgym.commands._calibration import Calibration
from draftgym.commands._inputs import Inputs
from draftgym.configuration import validate
from draftgym.costs.table import LatencyTable
from draftgym.decoder.config import DrafterConfig
from draftgym.decoder.pair import ModelPair
from draftgym.decoder.session import DecoderSession
from draftgym.errors import ConfigurationError
from draftgym.features import FeatureLayout
from draftgym.prompts import Prompt, load_prompts
from draftgym.runtime.folder import first_difference
from draftgym.state import MeasuredCosts
from draftgym.traces.config import TraceConfig
from draftgym.traces.store import load_trace
from draftgym.traces.trace import Trace
from policies.export import PolicyCard


@dataclass(frozen=True)
class Traced:
    """A trace with the configuration and the prompts that it was made from.

    Attributes:
        trace: The trace.
        config: Of the trace.
        prompts: In the order of its sequences.
    """

    trace: Trace
    config: TraceConfig
    prompts: tuple[Prompt, ...]

    def requests(self, pair: ModelPair, count: int) -> list[Request]:
        """The first prompts, encoded; sampled as they were traced."""
        return encode(self.prompts, pair.encode_prompt)[:count]

    def session(self, pair: ModelPair, clock: Clock) -> DecoderSession:
        """A live session with the trace's limits."""
        return DecoderSession(
            pair,
            pair.new_drafter(),
            clock=clock,
            max_depth=self.config.pair.drafter.max_depth,
            max_size=self.config.size_grid[-1],
            ignore_eos=self.config.ignore_eos,
        )


def open_traced(folder: str) -> Traced:
    """Load a trace and what it was made from; loads no model.

    Raises:
        TraceError: No complete trace there.
        ConfigurationError: The prompts have changed since.
    """
    trace = load_trace(Path(folder))
    plan = {name: value for name, value in trace.source["plan"].items() if name != "fingerprint"}
    config = validate(plan, TraceConfig, f"{folder}/manifest.json: plan")
    prompts = load_prompts(config.prompts, config.split, config.count, config.seed)
    if [entry.prompt_id for entry in trace.sequences] != [prompt.id for prompt in prompts]:
        raise ConfigurationError(
            f"{folder}: the prompts that it was made from have changed; make it anew"
        )
    return Traced(trace, config, tuple(prompts))


@dataclass(frozen=True, eq=False)
class Learning:
    """What learning from a trace needs.

    Attributes:
        trace: Of the policy split.
        table: Measured costs of the same pair.
        layout: Observations and actions.
        costs: Cost ratios that policies are shown.
        card: Origin of exported policies.
        folder: Of the trace.
    """

    trace: Trace
    table: LatencyTable
    layout: FeatureLayout
    costs: MeasuredCosts
    card: PolicyCard
    folder: str


def open_learning(
    given_trace: str | None, given_table: str | None, inputs: Inputs | None = None
) -> Learning:
    """A trace and a latency table to learn from; what is not given is found or made.

    Args:
        given_trace: Folder of the trace.
        given_table: File of the table.
        inputs: Finds or makes them; of the default pair when None.

    Raises:
        TraceError: No complete trace there.
        LatencyError: No such table.
        ConfigurationError: Another split than the policies', a drafter without passes, or a trace
            and a table of different pairs.
    """
    inputs = inputs or Inputs()
    folder = inputs.trace(given_trace, "policy")
    trace = load_trace(Path(folder))
    split, shape = trace.source["plan"]["split"], trace.shape
    if split != "policy":
        raise ConfigurationError(
            f"{folder}: made of the {split} split; policies learn from the policy split"
        )
    if shape.max_depth == 0:
        raise ConfigurationError(f"{folder}: its drafter makes no passes to decide about")
    layout = FeatureLayout(
        max_depth=shape.max_depth, beam_width=shape.beam_width, size_grid=shape.size_grid
    )
    file = inputs.table(given_table, trace)
    table = LatencyTable.load(file)
    check_same_pair(trace, table, folder, file)
    lengths = [entry.prompt_tokens for entry in trace.sequences]
    known = Calibration.of(table, shape.size_grid, lengths, shape.max_depth)
    return Learning(trace, table, layout, known.costs, known.card, folder)


def spread_cells(drafter: DrafterConfig, size_grid: Sequence[int], count: int) -> list[Cell]:
    """Fixed cells spread over the table of depths and sizes that the drafter can fill."""
    table = [
        Cell(depth=depth, size=size)
        for depth in depths(drafter)
        for size in size_grid
        if 0 < size <= largest_size(drafter, depth)
    ]
    chosen = np.linspace(0, len(table) - 1, min(count, len(table))).round().astype(int)
    return [table[i] for i in dict.fromkeys(chosen.tolist())]


def check_same_pair(trace: Trace, table: LatencyTable, folder: str, file: str) -> None:
    """Refuse a table of another pair than the trace's.

    Raises:
        ConfigurationError: Naming the first field that differs, with both values.
    """
    difference = first_difference(
        trace.source["plan"]["fingerprint"], table.fingerprint["pair"], "pair", "the trace"
    )
    if difference is not None:
        raise ConfigurationError(f"{file} and {folder} are of different pairs: {difference}")

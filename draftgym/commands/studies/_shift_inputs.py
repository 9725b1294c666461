"""Traces and latency tables of the study of shifts: found, gone on with, or made."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from draftgym.commands._inputs import Inputs
from draftgym.commands._traced import check_same_pair
from draftgym.commands.trace import trace as make_trace
from draftgym.console import say
from draftgym.costs.table import LatencyTable
from draftgym.decoder.config import PairConfig, SamplingConfig
from draftgym.decoder.pair import load_pair
from draftgym.errors import ConfigurationError
from draftgym.features import DEFAULT_SIZE_GRID
from draftgym.prompts import Split
from draftgym.studies.shift.temperatures import COLD
from draftgym.traces.config import TraceConfig
from draftgym.traces.find import newest_trace
from draftgym.traces.store import load_trace
from draftgym.traces.trace import Trace

LEARNING: Split = "policy"
TEST: Split = "test"
SPLITS = (LEARNING, TEST)


@dataclass(frozen=True)
class ShiftInputs:
    """Everything that the study reads.

    Attributes:
        learning: Traces of the policy split by temperature.
        test: Traces of the test split by temperature.
        tables: Latency tables by temperature.
        files: Where each table lies.
        laws: Law that each table was measured under; may differ from that of the temperature.
    """

    learning: Mapping[float, Trace]
    test: Mapping[float, Trace]
    tables: Mapping[float, LatencyTable]
    files: Mapping[float, str]
    laws: Mapping[float, str]


def trace_config(
    pair: PairConfig, temperature: float, split: Split, prompts: int, tokens: int
) -> TraceConfig:
    """What is traced: all prompts at temperature 0, and the first ones of the balanced order else.

    Args:
        pair: Its sampling is replaced.
        temperature: Of the target's law.
        split: That the prompts come from.
        prompts: At temperatures above 0.
        tokens: Budget per prompt.
    """
    sampling = SamplingConfig(temperature=temperature)
    most = pair.drafter.max_size
    return TraceConfig(
        pair=pair.model_copy(update={"sampling": sampling}),
        split=split,
        count=None if temperature == COLD else prompts,
        max_new_tokens=tokens,
        size_grid=tuple(size for size in DEFAULT_SIZE_GRID if size <= most),
    )


def open_inputs(
    pair: PairConfig,
    temperatures: Sequence[float],
    prompts: int,
    tokens: int,
    tables: Sequence[str],
    runs: Path,
    folder: Path,
) -> ShiftInputs:
    """Find or make all traces, then match tables with temperatures.

    Args:
        pair: Of temperature 0.
        temperatures: 0 first.
        prompts: Of each split at temperatures above 0.
        tokens: Budget per prompt.
        tables: Files, of different laws; the newest greedy one, or a new one, when empty.
        runs: Folder of all runs, where finished traces are looked for, too.
        folder: New traces go there.

    Raises:
        DraftGymError: Something cannot be traced or measured, or does not belong together.
    """
    inputs = Inputs(runs, pair)
    fingerprint = inputs.pair(pair).fingerprint()
    found: dict[Split, dict[float, Trace]] = {split: {} for split in SPLITS}
    for temperature in temperatures:
        for split in SPLITS:
            config = trace_config(pair, temperature, split, prompts, tokens)
            home = _trace(config, fingerprint, runs, folder / f"{split}-t{temperature:g}")
            found[split][temperature] = load_trace(home)
    cold = found[LEARNING][COLD]
    if cold.shape.max_depth == 0:
        raise ConfigurationError("--pair: its drafter makes no passes to decide about")
    files = list(tables) or [inputs.table(None, cold)]
    by_law = _by_law(files, cold, str(folder))
    chosen = {
        temperature: by_law.get(_law(temperature)) or by_law[_law(COLD)]
        for temperature in temperatures
    }
    loaded = {file: LatencyTable.load(file) for file in set(chosen.values())}
    laws = {t: str(loaded[file].fingerprint.get("law", _law(COLD))) for t, file in chosen.items()}
    borrowed = [f"{t:g}" for t in temperatures if laws[t] != _law(t)]
    if borrowed:
        say(f"no latency table of temperature {', '.join(borrowed)}: costs of temperature 0")
    times = {t: loaded[file] for t, file in chosen.items()}
    return ShiftInputs(found[LEARNING], found[TEST], times, chosen, laws)


def _trace(config: TraceConfig, fingerprint: Mapping[str, str], runs: Path, home: Path) -> Path:
    """Folder of a complete trace."""
    plan = config.plan(fingerprint)
    found = newest_trace(home.parent, plan) or newest_trace(runs, plan)
    if found is None:
        say(f"tracing the {config.split} split, {config.pair.sampling.describe()}")
        make_trace(config, home, pair=load_pair(config.pair))
        return home
    say(f"trace: {found}")
    return found


def _by_law(files: Sequence[str], trace: Trace, folder: str) -> dict[str, str]:
    """Files by the law that they were measured under.

    Raises:
        ConfigurationError: Two of one law, none of temperature 0, or one of another pair.
    """
    found: dict[str, str] = {}
    for file in files:
        table = LatencyTable.load(file)
        check_same_pair(trace, table, folder, file)
        law = str(table.fingerprint.get("law", _law(COLD)))
        if law in found:
            raise ConfigurationError(f"--table: {found[law]} and {file} are both of law {law!r}")
        found[law] = file
    if _law(COLD) not in found:
        raise ConfigurationError(
            f"--table: none of law {_law(COLD)!r}; got {', '.join(sorted(found))}"
        )
    return found


def _law(temperature: float) -> str:
    return SamplingConfig(temperature=temperature).law

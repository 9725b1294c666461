"""What a verb needs and was not given: the newest fitting one under `runs/`, or a new one."""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import Any

import tyro

from draftgym.benchmark.runner import pinned_threads
from draftgym.commands._live import DEFAULT_CONFIG
from draftgym.commands.calibrate import calibrate
from draftgym.commands.trace import trace as make_trace
from draftgym.configuration import load_yaml
from draftgym.console import say
from draftgym.costs.find import newest_table
from draftgym.costs.fingerprint import fingerprint
from draftgym.costs.table import TABLE as TABLE_FILE
from draftgym.decoder.config import PairConfig
from draftgym.decoder.pair import ModelPair, load_pair
from draftgym.errors import ConfigurationError
from draftgym.features import DEFAULT_SIZE_GRID
from draftgym.prompts import PromptSource, Split, load_prompts
from draftgym.runtime.folder import first_difference
from draftgym.traces.config import TraceConfig
from draftgym.traces.find import newest_trace
from draftgym.traces.trace import Trace
from policies.config import TrainConfig

RUNS = Path("runs")
POLICY_TRACE, TEST_TRACE = (
    tyro.conf.arg(help=f"Folder of a trace; absent: the newest of the {split} split, or a new one.")
    for split in ("policy", "test")
)
TABLE = tyro.conf.arg(
    help="Latency table; absent: the newest of this pair and machine, or a new one."
)
POSITION_SECONDS = 0.05
"""Of tracing the default pair on two cores; only said."""


class Inputs:
    """Traces and tables of a pair; loads no model while every path is given.

    Args:
        runs: Folder of all runs.
        config: Of the pair; the default pair when None.
        prompts: Sources of the prompts that are traced.
    """

    def __init__(
        self,
        runs: Path = RUNS,
        config: PairConfig | None = None,
        prompts: tuple[PromptSource, ...] = (PromptSource(),),
    ) -> None:
        self._runs, self._config, self._prompts = runs, config, prompts
        self._pair: ModelPair | None = None

    def pair(self, config: PairConfig) -> ModelPair:
        """A loaded pair; the same one for the same configuration.

        Args:
            config: Of the pair.
        """
        if self._pair is None or self._pair.config != config:
            self._pair = load_pair(config)
        return self._pair

    def trace(
        self,
        given: str | None,
        split: Split,
        *,
        count: int | None = None,
        max_new_tokens: int | None = None,
    ) -> str:
        """Folder of a trace.

        Args:
            given: By the user; taken as it is.
            split: That the prompts of another one must come from.
            count: Prompts of a new one; all when None. Any number will do of one that is found.
            max_new_tokens: Budget per request, of any; that of `TraceConfig` when None.

        Raises:
            DraftGymError: If none is found and none can be made.
        """
        if given is not None:
            return given
        length = "" if max_new_tokens is None else f"-{max_new_tokens}"
        name = ("trace" if split == "policy" else f"trace-{split}") + length
        output = self._runs / (name + self._suffix())
        config = self.trace_config(split, count, max_new_tokens, str(output))
        pair = self.pair(config.pair)
        plan = config.plan(pair.fingerprint())
        found = newest_trace(
            self._runs, {name: plan[name] for name in plan.keys() - {"count", "seed"}}
        )
        if found is None:
            count = len(load_prompts(config.prompts, split, config.count, config.seed))
            minutes = count * (config.max_new_tokens - 1) * POSITION_SECONDS / 60
            say(
                f"no trace of the {split} split of this pair under {self._runs}/: tracing "
                f"{count} prompts into {output}, some {minutes:.0f} min on two cores"
            )
            make_trace(config, output, pair=pair)
            found = output
        say(f"trace: {found}")
        return str(found)

    def table(self, given: str | None, trace: Trace) -> str:
        """File of a latency table.

        Args:
            given: By the user; taken as it is.
            trace: That it will be used with.

        Raises:
            ConfigurationError: None is given, and the trace is not of the default pair.
            DraftGymError: If none is found and none can be measured.
        """
        if given is not None:
            return given
        config = self._train_config()
        pair = self.pair(config.pair)
        known = trace.source["plan"]["fingerprint"]
        difference = first_difference(known, pair.fingerprint(), "pair", "the trace")
        if difference is not None:
            raise ConfigurationError(
                f"--table: the trace is not of this pair ({difference}), so give a table"
            )
        found = newest_table(self._runs, self.fingerprint())
        if found is None:
            folder = self._runs / f"calibration{self._suffix()}"
            say(
                f"no latency table of this pair, machine and versions under {self._runs}/: "
                f"measuring one into {folder}, about a minute"
            )
            calibrate(config, folder, pair=pair)
            found = folder / TABLE_FILE
        say(f"latency table: {found}")
        return str(found)

    def trace_config(
        self,
        split: Split,
        count: int | None = None,
        max_new_tokens: int | None = None,
        output: str = "",
    ) -> TraceConfig:
        """What a trace of this pair is made by; sizes end at the drafter's largest.

        Args:
            split: That the prompts come from.
            count: Prompts; all when None.
            max_new_tokens: Budget per request; that of `TraceConfig` when None.
            output: Folder.
        """
        changes: dict[str, Any] = {"prompts": self._prompts}
        if max_new_tokens is not None:
            changes["max_new_tokens"] = max_new_tokens
        if output:
            changes["output"] = output
        if self._config is not None:
            most = self._config.drafter.max_size
            sizes = tuple(size for size in DEFAULT_SIZE_GRID if size <= most)
            changes |= {"pair": self._config, "size_grid": sizes}
        return TraceConfig(split=split, count=count, **changes)

    def _suffix(self) -> str:
        """Of folders, so that those of other pairs and prompts do not meet the default's."""
        mine = self.trace_config("policy")
        if mine == TraceConfig():
            return ""
        told = mine.model_dump_json(include={"pair", "prompts", "size_grid"})
        return f"-{hashlib.sha256(told.encode()).hexdigest()[:8]}"

    def fingerprint(self) -> dict[str, Any]:
        """Of the pair and this machine, as a latency table must have it."""
        config = self._train_config()
        pair = self.pair(config.pair)
        with pinned_threads(config.pair.threads) as threads:
            return fingerprint(
                pair.fingerprint(), pair.device, pair.dtype, threads, pair.config.sampling.law
            )

    def _train_config(self) -> TrainConfig:
        config = load_yaml(DEFAULT_CONFIG, TrainConfig)
        return config if self._config is None else config.model_copy(update={"pair": self._config})

"""The evaluator: plain decoding, fixed cells, rules, policies and peers on the same prompts.

What is tuned is tuned on validation prompts and judged on test prompts, which nothing else
sees. Every block goes to disk when it is complete, so a stopped evaluation goes on.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from draftgym.benchmark.config import Cell, EvaluateConfig
from draftgym.benchmark.contenders import Contenders
from draftgym.benchmark.costs import measure_costs
from draftgym.benchmark.divergence import Divergence
from draftgym.benchmark.energy import Meter
from draftgym.benchmark.findings import Findings
from draftgym.benchmark.reference import Reference, reference_of
from draftgym.benchmark.report import write_report
from draftgym.benchmark.runner import (
    Method,
    Plan,
    Request,
    Sample,
    encode,
    other_load,
    pinned_threads,
    run_blocks,
)
from draftgym.benchmark.samples import SampleStore, finished_blocks
from draftgym.benchmark.summary import (
    POLICY,
    Ranked,
    compare_outputs,
    rank_cells,
)
from draftgym.benchmark.tuning import check_unseen
from draftgym.clock import Clock, WallClock
from draftgym.console import progress, say
from draftgym.controllers.tuning import Tuning
from draftgym.costs.measure import cost_table
from draftgym.decoder.pair import ModelPair, load_pair
from draftgym.decoder.rules import new_rule
from draftgym.decoder.session import DecoderSession
from draftgym.locking import exclusive
from draftgym.prompts import Prompt, Split, load_prompts
from draftgym.provenance import provenance
from draftgym.runtime import load_controller
from draftgym.state import MeasuredCosts
from draftgym.storage import dump_json, write_json

SCHEMA = "draftgym.evaluate/1"


@dataclass(frozen=True, slots=True)
class Evaluation:
    """A finished evaluation.

    Attributes:
        payload: The result line, without its schema name.
        details: What the report shows besides.
        folder: Holds `report.json`, `report.md`, `plots/` and `samples.jsonl`.
        faults: Divergences from plain decoding that no near-tie explains.
    """

    payload: dict[str, Any]
    details: dict[str, Any]
    folder: Path
    faults: tuple[Divergence, ...]


def evaluate(
    config: EvaluateConfig,
    *,
    pair: ModelPair | None = None,
    reference: Reference | None = None,
    clock: Clock | None = None,
    tuning: Tuning | None = None,
) -> Evaluation:
    """Run (or go on with) an evaluation and write its report.

    Args:
        config: What to measure.
        pair: Loaded from the configuration when None.
        reference: The target in Transformers, loaded only if outputs differ; from the pair's
            folder when None.
        clock: Wall clock of the pair's device when None.
        tuning: Of the rules that the configuration names.

    Raises:
        DraftGymError: A policy for another pair, or too few usable prompts.
        ValueError: Rules are named, but their tuning is not given.
    """
    if config.rules and tuning is None:
        raise ValueError("rules: tuned on traces, by `python evaluate.py`; none were given")
    if config.policy is not None:
        load_controller(config.policy)  # a path that cannot be used is no reason to load a model
    for path in config.beside:
        load_controller(path)
    pair = load_pair(config.pair) if pair is None else pair
    reference = reference_of(pair) if reference is None else reference
    clock = WallClock(pair.device) if clock is None else clock
    with exclusive(Path(config.output)), pinned_threads(config.pair.threads):
        return _Evaluator(config, pair, reference, clock, tuning).run()


class _Evaluator:
    def __init__(
        self,
        config: EvaluateConfig,
        pair: ModelPair,
        reference: Reference,
        clock: Clock,
        tuning: Tuning | None,
    ) -> None:
        self._config, self._tuning = config, tuning
        self._pair = pair
        self._reference = reference
        self._clock = clock
        self._folder = Path(config.output)
        self._provenance = provenance(
            pair.device, pair.dtype, {"load_per_core_before": other_load()}
        )
        self._key = _identity(config, pair, self._provenance, tuning)
        self._store = SampleStore(self._folder / "samples.jsonl", self._key)
        validation = self._prompts("validation", config.validation.prompts)
        test = self._prompts("test", config.test.prompts)
        check_unseen(
            (prompt.request_id for prompt in test),
            {
                "validation": [prompt.request_id for prompt in validation],
                **({} if tuning is None else tuning.seen),
            },
        )
        self._validation = encode(validation, pair.encode_prompt)
        self._test = encode(test, pair.encode_prompt)

    def run(self) -> Evaluation:
        config = self._config
        say(f"{self._pair.device}, {self._pair.dtype}; {self._pair.generation.describe()}")
        write_json(self._folder / "config.json", config)
        ours = Contenders(config, self._pair, self._clock, self._tuning)
        # What cannot be loaded shows before anything is measured.
        peers = ours.peers(self._reference)
        plain, learned = ours.plain(), ours.learned(self._costs)
        if self._tuning is not None and "fixed" in config.rules:
            ranked = ranked_on_traces(self._tuning)
        else:
            ranked = self._race(plain, {cell: ours.cell(cell) for cell in config.cells})
        finalists = [entry.cell for entry in ranked[: config.finalists]]
        cells = [ours.cell(cell) for cell in finalists]
        methods: list[Method] = [plain, *ours.control(), *cells, *ours.rules(), *learned]
        methods += peers
        samples = self._measure("test", methods, self._test, config.test.repeats)
        return self._finish(ranked, samples, [method.name for method in methods])

    def _policies(self) -> dict[str, Any]:
        """What the learned methods are: path and how they were learned."""
        config = self._config
        named = {} if config.policy is None else {POLICY: config.policy}
        named |= {config.named(path): path for path in config.beside}
        return {
            name: {"path": path, "training": dict(load_controller(path).training)}
            for name, path in named.items()
        }

    def _prompts(self, split: Split, count: int) -> list[Prompt]:
        prompts = load_prompts(self._config.prompts, split, count, self._config.seeds.prompts)
        if len(prompts) < count:
            say(f"{split}: {count} prompts asked for, {len(prompts)} exist")
        return prompts

    def _costs(self, session: DecoderSession, size_grid: Sequence[int]) -> MeasuredCosts:
        """What the policy is told about this machine; kept, so a resumed run tells the same."""
        file = self._folder / "costs.json"
        if file.is_file():
            known = json.loads(file.read_text(encoding="utf-8"))
            if known.pop("key") == [self._key, list(size_grid)]:
                return MeasuredCosts(**known)
        table = cost_table(self._config.pair.drafter, size_grid)
        rounds = self._config.cost_rounds
        with progress("costs", len(table) * rounds) as bar:
            curve = measure_costs(
                session, self._validation, table, rounds_per_setting=rounds, bar=bar
            )
        write_json(file, {"key": [self._key, list(size_grid)], **asdict(curve.measured)})
        return curve.measured

    def _race(self, plain: Method, fixed: Mapping[Cell, Method]) -> list[Ranked]:
        """Rank the cells on validation prompts, dropping clearly worse ones on the way."""
        plan = self._config.validation
        split = len(self._validation) if plan.race_prompts is None else plan.race_prompts
        cells = list(fixed)
        first = [plain, *fixed.values()]
        samples = self._measure("validation", first, self._validation[:split], plan.repeats)
        rest = self._validation[split:]
        if rest:
            kept = [entry.cell for entry in rank_cells(samples, cells)[: plan.race_keep]]
            second = [plain, *(fixed[cell] for cell in kept)]
            samples += self._measure("validation race", second, rest, plan.repeats)
        return rank_cells(samples, cells)

    def _measure(
        self, phase: str, methods: Sequence[Method], requests: Sequence[Request], repeats: int
    ) -> list[Sample]:
        config = self._config
        tokens = config.test.max_new_tokens if phase == "test" else config.validation.max_new_tokens
        plan = Plan(tokens, repeats, config.seeds.order, config.warm_up_tokens)
        blocks = {(repeat, request.prompt_id) for repeat, request in plan.blocks(requests)}
        before = [
            sample
            for sample in self._store.load(phase, [method.name for method in methods])
            if (sample.repeat, sample.prompt_id) in blocks
        ]
        finished = finished_blocks(before)
        if finished:
            say(f"{phase}: going on after {len(finished)} of {len(blocks)} blocks")
        with progress(phase, len(methods) * (len(blocks) - len(finished))) as bar:
            now = run_blocks(
                methods,
                requests,
                plan,
                finished=finished,
                on_block=lambda block: self._store.append(phase, block),
                bar=bar,
                meter=Meter(self._pair.device),
            )
        return before + now

    def _finish(
        self, ranked: Sequence[Ranked], samples: Sequence[Sample], methods: Sequence[str]
    ) -> Evaluation:
        config = self._config
        rule = new_rule(config.pair.sampling)
        divergences = compare_outputs(samples, self._test, self._reference, rule)
        found = Findings(config, self._test, samples, methods, ranked, divergences, self._tuning)
        origin = {
            **self._provenance,
            "config_hash": self._key,
            "pair": self._pair.fingerprint(),
            "tuned_on": None if self._tuning is None else dict(self._tuning.origin),
            "policies": self._policies(),
        }
        payload, details = {**found.payload(), "provenance": origin}, found.details()
        write_report(self._folder, {"schema": SCHEMA, **payload}, details)
        say(f"report: {self._folder}/report.html (also report.md, report.csv, report.json, plots/)")
        return Evaluation(payload, details, self._folder, found.faults)


def ranked_on_traces(tuning: Tuning) -> list[Ranked]:
    """Fixed cells as they rank on the validation trace."""
    fixed = tuning.of("fixed")
    plain = tuning.plain_seconds_per_token
    return [
        Ranked(
            cell=Cell(depth=int(trial.settings["depth"]), size=int(trial.settings["size"])),
            prompts=fixed.prompts,
            seconds_per_token=trial.seconds_per_token,
            tau_emitted=None,
            speedup=plain / trial.seconds_per_token,
        )
        for trial in fixed.trials
    ]


def _identity(
    config: EvaluateConfig, pair: ModelPair, origin: dict[str, Any], tuning: Tuning | None
) -> str:
    """Hash of all that a figure depends on: plan, policy, pair, code, machine.

    The folder's own name is left out, so moving a run does not forget it.
    """
    paths = ([] if config.policy is None else [config.policy]) + list(config.beside)
    policies = []
    for learned in map(Path, paths):
        inside = learned.iterdir() if learned.is_dir() else (learned,)
        files = sorted(path for path in inside if path.is_file())
        policies.append([hashlib.sha256(path.read_bytes()).hexdigest() for path in files])
    parts = {
        "config": config.model_dump(mode="json", exclude={"output", "policy", "beside", "labels"}),
        "policies": policies,
        "tuning": None if tuning is None else [rule.as_data() for rule in tuning.rules],
        "pair": pair.fingerprint(),
        "origin": {
            name: origin[name]
            for name in (
                "commit",
                "uncommitted_changes",
                "versions",
                "cpu",
                "cores",
                "threads",
                "device",
                "dtype",
            )
        }
        | {"gpu": origin.get("gpu")},
    }
    return hashlib.sha256(dump_json(parts).encode()).hexdigest()[:16]

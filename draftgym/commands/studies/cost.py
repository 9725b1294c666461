"""When a longer draft pays: the closed forms, and beside them a real pair's chains on the clock."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import tyro

from draftgym.benchmark.methods import SessionMethod
from draftgym.benchmark.runner import Plan, Sample, other_load, pinned_threads, run_blocks
from draftgym.benchmark.samples import SampleStore, finished_blocks
from draftgym.clock import WallClock
from draftgym.commands._inputs import TABLE, Inputs
from draftgym.commands._traced import Traced, open_traced
from draftgym.commands.trace import trace as make_trace
from draftgym.configuration import load_yaml
from draftgym.console import print_result, progress, say
from draftgym.costs.table import LatencyTable
from draftgym.decoder.config import PairConfig
from draftgym.decoder.controllers import FixedController
from draftgym.decoder.pair import ModelPair
from draftgym.errors import ConfigurationError
from draftgym.locking import exclusive
from draftgym.provenance import git_state, provenance
from draftgym.storage import dump_json, write_bytes, write_json
from draftgym.studies.cost.joint import (
    EqualMeans,
    Joint,
    equal_means,
    joint_acceptance,
    rounds_walked,
    texts_of,
)
from draftgym.studies.cost.plots import formula_plot, joint_plot, speed_plot
from draftgym.studies.cost.predict import (
    PLAIN,
    chain_name,
    compared,
    live_rounds,
    live_speed,
    measured_costs,
    predictions,
)
from draftgym.studies.cost.values import known_values, table
from draftgym.studies.known import study_result, study_schema
from draftgym.traces.config import TraceConfig
from draftgym.traces.find import fits

NAME = "cost"
FORMULAS = "cost-formulas"
"""Folder without the pair: it must not replace what was measured."""
PHASE = "live"
MOST = 8
"""Longest chain: no latency table measures deeper rounds."""
CHAINS_PER_PLAIN = 3
"""Plain decoding is in every ratio, so it is measured more often than a chain."""


@dataclass(frozen=True)
class Arguments:
    """Formulas of speculative decoding with a chain, checked; then a real pair beside them.

    Every position of greedy texts is traced with a chain of the draft head; joint acceptance is
    compared with powers of the mean, and the speeds that formulas predict with those of live
    decoding, interleaved with plain decoding. A killed study goes on when the same command is
    given again.
    """

    prompts: Annotated[int, tyro.conf.arg(help="Test prompts; 0 leaves the pair out.")] = 24
    tokens: Annotated[int, tyro.conf.arg(help="Budget per prompt.")] = 64
    lengths: Annotated[
        tuple[int, ...], tyro.conf.arg(help=f"Chains γ that are timed, up to {MOST}.")
    ] = (1, 2, 3, 4, 6, 8)
    repeats: Annotated[int, tyro.conf.arg(help="Measurements of each chain and prompt.")] = 1
    pair: Annotated[
        str | None,
        tyro.conf.arg(help="YAML file of a pair with an EAGLE-3 head; the default pair if absent."),
    ] = None
    table: Annotated[str | None, TABLE] = None
    seed: Annotated[int, tyro.conf.arg(help="Of prompts, order and intervals.")] = 0
    output: Annotated[
        str,
        tyro.conf.arg(
            help=f"Folder; results go to OUTPUT/{NAME}, formulas alone to OUTPUT/{FORMULAS}."
        ),
    ] = "runs/study"

    @property
    def longest(self) -> int:
        """Drafted tokens of the longest chain, K."""
        return max(self.lengths)


def main(argv: Sequence[str]) -> int:
    """Run the study; returns 1 when a known value is missed."""
    arguments = tyro.cli(Arguments, args=list(argv[1:]), prog=f"python -m draftgym study {NAME}")
    config = trace_config(arguments)
    folder = Path(arguments.output) / (NAME if config else FORMULAS)
    clock = WallClock()
    start = clock.boundary()
    with exclusive(folder):
        known = known_values()
        for value in known:
            say(f"{value.name}: {value.got:.6g}, known {value.expected:g}")
        rows = table()
        write_bytes(folder / "formula.png", formula_plot(rows))
        measured, origin = on_the_pair(arguments, config, folder) if config else ({}, provenance())
        result = study_result(
            NAME, known, {"table": rows, **measured}, clock.boundary() - start, origin
        )
        write_json(folder / "result.json", {"schema": study_schema(NAME), **result})
    say(f"results: {folder}")
    print_result(study_schema(NAME), result)
    return 0 if result["ok"] else 1


def trace_config(arguments: Arguments) -> TraceConfig | None:
    """What is traced: the pair with a chain of its draft head; None where the pair is left out.

    Raises:
        ConfigurationError: An option out of range, or a pair without a draft head.
    """
    if arguments.prompts == 0:
        return None
    for name, least in (("prompts", 2), ("repeats", 1), ("seed", 0)):
        if getattr(arguments, name) < least:
            raise ConfigurationError(
                f"--{name}: must be at least {least}, got {getattr(arguments, name)}"
            )
    lengths = arguments.lengths
    if not lengths or min(lengths) < 1 or arguments.longest > MOST:
        raise ConfigurationError(f"--lengths: must be 1 to {MOST}, got {list(lengths)}")
    if len(set(lengths)) < len(lengths):
        raise ConfigurationError(f"--lengths: repeats in {list(lengths)}")
    if arguments.tokens < arguments.longest + 2:
        raise ConfigurationError(
            f"--tokens: must be at least {arguments.longest + 2}, or no chain of "
            f"{arguments.longest} fits; got {arguments.tokens}"
        )
    named = arguments.pair
    pair = PairConfig() if named is None else load_yaml(named, PairConfig)
    if pair.drafter.kind not in ("eagle3", "hybrid") or not pair.sampling.greedy:
        raise ConfigurationError(
            f"--pair: {named}: needs drafter.kind eagle3 or hybrid, and temperature 0"
        )
    changes = {
        "kind": "eagle3",
        "beam_width": 1,
        "max_depth": arguments.longest,
        "max_size": arguments.longest,
    }
    drafter = pair.drafter.model_copy(update=changes)
    return TraceConfig(
        pair=pair.model_copy(update={"drafter": drafter}),
        split="test",
        count=arguments.prompts,
        max_new_tokens=arguments.tokens,
        size_grid=tuple(range(arguments.longest + 1)),
        seed=arguments.seed,
    )


def on_the_pair(
    arguments: Arguments, config: TraceConfig, folder: Path
) -> tuple[dict[str, Any], dict[str, Any]]:
    """Trace chains, read costs, time chains; writes `joint.png` and `speed.png`.

    Args:
        arguments: Extent.
        config: Of the trace.
        folder: Of the results.

    Returns:
        What was measured, and where it came from.
    """
    load = other_load()
    inputs = Inputs(config=config.pair)
    pair = inputs.pair(config.pair)
    traced = chain_trace(config, pair, folder)
    texts = texts_of(traced.trace)
    joint = joint_acceptance(texts, arguments.longest, config.seed)
    orders = equal_means(texts, arguments.lengths, arguments.longest, config.seed)
    walked = rounds_walked(texts, arguments.longest, config.seed)
    say_acceptance(joint, orders)
    times = LatencyTable.load(inputs.table(arguments.table, traced.trace), inputs.fingerprint())
    samples = timed(arguments, traced, pair, inputs.fingerprint(), folder)
    tokens = np.array([rounds.estimate for rounds in walked])
    costs = measured_costs(times, traced.trace, tokens)
    predicted = predictions(joint, tokens, costs, traced.trace, times)
    requests = {prompt.id: prompt.request_id for prompt in traced.prompts}
    live = live_speed(samples, arguments.lengths, requests, config.seed)
    errors = compared(predicted, live)
    rounds = live_rounds(samples, live)
    for gamma, found in rounds.items():
        say(
            f"γ = {gamma}: {found['tokens']:.3f} tokens per round, {walked[gamma].estimate:.3f} by "
            f"the trace; a round costs {found['cost']:.3f} plain steps, {costs.rounds[gamma]:.3f} "
            "by the latency table"
        )
    say_speed(live, predicted, errors)
    plots = {
        "formula": folder / "formula.png",
        "joint": write_bytes(folder / "joint.png", joint_plot(joint, orders)),
        "speed": write_bytes(folder / "speed.png", speed_plot(predicted, live, costs)),
    }
    measured = {
        "prompts": len(traced.prompts),
        "tokens": arguments.tokens,
        "joint": asdict(joint),
        "equal_means": asdict(orders),
        "rounds_walked": walked,
        "costs": {**asdict(costs), "rounds": costs.rounds},
        "live": live,
        "live_rounds": rounds,
        "predicted": predicted,
        "errors": errors,
        "plots": plots,
    }
    return measured, provenance(pair.device, pair.dtype, {"load_per_core_before": load})


def chain_trace(config: TraceConfig, pair: ModelPair, folder: Path) -> Traced:
    """The trace of chains in the study's own folder, made or gone on with where it is missing."""
    plan = config.plan(pair.fingerprint())
    home = folder / f"trace-{_digest(plan)}"
    if not fits(home, plan):
        make_trace(config, home, pair=pair)
    return open_traced(str(home))


def timed(
    arguments: Arguments,
    traced: Traced,
    pair: ModelPair,
    fingerprint: Mapping[str, Any],
    folder: Path,
) -> list[Sample]:
    """Live decoding with every chain, interleaved with plain decoding; kept by block.

    Args:
        arguments: Chains and repeats.
        traced: Whose prompts are decoded, with its budget.
        pair: Decodes.
        fingerprint: Of the pair and this machine.
        folder: Of the kept samples.
    """
    session = traced.session(pair, WallClock(pair.device))
    plains = [f"{PLAIN} {turn}" for turn in range(-(-len(arguments.lengths) // CHAINS_PER_PLAIN))]
    controllers = {name: FixedController(0, 0) for name in plains} | {
        chain_name(gamma): FixedController(gamma, gamma) for gamma in arguments.lengths
    }
    methods = [SessionMethod(name, session, chosen) for name, chosen in controllers.items()]
    plan = Plan(traced.config.max_new_tokens, arguments.repeats, traced.config.seed)
    requests = traced.requests(pair, len(traced.prompts))
    key = _digest(
        [traced.config, fingerprint, list(controllers), arguments.repeats, git_state()[0]]
    )
    store = SampleStore(folder / "samples.jsonl", key)
    before = store.load(PHASE, controllers)
    every = len(methods) * len(requests) * arguments.repeats
    left = every - len(before)
    if before:
        say(f"chains, live: {len(before)} of {every} measured before by this command")
    with pinned_threads(traced.config.pair.threads), progress("chains, live", left) as bar:
        samples = before + run_blocks(
            methods,
            requests,
            plan,
            finished=finished_blocks(before),
            on_block=lambda block: store.append(PHASE, block),
            bar=bar,
        )
    return [
        replace(sample, method=PLAIN) if sample.method in plains else sample for sample in samples
    ]


def say_acceptance(joint: Joint, orders: EqualMeans) -> None:
    """Print a line for each prefix and each chain."""
    for k, (chain, hits, power) in enumerate(
        zip(joint.chain, joint.hits, joint.power, strict=True), 1
    ):
        say(
            f"first {k}: {chain.estimate:.3f} [{chain.low:.3f}, {chain.high:.3f}], hits in a row "
            f"{hits.estimate:.3f}, power of the mean {power.estimate:.3f}"
        )
    for index, gamma in enumerate(orders.gamma):
        within, over = orders.within_texts[index], orders.over_texts[index]
        say(
            f"tokens per round at γ = {gamma}, mean {orders.mean:.3f}: hits in order "
            f"{orders.in_order[index]:.3f}, shuffled within texts {within.estimate:.3f} "
            f"[{within.low:.3f}, {within.high:.3f}], over texts {over.estimate:.3f}, formula "
            f"{orders.formula[index]:.3f}"
        )


def say_speed(
    live: Mapping[int, Any], predicted: Mapping[str, Any], errors: Mapping[str, Any]
) -> None:
    """Print a line for each chain and each prediction."""
    for gamma, ratio in live.items():
        told = ", ".join(f"{name} {speeds[gamma]:.3f}" for name, speeds in predicted.items())
        say(
            f"γ = {gamma}: {ratio.estimate:.3f} [{ratio.low:.3f}, {ratio.high:.3f}] x plain; {told}"
        )
    for name, found in errors.items():
        say(
            f"{name}: median error {found['median_abs_error_pct']:.1f} %, worst "
            f"{found['worst_abs_error_pct']:.1f} %; chooses γ = {found['chooses']}, measured "
            f"{found['chosen_speed']:.3f}"
        )


def _digest(content: Any) -> str:
    return hashlib.sha256(dump_json(content).encode()).hexdigest()[:12]

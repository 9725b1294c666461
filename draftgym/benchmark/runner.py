"""Measure several methods side by side: interleaved, shuffled, warm-up discarded.

A block is one prompt measured once by every method, in an order shuffled anew for each block,
so that a machine that slows down slows all of them. This module does not know what a method
is, only that it can be asked to decode a prompt.
"""

from __future__ import annotations

import gc
import os
import random
from collections.abc import Callable, Iterator, Sequence, Set
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from typing import Protocol

import torch

from draftgym.benchmark.clock_check import ClockError, clock_fault
from draftgym.benchmark.energy import Meter
from draftgym.benchmark.statistics import PromptTotals, combine_repeats
from draftgym.console import Bar, say
from draftgym.prompts import Prompt
from draftgym.provenance import usable_cores
from draftgym.state import RoundRecord

BUSY_LOAD = 0.75
"""Processes per core above which a measurement shares its cores with others."""
ATTEMPTS = 3
"""Measurements of a block before a clock that jumps is given up on."""


@dataclass(frozen=True, slots=True)
class Request:
    """One prompt, encoded once for every method.

    Attributes:
        prompt_id: Unique id.
        domain: Stratum of the paired statistics.
        tokens: Token ids, chat template applied.
        sequence: Keys the noise of sampling, the same for every method.
    """

    prompt_id: str
    domain: str
    tokens: tuple[int, ...]
    sequence: int = 0


@dataclass(frozen=True, slots=True)
class Measurement:
    """One decoded prompt. Prefill and what it yields are in no time per token, for any method.

    Attributes:
        output: All emitted token ids, the prefill's first token included.
        seconds: Wall seconds of all rounds.
        emitted: Tokens emitted by these rounds.
        records: The rounds; empty for a method that is not a session.
        first_token_seconds: Wall seconds until the first token, prefill; None: not measured.
        gaps_seconds: Before each token of the rounds, for a method without records.
        request_seconds: The whole request by a second clock, to notice a clock that jumps.
        joules: Drawn by the machine during the request, prefill included; None: not measured.
        peak_bytes: Most device memory held during the request; None: not measured.
    """

    output: tuple[int, ...]
    seconds: float
    emitted: int
    records: tuple[RoundRecord, ...] = ()
    first_token_seconds: float | None = None
    gaps_seconds: tuple[float, ...] = ()
    request_seconds: float | None = None
    joules: float | None = None
    peak_bytes: int | None = None


class Method(Protocol):
    """Anything that decodes a prompt and says how long it took."""

    @property
    def name(self) -> str:
        """Unique name in reports."""

    def measure(self, request: Request, max_new_tokens: int) -> Measurement:
        """Decode one prompt, timed."""

    def renew(self) -> None:
        """Forget what the requests so far have taught."""


@dataclass(frozen=True, slots=True)
class Sample:
    """One measurement and its place in the plan."""

    method: str
    prompt_id: str
    repeat: int
    measurement: Measurement


Block = tuple[int, str]
"""(repeat, prompt id): measured by every method, or not at all."""


@dataclass(frozen=True, slots=True)
class Plan:
    """How often and in which order to measure.

    Attributes:
        max_new_tokens: Budget per prompt, tokens.
        repeats: Measurements of each (method, prompt).
        seed: Of the order of prompts and of methods in a block.
        warm_up_tokens: Tokens of the discarded first run of each method.
    """

    max_new_tokens: int
    repeats: int = 1
    seed: int = 0
    warm_up_tokens: int = 16

    def blocks(self, requests: Sequence[Request]) -> list[tuple[int, Request]]:
        """All blocks in their shuffled order; repeats of one prompt are a whole pass apart."""
        ordered: list[tuple[int, Request]] = []
        for repeat in range(self.repeats):
            shuffled = list(requests)
            random.Random(f"prompts {self.seed} {repeat}").shuffle(shuffled)
            ordered += [(repeat, request) for request in shuffled]
        return ordered

    def order(self, methods: Sequence[Method], repeat: int, request: Request) -> list[Method]:
        """The methods of one block, shuffled; the same after a restart."""
        shuffled = list(methods)
        random.Random(f"methods {self.seed} {repeat} {request.prompt_id}").shuffle(shuffled)
        return shuffled


def encode(
    prompts: Sequence[Prompt], encode_prompt: Callable[[Sequence[str]], list[int]]
) -> list[Request]:
    """Encode prompts once; every method then reads the same ids.

    Args:
        prompts: The prompts.
        encode_prompt: Turns to token ids, as `ModelPair.encode_prompt`.
    """
    return [
        Request(prompt.id, prompt.domain, tuple(encode_prompt(prompt.turns)), sequence)
        for sequence, prompt in enumerate(prompts)
    ]


def run_blocks(
    methods: Sequence[Method],
    requests: Sequence[Request],
    plan: Plan,
    *,
    finished: Set[Block] = frozenset(),
    on_block: Callable[[Sequence[Sample]], None] | None = None,
    bar: Bar | None = None,
    meter: Meter | None = None,
) -> list[Sample]:
    """Measure every method on every prompt.

    A block in which the clock jumped is measured again. Methods that learn while they decode forget
    the warm-up run; from then on, they learn from every request that they are asked.

    Args:
        methods: Names must be unique.
        requests: Prompts, encoded.
        plan: Repeats, budget, order.
        finished: Blocks to leave out, measured before a restart.
        on_block: Given the samples of each block when it is complete.
        bar: Advanced once per measurement.
        meter: Of energy and memory; none is measured when None.

    Returns:
        Samples of the blocks measured now.

    Raises:
        ValueError: If two methods share a name.
        ClockError: If the clock jumps in one block again and again.
    """
    names = [method.name for method in methods]
    if len(set(names)) != len(names):
        raise ValueError(f"method names repeat: {sorted(names)}")
    pending = [
        (repeat, request)
        for repeat, request in plan.blocks(requests)
        if (repeat, request.prompt_id) not in finished
    ]
    if not pending:
        return []
    samples: list[Sample] = []
    with quiet_process():
        warm_up = min(plan.warm_up_tokens, plan.max_new_tokens)
        for method in methods:
            method.measure(pending[0][1], warm_up)
            method.renew()
        for repeat, request in pending:
            ordered = plan.order(methods, repeat, request)
            block = _block(ordered, request, repeat, plan.max_new_tokens, meter)
            if bar is not None:
                bar.advance(len(block))
            if on_block is not None:
                on_block(block)
            samples += block
    return samples


def _block(
    methods: Sequence[Method], request: Request, repeat: int, tokens: int, meter: Meter | None
) -> list[Sample]:
    for _ in range(ATTEMPTS):
        gc.collect()
        block = [
            Sample(method.name, request.prompt_id, repeat, _metered(method, request, tokens, meter))
            for method in methods
        ]
        faults = [f"{s.method}: {fault}" for s in block if (fault := clock_fault(s.measurement))]
        if not faults:
            return block
        say(f"{request.prompt_id}: the clock jumped ({faults[0]}); measured again")
    raise ClockError(
        f"{request.prompt_id}: the clock jumped in each of {ATTEMPTS} tries; {faults[0]}"
    )


def _metered(method: Method, request: Request, tokens: int, meter: Meter | None) -> Measurement:
    if meter is None:
        return method.measure(request, tokens)
    meter.start()
    measured = method.measure(request, tokens)
    return replace(measured, **asdict(meter.stop()))


def totals(samples: Sequence[Sample], method: str, keep: Set[str] | None = None) -> PromptTotals:
    """Per-prompt totals of one method.

    Args:
        samples: Of any methods.
        method: Name.
        keep: Prompt ids to keep; all when None.

    Raises:
        StatisticsError: If the method has no sample, or one that emitted nothing.
    """
    return combine_repeats(
        (sample.prompt_id, sample.measurement.seconds, sample.measurement.emitted)
        for sample in samples
        if sample.method == method and (keep is None or sample.prompt_id in keep)
    )


def other_load() -> float:
    """Runnable processes per core over the last minute, before this one measures anything.

    Says on standard error when they are enough to disturb every figure.
    """
    load = os.getloadavg()[0] / usable_cores()
    if load > BUSY_LOAD:
        say(f"this machine is busy ({load:.1f} processes per core): expect noisy figures")
    return load


@contextmanager
def pinned_threads(threads: int | None) -> Iterator[int]:
    """Hold torch's thread count for every method alike; yields it and puts the old one back.

    Args:
        threads: Count; the present one when None.
    """
    before = torch.get_num_threads()
    torch.set_num_threads(before if threads is None else threads)
    try:
        yield torch.get_num_threads()
    finally:
        torch.set_num_threads(before)


@contextmanager
def quiet_process() -> Iterator[None]:
    """Keep Python's cyclic garbage collector out of timed regions."""
    was_enabled = gc.isenabled()
    gc.collect()
    # Frozen objects are not visited again, which makes the collections between blocks cheap.
    gc.freeze()
    gc.disable()
    try:
        yield
    finally:
        gc.unfreeze()
        if was_enabled:
            gc.enable()

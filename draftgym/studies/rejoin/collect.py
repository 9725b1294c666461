"""Which prompts are logged how; logs are kept text by text, so that a killed study goes on."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import torch

from draftgym.benchmark.config import largest_size
from draftgym.benchmark.runner import Request, encode
from draftgym.clock import Clock
from draftgym.console import progress, say
from draftgym.costs.fingerprint import fingerprint
from draftgym.costs.measure import measure_rounds, spread_by_length
from draftgym.costs.samples import LatencyError
from draftgym.costs.table import TABLE, LatencyTable
from draftgym.decoder.pair import ModelPair
from draftgym.decoder.session import DecoderSession
from draftgym.errors import ConfigurationError, DraftGymError
from draftgym.kept import keep, kept
from draftgym.prompts import Prompt, load_prompts
from draftgym.runtime.timing import DecisionSeconds
from draftgym.studies.rejoin.alignment import Reach
from draftgym.studies.rejoin.approaches import candidate_tokens
from draftgym.studies.rejoin.config import RejoinConfig
from draftgym.studies.rejoin.formats import code_prefix
from draftgym.studies.rejoin.log import ChainLogger, LoggedText, LogRequest

JUDGING, CHOOSING, REASONING = "judging", "choosing", "reasoning"
CODE, CODE_PREFIXED = "code", "code with prefix"
COST_CYCLES, COST_PROMPTS, COST_TOKENS = 10, 8, 64
_WIDTH = 4
_SIZE_STEPS = (0, 2, 4, 8, 16, 24, 32, 48, 64, 96, 128, 192, 256)


@dataclass(frozen=True, slots=True)
class Task:
    """One text to log.

    Attributes:
        group: What it is for.
        request: Prompt, budget and block.
    """

    group: str
    request: LogRequest


def tasks(config: RejoinConfig, pair: ModelPair) -> list[Task]:
    """All texts of the study.

    Args:
        config: What to decode.
        pair: Encodes prompts.

    Raises:
        ConfigurationError: A split without prompts.
    """
    seed = config.seed
    test = load_prompts(config.prompts, "test", None, seed)
    validation = load_prompts(config.prompts, "validation", config.choosing, seed)
    reasoning = _distinct(test, "maths")[: config.reasoning]
    code = _distinct(test, "code")[: config.code]
    for name, wanted, there in (
        ("maths", config.reasoning, reasoning),
        ("code", config.code, code),
    ):
        if wanted and not there:
            say(f"no test prompt has domain {name!r}: that part is left out")
    budget = config.max_new_tokens
    found: list[Task] = []
    for block in config.blocks:
        found += _plain(JUDGING, test[: config.judged], pair, budget, block)
        found += _plain(CHOOSING, validation, pair, budget, block)
        found += _plain(REASONING, reasoning, pair, config.reasoning_tokens, block)
    block = config.blocks[0]
    found += _plain(CODE, code, pair, budget, block)
    return found + [
        Task(CODE_PREFIXED, _prefixed(task.request, prompt, pair))
        for task, prompt in zip(_plain(CODE, code, pair, budget, block), code, strict=True)
    ]


def _distinct(prompts: Sequence[Prompt], domain: str) -> list[Prompt]:
    """Prompts of a domain, further translations of a request after all requests."""
    mine = [prompt for prompt in prompts if prompt.domain == domain]
    asked = Counter[str]()
    turns = []
    for prompt in mine:
        turns.append(asked[prompt.request_id])
        asked[prompt.request_id] += 1
    order = sorted(range(len(mine)), key=lambda index: turns[index])  # stable
    return [mine[index] for index in order]


def _plain(
    group: str, prompts: Sequence[Prompt], pair: ModelPair, budget: int, block: int
) -> list[Task]:
    return [
        Task(group, LogRequest(p.id, p.request_id, p.domain, r.tokens, budget, block))
        for p, r in zip(prompts, encode(prompts, pair.encode_prompt), strict=True)
    ]


def _prefixed(request: LogRequest, prompt: Prompt, pair: ModelPair) -> LogRequest:
    """The request with the beginning of its answer committed."""
    prefix = pair.tokenizer(code_prefix(prompt.turns[0]), add_special_tokens=False)["input_ids"]
    return replace(request, tokens=(*request.tokens, *map(int, prefix)))


def collect(config: RejoinConfig, pair: ModelPair, folder: Path, clock: Clock) -> list[Logged]:
    """Log every text that is not logged yet; progress counts tokens of budgets.

    Args:
        config: What to decode.
        pair: Its drafter makes chains.
        folder: Of the logs; those of other prompts or pairs are logged anew.
        clock: For the session, which needs one.

    Returns:
        In the order of `tasks`.

    Raises:
        ConfigurationError: All prompts that are judged are of one request.
        DraftGymError: A damaged log; names the file.
    """
    wanted = tasks(config, pair)
    if len({task.request.request_id for task in wanted if task.group == JUDGING}) < 2:
        raise ConfigurationError(
            "prompts: the test prompts are all of one request; chance needs two"
        )
    files = [folder / f"{index:03d}.json" for index in range(len(wanted))]
    origin = [pair.fingerprint(), str(pair.dtype), max(config.blocks)]
    keys = [[*origin, asdict(task.request)] for task in wanted]
    texts = [_read(file, key) for file, key in zip(files, keys, strict=True)]
    left = [index for index, text in enumerate(texts) if text is None]
    if len(left) < len(wanted):
        say(f"going on after {len(wanted) - len(left)} of {len(wanted)} texts")
    logger = ChainLogger(pair, config.pair.drafter.kind, max(config.blocks), clock)
    with progress("log", sum(wanted[i].request.max_new_tokens for i in left)) as bar:
        for index in left:
            text = logger.log(wanted[index].request)
            keep(files[index], keys[index], text.to_json())
            texts[index] = text
            bar.advance(wanted[index].request.max_new_tokens)
    return [Logged(task, text) for task, text in zip(wanted, texts, strict=True) if text]


@dataclass(frozen=True, slots=True)
class Logged:
    """A task and its text."""

    task: Task
    text: LoggedText


def _read(file: Path, key: Any) -> LoggedText | None:
    found = kept(file, key)
    try:
        return None if found is None else LoggedText.from_json(found)
    except (ValueError, TypeError, KeyError) as error:  # of another version
        raise DraftGymError(f"{file}: damaged log ({error}); remove it and run again") from error


def chain_times(
    config: RejoinConfig, pair: ModelPair, requests: Sequence[Request], folder: Path, clock: Clock
) -> LatencyTable:
    """Measured seconds of chains and of verification up to all candidates beside a block.

    Draft passes and commits are those of chains. Verification, which does not care how its tokens
    were drafted, is measured on wide trees: no chain is as long as all candidates together.

    Args:
        config: Blocks and reach.
        pair: Its drafter makes chains.
        requests: Prompts that costs are measured on.
        folder: The table is kept there, and read when it is there already.
        clock: Marks passes.
    """
    file = folder / TABLE
    origin = fingerprint(pair.fingerprint(), pair.device, pair.dtype, torch.get_num_threads())
    if file.is_file():
        try:
            return LatencyTable.load(file, origin)
        except LatencyError as error:
            raise DraftGymError(f"{error}; remove it and run again") from error
    used = spread_by_length(requests, COST_PROMPTS)
    longest = max(config.blocks)
    most = longest + candidate_tokens(longest - 1, reach_of(config))
    sizes = [size for size in _SIZE_STEPS if size < most] + [most]
    chain = _session(pair, config, 1, longest, longest, clock)
    depth = next(d for d in range(1, 65) if _WIDTH + (d - 1) * _WIDTH**2 >= most)
    wide = _session(pair, config, _WIDTH, depth, most, clock)
    chains = [((0, 0),), *(((block, block),) for block in config.blocks)]
    sized = [((depth if size else 0, size),) for size in sizes]
    rounds = COST_CYCLES * (len(chains) + len(sized))
    with progress("costs", rounds) as bar:
        tables = [
            LatencyTable.from_records(
                measured.records, origin, DecisionSeconds(),
                openings=measured.openings,
            )
            for session, runs in ((chain, chains), (wide, sized))
            for measured in [
                measure_rounds(session, used, runs, repeats=COST_CYCLES,
                               max_new_tokens=COST_TOKENS, seed=config.seed, bar=bar)
            ]
        ]  # fmt: skip
    samples = {**tables[0].samples, "verify": tables[1].samples["verify"]}
    table = LatencyTable(samples, origin, DecisionSeconds())
    table.save(file)
    return table


def reach_of(config: RejoinConfig) -> Reach:
    """How far alignments look."""
    return Reach(config.slack_tokens, config.trim_tokens, config.bridge_tokens)


def _session(
    pair: ModelPair, config: RejoinConfig, width: int, depth: int, size: int, clock: Clock
) -> DecoderSession:
    changes = {"beam_width": width, "max_depth": depth, "max_size": size}
    drafter = config.pair.drafter.model_copy(update=changes)
    assert largest_size(drafter, depth) >= size
    shaped = replace(pair, config=pair.config.model_copy(update={"drafter": drafter}))
    return DecoderSession(shaped, shaped.new_drafter(), clock=clock, max_depth=depth, max_size=size)

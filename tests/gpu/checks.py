"""What must hold on a device. Each check raises if it does not, and returns what it saw.

They take any device, so that their code is exercised where there is no CUDA; what they show about
CUDA they show on CUDA only.
"""

from __future__ import annotations

from itertools import product
from typing import Any

import torch

from draftgym.clock import WallClock
from draftgym.decoder.config import SamplingConfig
from draftgym.decoder.controllers import FixedController, PlainController, RandomController
from draftgym.decoder.llama import LlamaTarget
from draftgym.decoder.pair import ModelPair
from draftgym.decoder.rules.base import read_best
from draftgym.decoder.session import DecoderSession
from draftgym.errors import ConfigurationError
from tests.exactness.near_tie import NEAR_TIE, top2_gap
from tests.gpu.pairs import DRAFTERS, Drafter, pair_on
from tests.gpu.synchronisation import counted, forbidden
from tests.tiny import tiny_head, tiny_model

PROMPTS = ([3, 5, 7, 9, 11], [8, 8, 1, 8, 8, 1, 8], list(range(2, 50)))
GRID = (0, 1, 2, 4, 8, 16, 32, 116)
TOKENS = 96
BETWEEN_DEVICES = 1e-3
"""Another device sums in another order, and its logarithms round differently."""
BFLOAT16_GAP = 0.5


def decode(pair: ModelPair, prompt: list[int], seed: int | None) -> list[int]:
    """Plain text, or with a random depth and size in every round if there is a seed."""
    drafter = None if seed is None else pair.new_drafter()
    session = DecoderSession(pair, drafter, clock=WallClock(pair.device), max_size=116)
    session.start(prompt, TOKENS)
    session.run(PlainController() if seed is None else RandomController(seed, 8, GRID))
    return session.tokens


def first_gap(
    pair: ModelPair, prompt: list[int], expected: list[int], got: list[int]
) -> dict[str, Any] | None:
    """The first difference and the target's gap there; None if there is none."""
    place = next((i for i in range(TOKENS) if expected[i] != got[i]), None)
    if place is None:
        return None
    session = DecoderSession(pair, None, clock=WallClock(pair.device))
    gap = top2_gap(pair.target, prompt + expected[:place], session.rule, 0)
    return {"token": place, "expected": expected[place], "got": got[place], "gap": gap}


def identity(device: torch.device) -> dict[str, Any]:
    """float32: speculative text is plain text, and plain text is the CPU's."""
    laws = (SamplingConfig(), SamplingConfig(temperature=0.8, seed=4))
    near: list[dict[str, Any]] = []
    compared = 0
    for sampling, (index, prompt) in product(laws, enumerate(PROMPTS)):
        reference = pair_on(torch.device("cpu"), 1 + index, "ngram", sampling=sampling)
        pair = pair_on(device, 1 + index, "ngram", sampling=sampling)
        plain, host = decode(pair, prompt, None), decode(reference, prompt, None)
        found = first_gap(reference, prompt, host, plain)
        assert found is None or found["gap"] < BETWEEN_DEVICES, f"unlike the CPU: {found}"
        near += [] if found is None else [{"against": "cpu", **found}]
        for drafter in DRAFTERS:
            drafted = pair_on(device, 1 + index, drafter, sampling=sampling)
            got = decode(drafted, prompt, seed=index)
            found = first_gap(pair, prompt, plain, got)
            assert found is None or found["gap"] < NEAR_TIE, f"{drafter}: {found}"
            near += [] if found is None else [{"against": drafter, **found}]
            compared += TOKENS
    return {"tokens": compared, "wrong": 0, "near_ties": near}


def bfloat16_gaps(device: torch.device) -> dict[str, Any]:
    """bfloat16: where text differs from plain decoding, the two best logits nearly tie."""
    found: list[dict[str, Any]] = []
    for drafter, (index, prompt) in product(DRAFTERS, enumerate(PROMPTS)):
        pair = pair_on(device, 1 + index, drafter, torch.bfloat16)
        plain = decode(pair, prompt, None)
        first = first_gap(pair, prompt, plain, decode(pair, prompt, seed=index))
        if first is not None:
            found.append({"drafter": drafter, **first})
    widest = max((entry["gap"] for entry in found), default=0.0)
    assert widest <= BFLOAT16_GAP, f"a divergence with a wide gap is a bug: {found}"
    return {"texts": len(DRAFTERS) * len(PROMPTS), "divergences": found, "widest_gap": widest}


def ties(device: torch.device) -> dict[str, Any]:
    """Exact ties go to the lowest id, whatever the number of rows and columns."""
    rows_seen = 0
    for columns, rows in product((2, 64, 4097, 151936), (1, 2, 5, 33)):
        for dtype in (torch.float32, torch.bfloat16, torch.float64):
            scores = torch.zeros(rows, columns, dtype=dtype, device=device)
            generator = torch.Generator().manual_seed(rows * columns)
            places = torch.randint(0, columns, (rows, 4), generator=generator)
            scores.scatter_(1, places.to(device), 1.0)
            best = read_best(scores, range(rows))[0]
            assert best == places.amin(1).tolist(), f"{dtype}, {rows} x {columns}"
            rows_seen += rows
    return {"rows": rows_seen}


def clocks(device: torch.device, size: int = 4096, slack_seconds: float = 1e-3) -> dict[str, Any]:
    """Events agree with the host's clock, and a mark does not wait.

    Args:
        device: Where.
        size: Of the matrices multiplied.
        slack_seconds: By which two readings of a clock may be apart on a busy machine.
    """
    clock, host = WallClock(device), WallClock("cpu")
    left = torch.ones(size, size, device=device)
    torch.matmul(left, left)  # the first call loads libraries
    begin = clock.boundary()
    start = clock.mark()
    for _ in range(8):
        torch.matmul(left, left)
    end = clock.mark()
    launched = host.boundary() - begin
    waited = clock.boundary() - begin
    events = clock.seconds(start, end)
    assert 0 < events <= 1.02 * waited + slack_seconds, f"events {events} s, host {waited} s"
    assert events >= 0.8 * waited - slack_seconds, f"events {events} s, host {waited} s"
    if device.type == "cuda":
        assert launched < 0.5 * events, f"marking waited: {launched} of {events} s"
    pair = pair_on(device, 1, "eagle3")
    session = DecoderSession(pair, pair.new_drafter(), clock=clock)
    session.start(PROMPTS[0], 40)
    record = session.run(FixedController(3, 8))[-2]
    parts = record.draft_seconds + record.verify_seconds + record.commit_seconds
    assert 0 < parts <= 1.05 * record.seconds + slack_seconds
    return {
        "event_seconds": events,
        "host_seconds": waited,
        "launch_seconds": launched,
        "round_seconds": record.seconds,
        "round_parts_seconds": parts,
    }


class _Watched(DecoderSession):
    """No draft pass and no target pass may wait; reading the verdict may."""

    def draft(self) -> None:
        with forbidden(self.pair.device):
            super().draft()


def synchronisations(device: torch.device) -> dict[str, Any]:
    """Passes never wait; a round waits once for its verdict, and once for each confidence read."""
    rows: list[dict[str, Any]] = []
    laws = (SamplingConfig(), SamplingConfig(temperature=0.8, top_k=20, top_p=0.9))
    for drafter, sampling in product(DRAFTERS, laws):
        pair = pair_on(device, 1, drafter, sampling=sampling)
        decode(pair, [3, 5, 7], seed=0)  # first calls load kernels
        session = _Watched(pair, pair.new_drafter(), clock=WallClock(device))
        _forbid_in_target(session, device)
        session.start([3, 5, 7, 9, 3, 5, 7], 80)
        row: dict[str, Any] = {"drafter": drafter, "law": sampling.describe()}
        for reads in (False, True):
            passes, waits = _count_round(session, device, reads)
            allowed = 1 + (passes + 1 if reads else 0)
            assert waits <= allowed, f"{row}: {waits} waits, {allowed} allowed"
            row["waits reading confidence" if reads else "waits"] = waits
        rows.append(row)
    return {"rounds": rows}


def _count_round(session: DecoderSession, device: torch.device, reads: bool) -> tuple[int, int]:
    with counted(device) as count:
        state = session.begin_round()
        while state.depth < min(3, state.max_depth):
            if reads:
                session.read_confidence()
            session.draft()
        if reads:
            session.read_confidence()
        session.end_round(16)
    return state.depth, count.value


def _forbid_in_target(session: DecoderSession, device: torch.device) -> None:
    forward = session._target.forward

    def watched(*args: Any, **kwargs: Any) -> torch.Tensor:
        with forbidden(device):
            return forward(*args, **kwargs)

    session._target.forward = watched  # type: ignore[method-assign]


def placement(device: torch.device) -> dict[str, Any]:
    """A drafter elsewhere or of another type is refused at construction, or works."""
    refused = []
    elsewhere = torch.device("cpu" if device.type == "cuda" else "meta")
    for drafter, place, dtype in (
        ("eagle3", elsewhere, torch.float32),
        ("hybrid", elsewhere, torch.float32),
        ("eagle3", device, torch.bfloat16),
        ("lm", elsewhere, torch.float32),
    ):
        pair = pair_on(device, 1, drafter)
        if drafter == "lm":
            pair.draft_model = LlamaTarget(tiny_model(1).to(place))
        else:
            pair.head = tiny_head(1).to(device=place, dtype=dtype)
        try:
            pair.new_drafter()
        except ConfigurationError as error:
            refused.append(str(error))
        else:
            raise AssertionError(f"{drafter} on {place} in {dtype} was accepted")
    lm: Drafter = "lm"
    pair = pair_on(device, 1, lm, torch.bfloat16)
    pair.draft_model = pair_on(device, 1, lm).target  # type: ignore[assignment]
    plain = decode(pair, PROMPTS[0], None)
    found = first_gap(pair, PROMPTS[0], plain, decode(pair, PROMPTS[0], seed=0))
    assert found is None or found["gap"] <= BFLOAT16_GAP, f"float32 drafts for bfloat16: {found}"
    return {"refused": refused, "works": "a float32 draft model with a bfloat16 target"}

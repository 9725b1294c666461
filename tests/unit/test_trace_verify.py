"""`check-trace` passes a true trace and fails a false one."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from draftgym.benchmark.config import Cell
from draftgym.clock import FakeClock
from draftgym.commands import _inputs
from draftgym.commands import check_trace as command
from draftgym.commands._traced import spread_cells
from draftgym.decoder.config import DrafterConfig
from draftgym.decoder.pair import ModelPair
from draftgym.decoder.session import DecoderSession
from draftgym.prompts import load_prompts
from draftgym.traces import run
from draftgym.traces.config import TraceConfig
from draftgym.traces.store import load_trace
from draftgym.traces.verify import Agreement, Mismatch, compare_with_live
from tests.e2e.train_tiny import LetterTokenizer
from tests.tiny import tiny_pair

CONFIG = TraceConfig(count=3, max_new_tokens=20, ignore_eos=True)
CELLS = [Cell(depth=0, size=4), Cell(depth=2, size=3), Cell(depth=8, size=32)]


def new_pair() -> ModelPair:
    pair = tiny_pair(drafter="hybrid", context=256)
    pair.tokenizer = LetterTokenizer()
    return pair


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = tmp_path_factory.mktemp("trace")
    prompts = load_prompts(CONFIG.prompts, "policy", CONFIG.count)
    run.collect(CONFIG, new_pair(), prompts, made, FakeClock(), {})
    return made


def compare(folder: Path, **changes: object) -> Agreement:
    pair = new_pair()
    prompts = load_prompts(CONFIG.prompts, "policy", CONFIG.count)
    tokens = [pair.encode_prompt(prompt.turns) for prompt in prompts]
    session = DecoderSession(pair, pair.new_drafter(), clock=FakeClock(), ignore_eos=True)
    trace = replace(load_trace(folder), **changes)  # type: ignore[arg-type]
    return compare_with_live(trace, session, tokens, CELLS)


def test_a_true_trace_passes(folder: Path) -> None:
    found = compare(folder)
    assert found.ok and found.accepted > 0 and found.mismatches == []
    assert found.rounds > len(CELLS) * 3


def test_a_wrong_rank_is_found(folder: Path) -> None:
    rank = load_trace(folder).rank.copy()
    rank[:, 2] = np.where(rank[:, 2] == 0, 31, rank[:, 2])  # first places made last ones
    found = compare(folder, rank=rank)
    assert not found.ok
    wrong = {entry.cell for entry in found.mismatches}
    assert "fixed D=2 V=3" in wrong  # deeper cells also, where the budget allows two passes
    assert "fixed D=0 V=4" not in wrong


def test_another_text_is_found(folder: Path) -> None:
    first, *rest = load_trace(folder).sequences
    changed = replace(first, tokens=(*first.tokens[:-1], (first.tokens[-1] + 1) % 60))
    found = compare(folder, sequences=(changed, *rest))
    assert not found.ok and len(found.other_texts) == len(CELLS)


def test_only_near_ties_are_excused() -> None:
    entry = Mismatch("p", "cell", 1, (4, 1), (4, 2), gap=1e-6)
    assert Agreement(rounds=1, accepted=1, mismatches=[entry]).ok
    assert not Agreement(rounds=1, accepted=1, mismatches=[replace(entry, gap=0.1)]).ok
    assert not Agreement(rounds=1, accepted=0).ok


def test_the_verb(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(_inputs, "load_pair", lambda config: new_pair())
    assert command.main([str(folder), "--prompts", "2", "--cells", "4"]) == 0
    line = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert line["schema"] == "draftgym.check_trace/1"
    assert line["ok"] and line["prompts"] == 2 and len(line["cells"]) == 4


def test_cells_are_spread_over_what_the_drafter_fills() -> None:
    cells = spread_cells(DrafterConfig(), (0, 1, 4, 32), 6)
    assert len(cells) == 6 and cells[0].depth == 0 and cells[-1] == Cell(depth=8, size=32)
    assert len(spread_cells(DrafterConfig(kind="ngram"), (0, 1, 4), 9)) == 2

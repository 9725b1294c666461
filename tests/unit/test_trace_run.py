"""The trace verb: shards, resume, what it says and what it refuses."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from draftgym.clock import FakeClock
from draftgym.commands import trace as command
from draftgym.configuration import validate
from draftgym.errors import ConfigurationError
from draftgym.prompts import load_prompts
from draftgym.traces import run
from draftgym.traces.config import TraceConfig
from draftgym.traces.store import TraceError, load_trace
from tests.e2e.train_tiny import LetterTokenizer
from tests.tiny import tiny_pair

CONFIG = TraceConfig(count=5, max_new_tokens=9, shard_prompts=2, ignore_eos=True)
PROMPTS = load_prompts(CONFIG.prompts, "policy", 5)


def collect(folder: Path, config: TraceConfig = CONFIG) -> dict[str, object]:
    pair = tiny_pair(drafter="hybrid", context=256)
    pair.tokenizer = LetterTokenizer()
    return run.collect(config, pair, PROMPTS, folder, FakeClock(), {"commit": "x"})


def test_every_prompt_is_traced(tmp_path: Path) -> None:
    summary = collect(tmp_path)
    trace = load_trace(tmp_path)
    assert summary["positions"] == len(trace) == 5 * 8
    assert summary["sequences"] == 5
    assert [entry.prompt_id for entry in trace.sequences] == [prompt.id for prompt in PROMPTS]
    assert trace.source["provenance"] == {"commit": "x"}
    assert summary["bytes"] == len(trace) * trace.shape.row_bytes
    assert trace.shape.max_depth == 8 and trace.shape.path == 32


def test_a_killed_collection_equals_an_uninterrupted_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    collect(tmp_path / "whole")
    traced = run.trace_request
    calls = 0

    def dies(*arguments: object) -> object:
        nonlocal calls
        calls += 1
        if calls == 4:
            raise KeyboardInterrupt
        return traced(*arguments)  # type: ignore[arg-type]

    monkeypatch.setattr(run, "trace_request", dies)
    with pytest.raises(KeyboardInterrupt):
        collect(tmp_path / "killed")
    assert (tmp_path / "killed" / "shard-00000.json").is_file()
    collect(tmp_path / "killed")
    assert calls == 4 + 3, "prompts of finished shards must not be traced again"
    whole, killed = load_trace(tmp_path / "whole"), load_trace(tmp_path / "killed")
    assert whole.sequences == killed.sequences
    for name in whole.shape.columns():
        np.testing.assert_array_equal(getattr(whole, name), getattr(killed, name))


def test_another_configuration_in_the_same_folder_is_refused(tmp_path: Path) -> None:
    collect(tmp_path)
    with pytest.raises(TraceError, match=r"plan\.max_new_tokens: it has 9, this is 8"):
        collect(tmp_path, CONFIG.model_copy(update={"max_new_tokens": 8}))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"pair": {"drafter": {"kind": "lm"}}}, r"pair\.drafter\.kind: 'lm' cannot be traced"),
        (
            {"pair": {"sampling": {"temperature": 1.0, "rule": "rejection"}}},
            "text depends on what is drafted",
        ),
        ({"size_grid": [0, 2, 1]}, "size_grid: must ascend"),
        ({"split": "train"}, "split"),
    ],
)
def test_what_cannot_be_traced_is_refused_before_loading(
    change: dict[str, object], message: str
) -> None:
    with pytest.raises(ConfigurationError, match=message):
        validate(change, TraceConfig, origin="trace.yaml")


def test_the_verb_ends_with_one_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    pair = tiny_pair(drafter="ngram", context=256)
    pair.tokenizer = LetterTokenizer()
    monkeypatch.setattr(command, "load_pair", lambda config: pair)
    file = tmp_path / "trace.yaml"
    file.write_text("count: 2\nmax_new_tokens: 6\nignore_eos: true\n")
    assert command.main([str(file), "--output", str(tmp_path / "out")]) == 0
    line = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert line["schema"] == "draftgym.trace/1"
    assert line["positions"] == 10 == len(load_trace(Path(line["folder"])))
    assert load_trace(tmp_path / "out").shape.max_depth == 0

"""The `bound` verb: every method on the same tokens, better ones never slower."""

from __future__ import annotations

import json
from functools import partial
from pathlib import Path

import numpy as np
import pytest

from draftgym.commands import bound as command
from draftgym.costs.samples import Samples
from draftgym.costs.table import LatencyTable
from draftgym.errors import ConfigurationError
from draftgym.runtime import DecisionSeconds
from draftgym.theory import information
from draftgym.theory.bounds import (
    CLAIRVOYANT,
    DEPTH_ONLY,
    HINDSIGHT,
    PLAIN,
    SIZE_ONLY,
    TUNED,
    bounds,
    fold_of,
)  # fmt: skip
from draftgym.traces.store import TraceWriter
from policies import all_action
from policies.cross_fit import NETWORKS, TABLE
from tests.unit.test_clairvoyant import random_trace

PAIR = {"target": "tiny"}
COUNT = 24


@pytest.fixture(autouse=True)
def _short_training(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(information, "EPOCHS", 2)


def table() -> LatencyTable:
    sizes = np.array([0, 1, 2, 4])
    none = np.zeros(4, np.int64)
    units = {"first": np.array([1, 2, 4, 8]), "verify": sizes}
    seconds = {"propose": 0.1, "first": 1.0, "later": 1.0, "verify": 10.0, "commit": 0.1}
    samples = {
        kind: Samples(units.get(kind, none), none, value + 0.5 * units.get(kind, none), none + 1.0)
        for kind, value in seconds.items()
    }
    return LatencyTable(samples, {"pair": PAIR}, DecisionSeconds())  # type: ignore[arg-type]


def test_methods_are_ordered_as_they_must_be() -> None:
    trace = random_trace(0, (6,) * COUNT)
    seconds = {name: values.sum() for name, values in bounds(trace, table()).seconds.items()}
    assert seconds[CLAIRVOYANT] <= min(seconds[DEPTH_ONLY], seconds[SIZE_ONLY])
    assert max(seconds[DEPTH_ONLY], seconds[SIZE_ONLY]) <= seconds[HINDSIGHT] <= seconds[TUNED]
    assert seconds[HINDSIGHT] <= seconds[PLAIN]


def test_a_cell_is_tuned_on_other_folds_only() -> None:
    trace = random_trace(1, (6,) * COUNT)
    found = bounds(trace, table())
    fold = found.folds[0]
    kept = np.flatnonzero(found.folds != fold)
    assert 0 < len(kept) < COUNT
    # Tuned without this fold, the cell is the hindsight cell of the others.
    others = bounds(trace.select(kept), table())
    from draftgym.theory.fixed import fixed

    wanted = fixed(trace, table(), *others.cell)[found.folds == fold]
    np.testing.assert_allclose(found.seconds[TUNED][found.folds == fold], wanted)


def test_translations_share_a_fold() -> None:
    from dataclasses import replace

    trace = random_trace(2, (4,) * COUNT)
    sequences = tuple(
        replace(entry, request_id=f"request-{i // 4}") for i, entry in enumerate(trace.sequences)
    )
    folds = fold_of(replace(trace, sequences=sequences)).reshape(-1, 4)
    assert (folds == folds[:, :1]).all() and len(np.unique(folds)) > 1


def write(folder: Path, count: int) -> None:
    trace = random_trace(3, (6,) * count)
    writer = TraceWriter(folder, trace.shape, {"fingerprint": PAIR})
    writer.add(trace.sequences, {name: getattr(trace, name) for name in trace.shape.columns()})
    writer.finish({"context_limit": 2048, "provenance": {}})


def test_the_verb(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write(tmp_path / "trace", COUNT)
    file = table().save(tmp_path / "latency.json")
    assert command.main(["--trace", str(tmp_path / "trace"), "--table", str(file)]) == 0
    line = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert line["schema"] == "draftgym.bound/1"
    assert line["prompts"] == COUNT and line["positions"] == 5 * COUNT
    rows = {row["method"]: row for row in line["methods"]}
    assert rows[TUNED]["over_tuned"]["ratio"] == pytest.approx(1.0)
    assert rows[CLAIRVOYANT]["over_tuned"]["ratio"] > 1.0
    assert set(line["domains"]) == {"code", "chat"}


def test_what_is_learned_from_the_traces_own_prompts_is_judged_too(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    short = partial(all_action.AllActionConfig, steps=4, requests=8, hidden=(4,))
    monkeypatch.setattr(all_action, "AllActionConfig", short)
    write(tmp_path / "trace", COUNT)
    file = table().save(tmp_path / "latency.json")
    arguments = ["--trace", str(tmp_path / "trace"), "--table", str(file), "--learn"]
    assert command.main(arguments) == 0
    line = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert {NETWORKS, TABLE} <= {row["method"] for row in line["methods"]}
    assert set(line["shares"]) == {NETWORKS, TABLE}


def test_a_table_of_another_pair_and_too_few_prompts_are_refused(tmp_path: Path) -> None:
    write(tmp_path / "trace", 2)
    other = LatencyTable(table().samples, {"pair": {"target": "big"}}, DecisionSeconds())
    arguments = ["--trace", str(tmp_path / "trace"), "--table"]
    with pytest.raises(ConfigurationError, match=r"different pairs: pair\.target"):
        command.main([*arguments, str(other.save(tmp_path / "other.json"))])
    with pytest.raises(ConfigurationError, match="trace more prompts"):
        command.main([*arguments, str(table().save(tmp_path / "same.json"))])

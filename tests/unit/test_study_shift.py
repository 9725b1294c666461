"""The study of shifts: planted answers come out, parts are parts, and the verb resumes."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

from draftgym.commands import study as command
from draftgym.commands.studies import _shift_inputs, _shift_policies, shift
from draftgym.commands.studies._shift_inputs import trace_config
from draftgym.commands.studies._shift_policies import planted_policy
from draftgym.decoder.config import PairConfig
from draftgym.errors import ConfigurationError, DraftGymError
from draftgym.studies.shift.acceptance import acceptance, first_hits
from draftgym.studies.shift.cells import CellTimes
from draftgym.studies.shift.gains import FOREIGN, OTHERS, OWN, carried_over, speed
from draftgym.studies.shift.groups import (
    ALL,
    ONE_OF_EACH,
    all_but,
    everything,
    learning_parts,
    same_prompts,
)
from draftgym.studies.shift.planted import GUESSED, HARD, PASSES, planted
from draftgym.studies.shift.values import identities, planted_values, seconds_by_hand
from draftgym.traces.store import TraceWriter
from draftgym.traces.trace import Trace
from policies import parts
from policies.all_action import AllActionConfig, AllActionTrainer
from tests.unit.test_bound import PAIR
from tests.unit.test_clairvoyant import random_trace
from tests.unit.test_learn import table_file
from tests.unit.times import RandomTimes

COUNT = 24


def named(seed: int, split: str, count: int = COUNT) -> Trace:
    """A random trace of two domains and two languages; two sequences ask the same."""
    trace = random_trace(seed, (6,) * count)
    sequences = tuple(
        replace(
            entry,
            prompt_id=f"{split}-{i}",
            request_id=f"{split}-{i // 2}",
            domain=("code", "chat")[i // 2 % 2],
            language=("en", "it")[i % 2],
        )
        for i, entry in enumerate(trace.sequences)
    )
    return replace(trace, sequences=sequences)


def test_planted_values_come_out() -> None:
    known = planted_values(planted_policy)
    assert [value.name for value in known if not value.ok] == []
    assert len(known) == 15


def test_a_policy_that_never_drafts_is_caught() -> None:
    values = planted_values(lambda _, tested_on: np.full(len(tested_on.sequences), 40.0))
    assert {v.name for v in values if not v.ok} == {
        "policy of the mixture over its cell",
        "policy of guessed text over its cell",
    }


def test_identities_hold_on_any_trace() -> None:
    trace, times = named(0, "policy"), RandomTimes(1)
    cells = CellTimes.of(trace, times)
    assert all(value.ok for value in identities(trace, times, cells))
    for index, cell in enumerate(cells.cells):
        want = seconds_by_hand(trace, times, cell, index % COUNT)
        assert cells[cell][index % COUNT] == pytest.approx(want, rel=1e-12)
    # Costs of another trace's cells are noticed.
    other = identities(trace, times, CellTimes.of(trace, RandomTimes(2)))
    assert not all(value.ok for value in other)


def test_acceptance_counts_positions_and_rounds() -> None:
    trace = planted({GUESSED: 3, HARD: 1}, told=True)
    assert first_hits(trace, (PASSES, PASSES)).tolist() == [40, 40, 40, 0]
    assert first_hits(trace, (0, PASSES)).tolist() == [0, 0, 0, 0]
    found = acceptance(trace, (1, 1), everything(trace))
    assert (found.prompts, found.requests, found.tokens) == (4, 4, 160)
    assert found.first.estimate == 0.75 and found.prompt_tokens == 16
    assert found.tau.estimate == pytest.approx(160 / (3 * 20 + 40))
    assert found.deepest.estimate == pytest.approx(160 / (3 * 10 + 40))
    assert found.look_up.estimate == 1.0
    assert found.tau.low <= found.tau.estimate <= found.tau.high


def test_parts_hold_what_they_say() -> None:
    trace = named(0, "policy")
    found = learning_parts(trace)
    assert list(found) == [
        ALL, "chat", "code", ONE_OF_EACH, all_but("chat"), all_but("code"), "en", "it",
    ]  # fmt: skip
    assert (found["chat"] ^ found["code"]).all() and (found["en"] ^ found["it"]).all()
    assert (found[all_but("chat")] == found["code"]).all()
    one = [entry for entry, mine in zip(trace.sequences, found[ONE_OF_EACH], strict=True) if mine]
    assert [(e.request_id, e.domain) for e in one] == [
        ("policy-0", "code"), ("policy-0", "code"), ("policy-1", "chat"), ("policy-1", "chat"),
    ]  # fmt: skip


def test_what_is_carried_over_is_the_mean_of_other_kinds() -> None:
    tested = {name: np.array([name == own for own in "abc"]) for name in "abc"}
    ways = {name: np.array(row, float) for name, row in
            {"a": [1, 2, 3], "b": [4, 5, 6], "c": [7, 8, 9], ALL: [0, 1, 0]}.items()}  # fmt: skip
    found = carried_over(ways, tested)
    assert set(found) == {OWN, FOREIGN, ALL}
    assert found[OWN].tolist() == [1, 5, 9]
    assert found[FOREIGN].tolist() == [5.5, 5, 4.5]
    more = ways | {all_but(name): np.full(3, float(i)) for i, name in enumerate("abc")}
    assert carried_over(more, tested)[OTHERS].tolist() == [0, 1, 2]


def test_speeds_take_translations_together() -> None:
    trace = named(0, "test")
    seconds = np.arange(1.0, COUNT + 1)
    found = speed(trace, 2 * seconds, seconds, everything(trace))
    assert found.estimate == found.low == found.high == 2.0
    # Two sequences of one request: an interval over twelve, wider than one over as many prompts.
    noisy = seconds * np.repeat(np.random.default_rng(0).uniform(0.5, 1.5, COUNT // 2), 2)
    together = speed(trace, noisy, seconds, everything(trace))
    alone = replace(trace, sequences=tuple(replace(e, request_id="") for e in trace.sequences))
    apart = speed(alone, noisy, seconds, everything(trace))
    assert together.high - together.low > apart.high - apart.low


def test_the_same_prompts_of_another_temperature() -> None:
    trace = named(0, "test")
    some = trace.select(np.array([5, 2]))
    assert [e.prompt_id for e in same_prompts(trace, some).sequences] == ["test-5", "test-2"]
    with pytest.raises(ValueError, match="'test-0' was not traced at temperature 0"):
        same_prompts(some, trace)


def test_temperatures_above_zero_take_some_prompts() -> None:
    cold, warm = (trace_config(PairConfig(), t, "test", 12, 64) for t in (0.0, 0.7))
    assert cold.count is None and warm.count == 12
    assert warm.pair.sampling.temperature == 0.7 and warm.pair.sampling.rule_name == "coupled"
    assert cold.pair == PairConfig()


@pytest.mark.parametrize(
    ("given", "told"),
    [
        (["--temperatures", "0.7"], "--temperatures: must hold 0"),
        (["--temperatures", "0", "0.7", "0.7"], "nothing twice"),
        (["--temperatures", "0", "0.7", "0.7000001"], "nothing twice"),
        (["--temperatures", "0", "nan"], "nothing twice or below"),
        (["--seeds", "0"], "--seeds: must be at least 1"),
        (["--tokens", "3"], "--tokens: must be at least 16"),
    ],
)
def test_options_out_of_range_are_refused(given: Sequence[str], told: str) -> None:
    with pytest.raises(ConfigurationError, match=told):
        command.main(["shift", *given])


def write(trace: Trace, folder: Path, split: str) -> Path:
    plan = {"fingerprint": PAIR, "split": split}
    writer = TraceWriter(folder, trace.shape, plan)
    writer.add(trace.sequences, {name: getattr(trace, name) for name in trace.shape.columns()})
    writer.finish({"context_limit": 2048})
    return folder


@pytest.fixture
def traced(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Arguments of the verb, over traces that stand in for those of a model."""
    folders = {
        split: write(named(seed, split), tmp_path / split, split)
        for seed, split in enumerate(_shift_inputs.SPLITS)
    }
    pair = SimpleNamespace(fingerprint=lambda: PAIR)
    monkeypatch.setattr(_shift_inputs.Inputs, "pair", lambda *_: pair)
    monkeypatch.setattr(_shift_inputs, "_trace", lambda config, *_: folders[config.split])
    small = partial(AllActionConfig, requests=16, hidden=(8,))
    monkeypatch.setattr(_shift_policies, "AllActionConfig", small)
    monkeypatch.setattr(shift, "planted_policy", lambda _, on: np.ones(len(on.sequences)))
    return [
        "shift", "--table", table_file(tmp_path), "--output", str(tmp_path / "out"),
        "--temperatures", "0", "0.7", "--seeds", "1", "--steps", "10",
    ]  # fmt: skip


def test_the_verb(
    traced: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    assert command.main(traced) == 1, "planted policies are wrong here"
    captured = capsys.readouterr()
    line = json.loads(captured.out.splitlines()[-1])
    assert line["schema"] == "draftgym.study.shift/1" and not line["ok"]
    assert all(name.startswith("policy of") for name in line["missed"])
    found = line["measured"]
    assert set(found["domains"]["matrix"]["policies"]) == {
        "chat", "code", ONE_OF_EACH, all_but("chat"), all_but("code"), ALL,
    }  # fmt: skip
    assert set(found["languages"]["matrix"]["cells"]) == {"en", "it", ALL}
    assert found["domains"]["matrix"]["cells"][ALL]["chat"]["estimate"] == 1.0
    row = next(gain for gain in found["gains"]["domain"] if gain["name"] == "chat")
    own = found["domains"]["matrix"]["cells"]["chat"]["chat"]
    assert row["own_over_mixture"] == own and row["learned_from"] == COUNT // 2
    cold, warm = found["temperatures"]
    assert cold["policy_over_cold_policy"]["estimate"] == 1.0 and warm["temperature"] == 0.7
    assert found["costs_of"] == {"0": "greedy", "0.7": "greedy"}
    assert "no latency table of temperature 0.7" in captured.err
    folder = tmp_path / "out" / "shift"
    for name in ("domains", "languages", "groups", "temperatures"):
        assert (folder / f"{name}.png").read_bytes().startswith(b"\x89PNG")
    assert json.loads((folder / "result.json").read_text())["measured"] == found
    # What was learned is kept and nobody's to edit: the second time nothing may be learned.
    (schedule,) = folder.glob("policies-t0-*/schedule.json")
    whole = schedule.read_text()
    schedule.write_text(re.sub(r'"content": \[\d+', '"content": [77', whole))
    with pytest.raises(DraftGymError, match=r"schedule\.json: not what was written"):
        command.main(traced)
    schedule.write_text(whole)
    damaged = next(folder.glob("policies-t0-*/all-0/policy.json"))
    content = damaged.read_bytes()
    damaged.write_text("{")
    with pytest.raises(DraftGymError, match=r"^.*policy\.json: not valid JSON"):
        command.main(traced)
    damaged.write_bytes(content)
    capsys.readouterr()
    monkeypatch.setattr(AllActionTrainer, "train", lambda *_: pytest.fail("learned again"))
    monkeypatch.setattr(parts, "pretrain", lambda *_, **__: pytest.fail("learned again"))
    for plot in ("matrix_plot", "group_plot", "temperature_plot"):
        monkeypatch.setattr(shift, plot, lambda *_: b"")
    assert command.main(traced) == 1
    again = json.loads(capsys.readouterr().out.splitlines()[-1])["measured"]
    assert again == found


def test_tables_must_be_of_different_laws(traced: list[str], tmp_path: Path) -> None:
    file = tmp_path / "latency.json"
    with pytest.raises(ConfigurationError, match="are both of law 'greedy'"):
        command.main([*traced, "--table", str(file)])
    content = json.loads(file.read_text())
    content["fingerprint"]["law"] = "sampling at temperature 1"
    file.write_text(json.dumps(content))
    with pytest.raises(ConfigurationError, match="none of law 'greedy'; got sampling at"):
        command.main(traced)

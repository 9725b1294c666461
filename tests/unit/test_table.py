"""Threshold tables: learned, stored, refused, followed live and on traces alike."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from draftgym.commands import learn as command
from draftgym.features import FeatureLayout
from draftgym.runtime import (
    PolicyError,
    TableController,
    TableRow,
    TableSplit,
    ThresholdTable,
    load_controller,
    load_table,
    representative_state,
    save_table,
)
from draftgym.state import MeasuredCosts, RoundState
from draftgym.theory.follow import follow
from draftgym.traces.judge import judge_rounds
from policies.export import PolicyCard
from policies.table import FEATURES, TableChoice, grow, learn_table
from tests.tiny import tiny_pair
from tests.unit.test_all_action import COSTS, LAYOUT, told_from_the_start
from tests.unit.test_information import SimpleTimes, coin_trace
from tests.unit.test_learn import table_file, write
from tests.unit.test_session import NO_EOS, PROMPT, oracle_session, plain

CARD = PolicyCard({"target": "tiny"}, {"cpu": "x"}, {})
TABLE = ThresholdTable(
    FeatureLayout(),
    TableSplit(
        "best_path_probability", 0.5, TableRow(0, 1),
        TableSplit("accepted_1", 2.0, TableRow(2, 4), TableRow(8, 16)),
    ),
    CARD.pair,
    CARD.hardware,
)  # fmt: skip


def test_finds_a_planted_rule() -> None:
    trace, times = told_from_the_start(), SimpleTimes()
    table = learn_table(trace, times, LAYOUT, COSTS, card=CARD)
    assert isinstance(table.root, TableSplit)
    assert table.root.feature == "best_path_probability"
    assert 0.999 * np.exp(-2.0) < table.root.at_most < 0.999 * np.exp(-0.1)
    assert table.root.yes == TableRow(0, 0)
    right = trace.rank[:, 1, 0] == 0
    told = follow(trace, times, lambda rows, _: (right[rows] * 1, right[rows] * 4)).sum()
    assert judge_rounds(trace, times, LAYOUT, TableChoice(table), COSTS).sum() < 1.01 * told
    assert table.pair == CARD.pair and table.training["trace_positions"] == len(trace)


def test_gains_nothing_on_other_prompts_where_nothing_is_told() -> None:
    trace, times = coin_trace(told=False), SimpleTimes()
    held_out = learn_table(trace, times, LAYOUT, COSTS).training["held_out_ms_per_token_by_splits"]
    assert len(held_out) == 8 and min(held_out) > 0.97 * held_out[0]


def test_splits_are_the_best_ones_and_leave_no_small_rows() -> None:
    random = np.random.default_rng(0)
    values = random.random((500, len(FEATURES)))
    values[:, 2] = random.integers(0, 3, 500)
    cells = np.array([[0, 0], [1, 4]])
    gains = np.zeros((500, 2))
    gains[:, 1] = np.where(values[:, 2] <= 1, -1.0, 3.0)
    nodes = grow(values, gains, cells, 8, FEATURES)
    assert (nodes[0].feature, nodes[0].at_most) == (FEATURES[2], 1.0)
    assert [nodes[side].row for side in nodes[0].sides] == [TableRow(0, 0), TableRow(1, 4)]
    assert len(nodes) == 3, "no further split gains anything"
    few = gains.copy()
    few[:, 1] = -1.0
    few[:5, 1] = 100.0
    values[:5, 4] = 2.0
    nodes = grow(values, few, cells, 2, FEATURES)
    assert ((values[:, FEATURES.index(nodes[0].feature)] > nodes[0].at_most).sum()) >= 10


def test_reads_as_questions() -> None:
    assert TABLE.text().splitlines() == [
        "if best_path_probability <= 0.5:",
        "    D = 0, V = 1",
        "else:",
        "    if accepted_1 <= 2:",
        "        D = 2, V = 4",
        "    else:",
        "        D = 8, V = 16",
    ]


def test_one_round_and_many_are_decided_alike() -> None:
    random = np.random.default_rng(1)
    raw = random.random((200, len(TABLE.layout.depth_names)))
    raw[:, TABLE.layout.depth_names.index("accepted_1")] = random.integers(0, 5, 200)
    depth, size = TABLE.decide_many(raw)
    rows = [TABLE.decide(entry) for entry in raw]
    assert {TableRow(d, v) for d, v in zip(depth.tolist(), size.tolist(), strict=True)} == set(
        TABLE.rows
    )
    assert [row.depth for row in rows] == depth.tolist()
    assert [row.size for row in rows] == size.tolist()


def state(probability: float, depth: int = 0, **changes: Any) -> RoundState:
    before = representative_state(TABLE.layout)
    seen = before.read_confidence()._replace(frontier_scores=(float(np.log(probability)),))
    return replace(before, depth=depth, read_confidence=lambda law=True: seen, **changes)


def test_a_live_round_keeps_what_its_start_decided() -> None:
    controller = TableController(TABLE)
    assert not controller.free
    controller.reset()
    likely, unlikely = state(0.9), state(0.2)
    wanted = TABLE.decide(TABLE.layout.depth_raw(likely))
    assert wanted.depth > 0
    assert controller.draft_again(likely)
    # What is seen later does not matter.
    answers = [controller.draft_again(state(0.2, depth=d)) for d in range(1, wanted.depth + 1)]
    assert answers == [True] * (wanted.depth - 1) + [False]
    assert controller.choose_size(state(0.2, depth=wanted.depth)) == wanted.size
    controller.observe(None)  # type: ignore[arg-type]
    assert not controller.draft_again(unlikely)
    assert controller.choose_size(unlikely) == 1
    controller.observe(None)  # type: ignore[arg-type]
    # A round that may not draft is never asked whether to.
    assert controller.choose_size(state(0.9, max_depth=0)) == wanted.size


def test_comes_back_from_its_file(tmp_path: Path) -> None:
    file = save_table(tmp_path / "table.json", TABLE)
    assert load_table(file, CARD.pair, CARD.hardware) == TABLE
    with pytest.raises(PolicyError, match=r"table\.json: learned on another .*pair\.target"):
        load_table(file, {"target": "big"})
    with pytest.warns(UserWarning, match=r"other hardware.*hardware\.cpu"):
        load_table(file, None, {"cpu": "y"})


def changed(data: Any, path: tuple[str, ...], value: Any) -> Any:
    if not path:
        return value
    return {**data, path[0]: changed(data.get(path[0], {}), path[1:], value)}


@pytest.mark.parametrize(
    ("path", "value", "named"),
    [
        (("schema",), "draftgym.table/2", "schema"),
        (("root", "feature"), "accepted_99", r"root\.feature"),
        (("root", "feature"), 3, r"root\.feature"),
        (("root", "at_most"), None, r"root\.at_most"),
        (("root", "at_most"), True, r"root\.at_most"),
        (("root", "yes", "depth"), 9, r"root\.yes\.depth: must be 0 to 8"),
        (("root", "yes", "size"), -1, r"root\.yes\.size"),
        (("root", "no", "yes", "size"), 1.5, r"root\.no\.yes\.size"),
        (("root", "yes"), {"depth": 1}, r"root\.yes: must have"),
        (("layout", "parameters", "history"), 7, r"layout\.hash"),
        (("layout", "parameters", "history"), "x", r"layout\.parameters"),
        (("layout",), [], "layout: must be an object"),
        (("pair",), None, "pair"),
        (("training",), {"costs": {"draft_pass_over_plain": "x"}}, r"training\.costs"),
        (("extra",), 1, "extra: unknown"),
    ],
)
def test_damage_is_refused(path: tuple[str, ...], value: Any, named: str, tmp_path: Path) -> None:
    file = save_table(tmp_path / "table.json", TABLE)
    data = json.loads(file.read_text())
    file.write_text(json.dumps(changed(data, path, value)))
    with pytest.raises(PolicyError, match=rf"table\.json: .*{named}"):
        load_table(file)


def test_missing_and_cut_files_are_refused(tmp_path: Path) -> None:
    with pytest.raises(PolicyError, match="no such table"):
        load_table(tmp_path / "none.json")
    file = save_table(tmp_path / "table.json", TABLE)
    for text in (file.read_text()[:-20], "[" * 100_000, "[]", "\x00"):
        file.write_text(text)
        with pytest.raises(PolicyError, match=r"table\.json"):
            load_table(file)
    deep: Any = {"depth": 0, "size": 0}
    for _ in range(50):
        deep = {"feature": "depth", "at_most": 0, "yes": deep, "no": {"depth": 0, "size": 0}}
    save_table(file, TABLE)
    file.write_text(json.dumps({**json.loads(file.read_text()), "root": deep}))
    with pytest.raises(PolicyError, match="nested too deeply"):
        load_table(file)


def test_a_live_session_follows_it() -> None:
    root = TableSplit("accepted_1", 0.0, TableRow(2, 4), TableRow(1, 2))
    table = ThresholdTable(FeatureLayout(), root)
    session = oracle_session(tiny_pair(1, eos=NO_EOS))
    session.start(PROMPT, 40)
    records = session.run(TableController(table))
    assert session.tokens == plain(tiny_pair(1, eos=NO_EOS), 40)
    before = [0, *(record.accepted for record in records)]
    taken = set()
    for last, record in zip(before, records, strict=False):
        if record.clamped:
            continue
        row = root.yes if last == 0 else root.no
        assert TableRow(record.depth, record.requested_size) == row
        taken.add(row)
    assert taken == {TableRow(2, 4), TableRow(1, 2)}


def test_is_loaded_like_a_policy(tmp_path: Path) -> None:
    known = replace(TABLE, training={"costs": {"draft_pass_over_plain": 0.25}})
    controller = load_controller(save_table(tmp_path / "table.json", known), CARD.pair)
    assert isinstance(controller, TableController) and controller.table == known
    assert controller.layout == TABLE.layout
    assert controller.costs == MeasuredCosts(0.25, 0.0)
    with pytest.raises(PolicyError, match=r"policy\.json: missing"):
        load_controller(tmp_path)


def test_learn_exports_it(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "out"
    arguments = ["--trace", write(tmp_path / "trace"), "--table", table_file(tmp_path)]
    assert (
        command.main([*arguments, "--output", str(out), "--steps", "2", "--table-rows", "3"]) == 0
    )
    line = json.loads(capsys.readouterr().out.splitlines()[-1])
    table = load_table(line["table"], {"target": "tiny"})
    assert (out / "table.txt").read_text() == table.text() + "\n"
    assert 1 <= len(table.rows) <= 3 and table.hardware["threads"] == 2
    assert MeasuredCosts(**table.training["costs"]).draft_pass_over_plain > 0

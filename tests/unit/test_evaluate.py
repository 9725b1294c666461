"""The evaluator and the benchmark on a tiny pair under a fake clock."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from draftgym.benchmark import contenders, report
from draftgym.benchmark import evaluate as evaluator
from draftgym.benchmark.bench import Bench
from draftgym.benchmark.cell_race import BenchPlan, coarse_cells, neighbours
from draftgym.benchmark.config import Cell, EvaluateConfig, largest_size
from draftgym.benchmark.costs import measure_costs
from draftgym.benchmark.divergence import Divergence, Judge, differing_tokens, first_difference
from draftgym.benchmark.evaluate import Evaluation, evaluate
from draftgym.benchmark.methods import HuggingFaceMethod, SessionMethod
from draftgym.benchmark.reference import Reference
from draftgym.benchmark.runner import (
    BUSY_LOAD,
    Measurement,
    Plan,
    Request,
    Sample,
    other_load,
    run_blocks,
    totals,
)
from draftgym.benchmark.samples import SampleStore, finished_blocks
from draftgym.benchmark.summary import identical_prompts
from draftgym.benchmark.untrained import Unheeded, untrained_controller
from draftgym.clock import FakeClock
from draftgym.configuration import load_yaml, validate
from draftgym.costs.measure import cost_table
from draftgym.decoder.config import DrafterConfig, PairConfig
from draftgym.decoder.controllers import FixedController, PlainController
from draftgym.decoder.pair import ModelPair
from draftgym.decoder.session import DecoderSession
from draftgym.errors import ConfigurationError
from draftgym.provenance import usable_cores
from draftgym.runtime import PolicyError, save_policy
from draftgym.state import RoundRecord
from tests.tiny import tiny_model, tiny_pair

CONFIGS = Path(__file__).parents[2] / "configs" / "evaluate"


class CharacterTokenizer:
    """Stands in for a tokenizer: characters folded into the tiny vocabulary, no stop ids."""

    def __call__(self, text: str) -> dict[str, list[int]]:
        return {"input_ids": [2 + ord(character) % 62 for character in text[:12]]}


def make_pair(**changes: Any) -> ModelPair:
    pair = tiny_pair(**changes)
    pair.tokenizer = CharacterTokenizer()
    return pair


def make_config(pair: ModelPair, output: Path, **changes: Any) -> EvaluateConfig:
    return EvaluateConfig.model_validate(
        {
            "pair": pair.config,
            "cells": [{"depth": 1, "size": 2}, {"depth": 2, "size": 3}, {"depth": 3, "size": 8}],
            "finalists": 2,
            "validation": {
                "prompts": 6,
                "max_new_tokens": 12,
                "race_prompts": 2,
                "race_keep": 2,
            },
            "test": {"prompts": 6, "max_new_tokens": 16, "repeats": 2},
            "warm_up_tokens": 2,
            "cost_rounds": 2,
            "bootstrap_resamples": 500,
            "output": str(output),
            **changes,
        }
    )


def run(config: EvaluateConfig, pair: ModelPair) -> Evaluation:
    return evaluate(config, pair=pair, reference=Reference(tiny_model), clock=FakeClock())


@pytest.fixture
def pair() -> ModelPair:
    return make_pair(eos=frozenset())


EAGLE3 = {"drafter": {"kind": "eagle3"}}


@pytest.fixture
def no_plots(monkeypatch: pytest.MonkeyPatch) -> None:
    """Drawing takes longer than everything else; one test looks at the plots."""
    monkeypatch.setattr(report, "plots", lambda results, details: {})


@pytest.mark.parametrize("name", ["after_training"])
def test_shipped_configurations_load(name: str) -> None:
    config = load_yaml(CONFIGS / f"{name}.yaml", EvaluateConfig)
    if name == "after_training":
        assert len(config.cells) <= 12
        assert config.validation.prompts <= 12
        assert config.validation.max_new_tokens <= 64
        test = config.test
        assert (test.prompts, test.max_new_tokens, test.repeats) == (24, 64, 2)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"cells": [{"depth": 9, "size": 2}]}, "accepts depth 0 to 8"),
        ({"cells": [{"depth": 0, "size": 2}], "pair": EAGLE3}, "accepts depth 1 to 8"),
        ({"cells": [{"depth": 1, "size": 33}]}, "at most 32 tokens"),
        ({"cells": [{"depth": 1, "size": 5}], "pair": EAGLE3}, "at most 4 tokens"),
        ({"cells": [{"depth": 1, "size": 2}] * 2}, "may be listed once"),
        ({"cells": []}, "cells"),
        ({"test": {"prompts": 1}}, "test.prompts"),
        ({"tokens": 3}, "unknown field"),
        ({"validation": {"prompts": 4, "race_prompts": 2, "race_keep": 1}}, "race_keep"),
        ({"pair": {"drafter": {"kind": "none"}}}, "drafts nothing"),
    ],
)
def test_bad_configuration_is_refused_by_name(change: dict[str, Any], message: str) -> None:
    data = {"cells": [{"depth": 1, "size": 2}], **change}
    with pytest.raises(ConfigurationError, match=message):
        validate(data, EvaluateConfig, "test")


def test_cells_are_cut_to_fit_another_drafter() -> None:
    config = load_yaml(CONFIGS / "after_training.yaml", EvaluateConfig)
    narrow = PairConfig(drafter=DrafterConfig(kind="eagle3", beam_width=1, max_depth=3))
    fitted = config.for_run(narrow, None, "elsewhere")
    assert fitted.cells
    assert all(cell.depth <= 3 and cell.size <= cell.depth for cell in fitted.cells)
    look_up = PairConfig(drafter=DrafterConfig(kind="ngram"))
    assert {cell.depth for cell in config.for_run(look_up, None, "x").cells} == {0}


def test_largest_size_counts_a_trees_nodes() -> None:
    drafter = DrafterConfig(kind="eagle3", beam_width=4, max_size=32)
    hybrid = DrafterConfig(beam_width=4, max_size=32, ngram_cap_tokens=10)
    assert [largest_size(hybrid, depth) for depth in (0, 1, 2, 3)] == [10, 14, 30, 32]
    assert [largest_size(drafter, depth) for depth in (0, 1, 2, 3)] == [0, 4, 20, 32]
    assert largest_size(DrafterConfig(kind="ngram", ngram_cap_tokens=7), 0) == 7


def test_report_has_the_promised_shape(pair: ModelPair, tmp_path: Path) -> None:
    policy = save_policy(tmp_path / "policy", matching_policy(pair))
    result = run(make_config(pair, tmp_path / "out", policy=str(policy)), pair)
    payload = result.payload
    assert set(payload) == {
        "results",
        "best_fixed",
        "best_fixed_hindsight",
        "baseline_tuned",
        "policy_vs_best_fixed",
        "policy_vs_plain",
        "beside_vs_best_fixed",
        "identical_outputs",
        "prompts",
        "repeats",
        "provenance",
    }
    methods = [row["method"] for row in payload["results"]]
    assert methods[0] == "plain"
    assert methods[-1] == "learned policy"
    assert len(methods) == 4
    for row in payload["results"]:
        assert set(row) == {"method", "ms_per_token", "ci95", "tau_emitted", "speedup"}
        assert row["ci95"][0] <= row["ms_per_token"] <= row["ci95"][1]
    # Plain decoding under the fake clock: 30 ms to verify and 0.1 ms to commit each token.
    assert payload["results"][0]["ms_per_token"] == pytest.approx(30.1)
    assert payload["results"][0]["speedup"] == pytest.approx(1.0)
    assert payload["policy_vs_plain"]["verdict"] in (
        "faster",
        "slower",
        "no significant difference",
    )
    assert payload["identical_outputs"] == payload["prompts"] == 6
    assert payload["repeats"] == 2
    assert not result.faults
    assert json.loads((result.folder / "report.json").read_text())["schema"] == evaluator.SCHEMA
    text = (result.folder / "report.md").read_text()
    assert "learned policy" in text
    assert "{" not in text, "nested entries are written for people"
    assert payload["policy_vs_plain"]["verdict"] in text
    plots = {path.name for path in (result.folder / "plots").iterdir()}
    assert {"time_per_token.png", "validation.png", "decisions.png", "time_split.png"} <= plots


def matching_policy(pair: ModelPair) -> Any:
    policy = untrained_controller(8, 4).policy
    return replace(policy, pair=pair.fingerprint())


@pytest.mark.usefixtures("no_plots")
def test_policies_are_measured_beside_each_other(pair: ModelPair, tmp_path: Path) -> None:
    paths = [
        str(save_policy(tmp_path / name, matching_policy(pair))) for name in ("one", "two", "three")
    ]
    changes = {"policy": paths[0], "beside": paths[1:]}
    result = run(make_config(pair, tmp_path / "out", **changes), pair)
    methods = [row["method"] for row in result.payload["results"]]
    assert methods[-3:] == ["learned policy", *paths[1:]]
    assert set(result.payload["beside_vs_best_fixed"]) == set(paths[1:])
    text = (result.folder / "report.md").read_text()
    assert all(f"`{path}` against the best fixed cell" in text for path in paths[1:])
    with pytest.raises(ValueError, match="beside: each policy may be listed once"):
        make_config(pair, tmp_path, policy=paths[0], beside=paths[:1])
    with pytest.raises(PolicyError, match="absent"):
        run(make_config(pair, tmp_path / "other", beside=[str(tmp_path / "absent")]), pair)


@pytest.mark.usefixtures("no_plots")
def test_a_policy_from_another_machine_is_judged_with_a_warning(
    pair: ModelPair, tmp_path: Path
) -> None:
    foreign = replace(matching_policy(pair), hardware={"cpu": "some other", "cores": 1})
    policy = save_policy(tmp_path / "policy", foreign)
    with pytest.warns(UserWarning, match=r"trained on other hardware.*hardware\.cores"):
        run(make_config(pair, tmp_path / "out", policy=str(policy)), pair)


@pytest.mark.usefixtures("no_plots")
def test_without_a_policy_fixed_cells_are_still_judged(pair: ModelPair, tmp_path: Path) -> None:
    result = run(make_config(pair, tmp_path), pair)
    assert result.payload["policy_vs_best_fixed"] is None
    assert result.payload["policy_vs_plain"] is None
    assert "No policy was given" in (tmp_path / "report.md").read_text()
    # Tuned on validation prompts; hindsight looks at the test prompts.
    details = json.loads((tmp_path / "report.json").read_text())["details"]
    best = details["validation"][0]
    chosen = result.payload["best_fixed"]
    assert (chosen["depth"], chosen["size"]) == (best["depth"], best["size"])
    assert best["prompts"] == 6
    shown = [row["speedup"] for row in result.payload["results"][1:]]
    assert result.payload["best_fixed_hindsight"]["speedup"] == pytest.approx(max(shown))


@pytest.mark.usefixtures("no_plots")
def test_restart_skips_finished_blocks_and_gives_the_same_result(
    pair: ModelPair, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = make_config(pair, tmp_path)
    whole = run(config, pair).payload["results"]
    samples = tmp_path / "samples.jsonl"
    lines = samples.read_text().splitlines(keepends=True)
    # As a kill would leave it: the last block incomplete, its last line torn.
    samples.write_text("".join(lines[:-2]) + lines[-2][:40])
    measured = []
    plain_measure = SessionMethod.measure

    def counted(self: SessionMethod, request: Request, max_new_tokens: int) -> Measurement:
        if max_new_tokens > config.warm_up_tokens:
            measured.append((self.name, request.prompt_id))
        return plain_measure(self, request, max_new_tokens)

    monkeypatch.setattr(SessionMethod, "measure", counted)
    for again, before in zip(run(config, pair).payload["results"], whole, strict=True):
        # The fake clock's sums start elsewhere, so their last bits differ.
        assert again["method"] == before["method"]
        assert again["ms_per_token"] == pytest.approx(before["ms_per_token"])
        assert again["tau_emitted"] == before["tau_emitted"]
    assert len(measured) == 3  # one block of the test phase
    assert len({prompt for _, prompt in measured}) == 1
    measured.clear()
    changed = config.model_copy(update={"test": config.test.model_copy(update={"repeats": 1})})
    run(changed, pair)
    assert len(measured) > 3  # another plan shares no sample


def test_a_policy_of_another_pair_is_refused(pair: ModelPair, tmp_path: Path) -> None:
    policy = replace(matching_policy(pair), pair={**pair.fingerprint(), "beam_width": "9"})
    save_policy(tmp_path / "policy", policy)
    config = make_config(pair, tmp_path / "out", policy=str(tmp_path / "policy"))
    with pytest.raises(PolicyError, match="another model pair"):
        run(config, pair)


@pytest.mark.usefixtures("no_plots")
def test_texts_that_end_at_once_are_left_out_and_named(tmp_path: Path) -> None:
    # Whatever some prompt's first token is ends its text: no decoding round is left to time.
    open_pair = make_pair(eos=frozenset())
    config = make_config(open_pair, tmp_path / "a")
    session = DecoderSession(open_pair, None, clock=FakeClock())
    firsts = []
    run(config, open_pair)
    for line in (tmp_path / "a" / "samples.jsonl").read_text().splitlines():
        row = json.loads(line)
        if row["phase"] == "test" and row["method"] == "plain":
            firsts.append((row["prompt"], row["output"][0]))
    assert session.finished
    stop = firsts[0][1]
    gone = {prompt for prompt, first in firsts if first == stop}
    assert len(gone) < 5
    closed = make_pair(eos=frozenset({stop}))
    result = run(make_config(closed, tmp_path / "b"), closed)
    written = json.loads((result.folder / "report.json").read_text())
    assert set(written["details"]["left_out"]) == gone
    assert result.payload["prompts"] == 6


class Recorder:
    """A method that only writes down when it was asked."""

    def __init__(self, name: str, log: list[tuple[str, str, int]]) -> None:
        self.name = name
        self._log = log

    def measure(self, request: Request, max_new_tokens: int) -> Measurement:
        self._log.append((self.name, request.prompt_id, max_new_tokens))
        return Measurement((1, 2), 0.5, 1)

    def renew(self) -> None:
        """Nothing was learned."""


def test_blocks_are_interleaved_shuffled_and_warmed_up() -> None:
    log: list[tuple[str, str, int]] = []
    methods = [Recorder(name, log) for name in "abc"]
    requests = [Request(f"p{i}", "d", (1,)) for i in range(6)]
    samples = run_blocks(methods, requests, Plan(20, repeats=2, warm_up_tokens=4))
    assert [entry[0] for entry in log[:3]] == ["a", "b", "c"]
    assert all(entry[2] == 4 for entry in log[:3])
    timed = log[3:]
    assert len(samples) == len(timed) == 36
    blocks = [timed[i : i + 3] for i in range(0, 36, 3)]
    assert all(len({entry[1] for entry in block}) == 1 for block in blocks)
    assert all({entry[0] for entry in block} == set("abc") for block in blocks)
    assert len({tuple(entry[0] for entry in block) for block in blocks}) > 2
    first, second = [[b[0][1] for b in blocks[i : i + 6]] for i in (0, 6)]
    assert sorted(first) == sorted(second)
    assert first != second


@pytest.mark.parametrize("processes", [0.0, 50.0])
def test_a_busy_machine_is_said_and_recorded(
    processes: float, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("os.getloadavg", lambda: (processes, 1.0, 1.0))
    assert other_load() == processes / usable_cores()
    busy = processes / usable_cores() > BUSY_LOAD
    assert ("busy" in capsys.readouterr().err) == busy


class Learner(FixedController):
    """Counts the rounds that it has learned from."""

    def __init__(self, made: list["Learner"]) -> None:
        super().__init__(2, 3)
        self.rounds = 0
        made.append(self)

    def observe(self, record: RoundRecord) -> None:
        self.rounds += 1


def test_what_the_warm_up_taught_is_forgotten(pair: ModelPair) -> None:
    session = DecoderSession(pair, pair.new_drafter(), clock=FakeClock())
    made: list[Learner] = []
    kept = Learner([])
    methods = [
        SessionMethod("learns", session, lambda: Learner(made)),
        SessionMethod("kept", session, kept),
    ]
    requests = [Request(f"p{i}", "d", (5 + i, 6, 7)) for i in range(3)]
    samples = run_blocks(methods, requests, Plan(12, warm_up_tokens=6))
    rounds = {m.name: 0 for m in methods}
    for sample in samples:
        rounds[sample.method] += len(sample.measurement.records)
    warm_up, measured = made
    assert warm_up.rounds > 0 and measured.rounds == rounds["learns"]
    assert kept.rounds == warm_up.rounds + rounds["kept"], "one controller goes on"


def test_method_names_must_be_unique() -> None:
    with pytest.raises(ValueError, match="names repeat"):
        run_blocks([Recorder("a", []), Recorder("a", [])], [Request("p", "d", (1,))], Plan(4))


def test_policy_time_is_charged_to_the_policy(pair: ModelPair) -> None:
    """CASES 11: the speedup reported in the end pays for every decision."""
    session = DecoderSession(pair, pair.new_drafter(), clock=FakeClock())
    request = Request("p", "d", (5, 6, 7))

    class Thinker(FixedController):
        free = False

    quick = SessionMethod("quick", session, FixedController(2, 3)).measure(request, 20)
    slow = SessionMethod("slow", session, Thinker(2, 3)).measure(request, 20)
    assert quick.output == slow.output
    assert sum(record.policy_seconds for record in quick.records) == 0
    charged = sum(record.policy_seconds for record in slow.records)
    assert charged > 0
    assert slow.seconds == pytest.approx(quick.seconds + charged)


def test_samples_survive_the_disk(pair: ModelPair, tmp_path: Path) -> None:
    session = DecoderSession(pair, pair.new_drafter(), clock=FakeClock())
    method = SessionMethod("m", session, FixedController(2, 3))
    sample = Sample("m", "p", 0, method.measure(Request("p", "d", (5, 6, 7)), 10))
    store = SampleStore(tmp_path / "samples.jsonl", "key")
    store.append("test", [sample])
    assert store.load("test", ["m"]) == [sample]
    assert finished_blocks([sample]) == {(0, "p")}
    assert store.load("test", ["m", "other"]) == []
    assert store.load("validation", ["m"]) == []
    assert SampleStore(tmp_path / "samples.jsonl", "other key").load("test", ["m"]) == []


def test_huggingface_is_timed_without_prefill(pair: ModelPair) -> None:
    method = HuggingFaceMethod(tiny_model(), FakeClock())
    request = Request("p", "d", (5, 6, 7))
    measured = method.measure(request, 9)
    plain = SessionMethod(
        "plain", DecoderSession(pair, None, clock=FakeClock()), PlainController()
    ).measure(request, 9)
    assert measured.output == plain.output
    assert measured.emitted == plain.emitted == 8
    assert measured.seconds == pytest.approx(8 * 0.0305)


def test_huggingface_stops_where_the_session_stops() -> None:
    request = Request("p", "d", (5, 6, 7))
    free = make_pair(eos=frozenset())
    session = DecoderSession(free, None, clock=FakeClock())
    text = SessionMethod("plain", session, PlainController()).measure(request, 12).output
    stop = text[4]
    end = text.index(stop) + 1
    measured = HuggingFaceMethod(tiny_model(), FakeClock(), (stop,)).measure(request, 12)
    assert measured.output == text[:end]


def test_costs_are_those_of_the_clock(pair: ModelPair) -> None:
    drafter = pair.config.drafter
    session = DecoderSession(pair, pair.new_drafter(), clock=FakeClock())
    table = cost_table(drafter, (0, 1, 4, 8, 32))
    assert set(table) == {(0, 0), (2, 1), (2, 4), (2, 8), (3, 32)}
    requests = [Request("a", "d", (5, 6, 7)), Request("b", "d", (9, 8, 7))]
    curve = measure_costs(session, requests, table, rounds_per_setting=6, max_new_tokens=64)
    assert curve.plain_seconds == pytest.approx(30.1e-3)
    assert curve.later_pass_seconds == pytest.approx(2.05e-3)
    assert curve.draft_pass_over_plain == pytest.approx(2.05 / 30.1)
    assert curve.verify_over_plain[0] == pytest.approx(1.0)
    assert curve.verify_over_plain[8] == pytest.approx(34.1 / 30.1)
    assert curve.measured.verify_slope_over_plain == pytest.approx(0.5 / 30.1)
    assert min(curve.rounds.values()) >= 2


def test_cost_table_of_a_drafter_without_passes() -> None:
    table = cost_table(DrafterConfig(kind="ngram", ngram_cap_tokens=10), (0, 1, 4, 16))
    assert set(table) == {(0, 0), (0, 1), (0, 4)}


def test_bench_reports_every_promised_figure(pair: ModelPair) -> None:
    clock = FakeClock(fixed_seconds={**FakeClock.FIXED, "read": 0.05})
    bench = Bench(
        pair,
        pair.config.drafter,
        untrained_controller(8, 4),
        Reference(tiny_model),
        clock,
        BenchPlan(tokens=16, repeats=1, tune_tokens=8, cost_rounds=3, temperatures=(0.8,)),
    )
    requests = [Request(f"p{i}", f"d{i % 2}", (3 + i, 5, 7 + i)) for i in range(8)]
    payload = bench.run(requests[:3], requests[3:]).payload
    promised = {
        "plain_over_hf",
        "best_fixed",
        "speedup",
        "tau_emitted",
        "draft_pass_over_plain",
        "verify_over_plain",
        "policy_us_per_round",
        "policy_share",
        "silent_session_over_plain",
        "bandwidth_floor_over_plain",
        "identical_prompts",
        "prompts",
    }
    assert promised <= set(payload)
    assert payload["plain_over_hf"]["ratio"] == pytest.approx(30.5 / 30.1)
    assert payload["silent_session_over_plain"] == pytest.approx(1.0)
    assert payload["draft_pass_over_plain"] == pytest.approx(2.05 / 30.1)
    assert payload["best_fixed"]["tuned_on"] == "3 validation prompts"
    assert payload["policy_us_per_round"]["median"] >= 20
    assert 0 < payload["policy_share"] < 0.01
    assert payload["identical_prompts"] == payload["prompts"] == 5
    assert set(payload["domains"]) == {"d0", "d1"}
    warm = payload["temperatures"]["0.8"]
    assert warm["identical_prompts"] == 5 and not warm["divergences"]
    assert warm["speedup"]["ratio"] > 0 and set(warm["domains"]) == {"d0", "d1"}


def test_unheeded_decisions_are_paid_for(pair: ModelPair) -> None:
    session = DecoderSession(pair, pair.new_drafter(), clock=FakeClock())
    policy = untrained_controller(8, 4)
    records = {}
    for controller in (FixedController(2, 3), Unheeded(policy, 2, 3)):
        session.start((5, 6, 7), 24)
        records[controller.free] = session.run(controller)
    assert not policy.free and records.keys() == {True, False}
    chosen = [[(r.depth, r.size, r.tokens) for r in rounds] for rounds in records.values()]
    assert chosen[0] == chosen[1]
    assert sum(r.policy_seconds for r in records[True]) == 0.0
    # Three decisions in a round of two passes: go, go, stop; and the size.
    deep = [r for r in records[False] if r.depth == 2]
    assert deep[0].policy_seconds == pytest.approx(4 * 2e-5, rel=1e-4)
    assert all(r.policy_seconds > 0.0 for r in deep)


def test_neighbours_are_one_step_away() -> None:
    drafter = DrafterConfig()
    found = neighbours(drafter, [Cell(depth=1, size=4)])
    assert Cell(depth=2, size=4) in found
    assert all(abs(c.depth - 1) <= 1 and abs(c.size - 4) <= 1 for c in found)
    assert all(c.size <= largest_size(drafter, c.depth) for c in coarse_cells(drafter))
    assert {c.depth for c in coarse_cells(DrafterConfig(kind="ngram"))} == {0}


@pytest.mark.parametrize(
    ("expected", "got", "position", "count"),
    [
        ((1, 2, 3), (1, 2, 3), None, 0),
        ((1, 2, 3), (1, 9, 3), 1, 1),
        ((1, 2, 3), (1, 2), 2, 1),
        ((1,), (1, 2, 3), 1, 2),
    ],
)
def test_first_difference(
    expected: tuple[int, ...], got: tuple[int, ...], position: int | None, count: int
) -> None:
    assert first_difference(expected, got) == position
    assert differing_tokens(expected, got) == count


def test_only_a_near_tie_excuses_a_divergence() -> None:
    judge = Judge(tiny_model())
    wide = judge.compare("m", "p", (5, 6, 7), (8, 9), (8, 10))
    assert wide is not None
    assert not wide.near_tie
    assert wide.position == 1
    judge.near_tie_gap = wide.top2_gap  # the same gap, allowed
    tied = judge.compare("m", "p", (5, 6, 7), (8, 9), (8, 10))
    assert tied is not None
    assert tied.near_tie
    # An early end is a fault of stopping whatever the gap.
    ended = judge.compare("m", "p", (5, 6, 7), (8, 9), (8,))
    assert ended is not None
    assert not ended.near_tie
    requests = [Request("p", "d", (5,)), Request("q", "d", (5,))]
    assert identical_prompts(requests, [tied]) == 2
    assert identical_prompts(requests, [tied, wide]) == 1


class Liar(SessionMethod):
    """Changes the last token that it emits."""

    def measure(self, request: Request, max_new_tokens: int) -> Measurement:
        honest = super().measure(request, max_new_tokens)
        wrong = (honest.output[-1] + 1) % 64
        return replace(honest, output=(*honest.output[:-1], wrong))


@pytest.mark.usefixtures("no_plots")
def test_a_wrong_output_is_counted_and_listed(
    pair: ModelPair, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def method(name: str, session: DecoderSession, controller: Any) -> SessionMethod:
        kind = SessionMethod if name == "plain" else Liar
        return kind(name, session, controller)

    monkeypatch.setattr(contenders, "SessionMethod", method)
    result = run(make_config(pair, tmp_path), pair)
    assert result.payload["identical_outputs"] == 0
    assert result.faults
    assert all(isinstance(fault, Divergence) for fault in result.faults)
    assert "**fault**" in (tmp_path / "report.md").read_text()


def test_totals_take_the_prompts_asked_for() -> None:
    samples = [
        Sample("m", prompt, repeat, Measurement((1, 2, 3), 0.5 + repeat, 2))
        for prompt in ("p", "q")
        for repeat in range(3)
    ]
    assert totals(samples, "m").time_per_token == pytest.approx(0.75)
    assert totals(samples, "m", {"q"}).prompt_ids == ("q",)

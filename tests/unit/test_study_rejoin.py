"""Rejoin: planted cases, alignments by brute force, logs of real sessions, gates, the command."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from draftgym.clock import FakeClock
from draftgym.commands.studies import rejoin as command
from draftgym.configuration import load_yaml
from draftgym.decoder.controllers import PlainController
from draftgym.decoder.pair import ModelPair
from draftgym.decoder.session import DecoderSession
from draftgym.decoder.sources import parse_hub_id
from draftgym.errors import ConfigurationError, DraftGymError
from draftgym.storage import dump_json
from draftgym.studies.rejoin import collect
from draftgym.studies.rejoin.alignment import (
    Reach,
    against_others,
    align,
    aligned,
    common_prefix,
    longest_run,
)
from draftgym.studies.rejoin.approaches import APPROACHES, Prices, worth
from draftgym.studies.rejoin.clusters import clustered, mean, ratio, share
from draftgym.studies.rejoin.config import RejoinConfig
from draftgym.studies.rejoin.findings import survival, value
from draftgym.studies.rejoin.formats import code_prefix, format_shares, is_format
from draftgym.studies.rejoin.gates import SIGNALS, choose, judge, signals
from draftgym.studies.rejoin.log import ChainLogger, LoggedText, LogRequest
from draftgym.studies.rejoin.planted import PlantedTimes, known_values, planted_text
from draftgym.studies.rejoin.rejections import rejections
from tests.tiny import tiny_pair

BLOCK, SLACK = 4, 3
REACH = Reach(slack=SLACK, trim=2, bridge=2)
CONFIG = Path(__file__).parents[2] / "configs" / "study" / "rejoin_qwen3.yaml"


def chain_pair(**changes: Any) -> ModelPair:
    return tiny_pair(beam_width=1, max_depth=8, eos=frozenset(), **changes)


def log_texts(pair: ModelPair, count: int, budget: int = 60) -> list[LoggedText]:
    logger = ChainLogger(pair, pair.config.drafter.kind, BLOCK, FakeClock())
    return [
        logger.log(LogRequest(f"p{i}-en", f"p{i}", "toy", (3, 5, 7 + i, 11), budget, BLOCK))
        for i in range(count)
    ]


@pytest.fixture(scope="module")
def texts() -> list[LoggedText]:
    return log_texts(chain_pair(), 8)


@pytest.mark.parametrize("known", known_values(), ids=lambda known: known.name)
def test_planted_cases_are_found(known: Any) -> None:
    assert known.ok, f"{known.got}, expected {known.expected}"


def test_the_longest_run_is_that_of_brute_force() -> None:
    generator = np.random.default_rng(3)
    for _ in range(200):
        escrow, text = (generator.integers(0, 3, generator.integers(0, 9)).tolist() for _ in "ab")
        slack = int(generator.integers(0, 5))
        every = {
            (k, b): common_prefix(escrow[k:], text[b:])
            for k in range(slack + 1)
            for b in range(slack + 1)
        }
        run = longest_run(escrow, text, slack)
        assert run.length == max(every.values())
        if run.length:
            assert every[run.escrow_start, run.text_start] == run.length
            cheapest = min(sum(start) for start, found in every.items() if found == run.length)
            assert run.escrow_start + run.text_start == cheapest


def test_each_approach_finds_at_least_what_the_one_before_does() -> None:
    generator = np.random.default_rng(4)
    for _ in range(200):
        escrow, text, fresh = (generator.integers(0, 3, 8).tolist() for _ in "abc")
        found = [approach.recovered(align(escrow, text, fresh, REACH)) for approach in APPROACHES]
        assert found == sorted(found)


@pytest.mark.parametrize("changes", [{}, {"drafter": "lm", "draft_layers": 1}], ids=["head", "lm"])
def test_logs_agree_with_plain_decoding_and_with_themselves(changes: dict[str, Any]) -> None:
    pair = chain_pair(**changes)
    plain = DecoderSession(pair, None, clock=FakeClock())
    accepted = 0
    for text in log_texts(pair, 3):
        number = int(text.request_id[1:])
        plain.start((3, 5, 7 + number, 11), 60)
        plain.run(PlainController())
        assert text.tokens == tuple(plain.tokens)
        for entry in text.rounds:
            written = text.tokens[entry.root + 1 :]
            assert common_prefix(entry.drafted, written) == entry.accepted
            assert entry.best[: entry.accepted + 1] == written[: entry.accepted + 1]
            accepted += entry.accepted
            ranks = entry.target_ranks[: entry.accepted]
            assert set(ranks) <= {0}
            if entry.rejected:
                assert entry.target_ranks[entry.accepted] > 0
                assert entry.correction_rank > 0  # the drafter's own best was rejected
                own = entry.draft_log_probs[entry.accepted]
                assert entry.correction_log_prob < own
        assert LoggedText.from_json(json.loads(dump_json(text.to_json()))) == text
    assert accepted > 0 or not changes


def test_the_next_draft_is_the_fresh_one(texts: list[LoggedText]) -> None:
    events = rejections(texts, SLACK)
    assert len(events) > 50
    for event in events:
        place = event.round.root + event.round.accepted + 1
        assert event.following.root == place
        assert (
            event.correction
            == event.text.tokens[place]
            != event.round.drafted[event.round.accepted]
        )
        assert len(event.continuation) >= BLOCK + SLACK
        assert event.fresh == common_prefix(event.following.drafted, event.continuation)


def test_wrong_continuations_are_of_other_requests() -> None:
    events = rejections([planted_text()], 2)
    stranger = replace(planted_text(), request_id="other", tokens=tuple(range(100, 113)))
    others = rejections([stranger], 2)
    # The stranger's text shares no token with any draft, and the planted one's does.
    for runs in against_others([*events, *others], 3, 5, 0)[: len(events)]:
        assert [run.length for run in runs] == [0] * 5
    assert max(found.longest.length for found in aligned(events, REACH)) == 3
    with pytest.raises(ConfigurationError, match="all rejections are of one request"):
        against_others(events, 3, 1, 0)


def test_means_over_clusters() -> None:
    names = ["a", "a", "b", "c", "d"]
    values = [1.0, 3.0, -2.0, 5.0, 0.0]
    found = mean(clustered(names), values)
    assert found.estimate == pytest.approx(1.4) and found.low < 1.4 < found.high
    weighted = mean(clustered(names), values, [1, 1, 0, 2, 0])
    assert weighted.estimate == pytest.approx(7 / 4)
    assert np.isnan(mean(clustered(names), values, [0] * 5).estimate)
    one = mean(clustered(["a", "a"]), [1.0, 2.0])
    assert one.estimate == 1.5 and np.isnan(one.low)
    assert share(clustered(names), [1, 1, 1, 0, 0]).limits == [0.0, 1.0]
    assert ratio(clustered(names), [2.0] * 5, [1.0] * 5).limits == [2.0, 2.0]
    # More rejections of the same request say nothing new.
    wide = mean(clustered([str(i // 10) for i in range(100)]), np.repeat(np.arange(10.0), 10))
    naive = mean(clustered([str(i) for i in range(100)]), np.repeat(np.arange(10.0), 10))
    assert wide.high - wide.low > 2 * (naive.high - naive.low)


def test_an_interval_holds_the_truth_as_often_as_it_says() -> None:
    generator = np.random.default_rng(5)
    names = [str(i // 3) for i in range(45)]
    held = 0
    for trial in range(150):
        shared = np.repeat(generator.normal(size=15), 3)
        found = mean(clustered(names, trial), shared + generator.normal(size=45))
        held += found.low <= 0 <= found.high
    assert 133 <= held <= 149  # 95 % of 150 is 142.5, standard deviation 2.7


def test_signals_are_many_finite_and_known_by_then(texts: list[LoggedText]) -> None:
    assert len(SIGNALS) >= 20
    events = rejections(texts, SLACK)
    found = signals(events)
    assert all(np.isfinite(values).all() for values in found.values())
    # Nothing written later may matter: replace it, and every signal stays.
    blind = []
    for event in events:
        end = event.round.root + event.round.accepted + 2
        tokens = event.text.tokens[:end] + (0,) * (len(event.text.tokens) - end)
        rounds = event.text.rounds[: event.index + 1]
        text = replace(event.text, tokens=tokens, rounds=rounds)
        blind.append(replace(event, text=text, continuation=(), following=event.round))
    for name, values in signals(blind).items():
        assert values.tolist() == found[name].tolist(), name


def test_gates_are_judged_on_other_requests() -> None:
    generator = np.random.default_rng(6)
    values = generator.normal(size=400)
    gains = np.where(values > 1, 1.0, -1.0)
    noise = generator.normal(size=400)
    clusters = clustered([str(i // 10) for i in range(400)])
    known, unknown = {"good": values, "noise": noise}, {"good": values, "noise": noise[::-1]}
    rows = {row.signal: row for row in judge(known, gains, unknown, gains, gains, clusters)}
    assert rows["good"].clears and rows["good"].clears_all
    assert rows["good"].gain.estimate == pytest.approx(1.0)
    assert not rows["noise"].clears
    assert choose(np.full(10, np.nan), gains[:10]) is None


def test_findings_of_tiny_logs(texts: list[LoggedText]) -> None:
    found = survival(texts, REACH, 2, 0)
    assert found["requests"] == 8 and found["rejections"] == len(rejections(texts, SLACK))
    delta = found["direct"].estimate - found["fresh"].estimate
    assert found["delta"].estimate == pytest.approx(delta)
    prices = Prices(PlantedTimes(), BLOCK, 32, found["fresh"].estimate)
    told = value(texts[:4], texts[4:], prices, REACH, 0)
    assert [row["live"] for row in told["approaches"]] == [True, True, False, False, True]
    plain_row = told["approaches"][-1]
    assert plain_row["recovered"].estimate == 0 and plain_row["beside_bar"] == 0
    for row in told["approaches"]:
        assert row["beside_oracle_speed"] >= 0 and row["instead_oracle_speed"] >= 0
    assert {len(gates["gates"]) for gates in told["gates"].values()} == {len(SIGNALS)}
    with pytest.raises(ValueError, match="both chooses and judges"):
        value(texts, texts, prices, REACH, 0)


def test_instead_pays_for_what_the_fresh_draft_gave(texts: list[LoggedText]) -> None:
    events = rejections(texts, SLACK)
    prices = Prices(PlantedTimes(), BLOCK, 32, 1.0)
    made = worth(APPROACHES[0], events, aligned(events, REACH), prices, REACH)
    index = next(i for i, event in enumerate(events) if event.escrow)
    event, tokens = events[index], len(events[index].escrow)
    # A draft of 4 takes 8, verification 10 + V; two tokens a round make a pace of 11.
    expected = made.recovered[index] - event.fresh + (22 - (10 + tokens)) / 11
    assert made.instead[index] == pytest.approx(expected)


def test_formats() -> None:
    assert is_format("```", "``") and is_format("\n", " ") and is_format(" x", "x,")
    assert not is_format("x", "x") and not is_format("x", "y")
    assert code_prefix("Fix this JavaScript, please.") == "```javascript\n"
    assert code_prefix("Write a parser.") == "```python\n"
    header = "from typing import List\n\n\ndef f(x: List[int]) -> int:\n    '''Sum.'''\n"
    assert code_prefix(f"Complete it.\n\n{header}") == f"```python\n{header}"
    letters = {8: " the", 2: "the", 9: "a", 5: "b"}
    values, clusters = format_shares([planted_text()], lambda ids: letters.get(ids[0], "z"))
    assert values[:2] == [1.0, 0.0] and set(clusters) == {"planted"}


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"blocks": (16, 8)}, "must increase"),
        ({"blocks": (8, 32)}, "exceeds pair.drafter.max_depth 16"),
        ({"max_new_tokens": 40}, "leaves no rejection a continuation"),
        ({"pair": {"drafter": {"kind": "eagle3"}}}, "a chain is 1"),
        ({"pair": {"drafter": {"kind": "hybrid"}}}, "needs draft passes"),
        ({"pair": {"drafter": {"kind": "lm", "beam_width": 1}}}, "is never rejected"),
    ],
)
def test_bad_configurations_are_refused(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        RejoinConfig.model_validate(changes)


def test_the_gpu_configuration_names_a_pair() -> None:
    config = load_yaml(CONFIG, RejoinConfig)
    drafter = config.pair.drafter
    assert (config.pair.target, drafter.source) == ("Qwen/Qwen3-4B", "Qwen/Qwen3-0.6B")
    assert parse_hub_id(config.pair.target) and config.blocks == (8, 16)
    named = command.configured(command.Arguments(config=str(CONFIG), data=("a.jsonl",), seed=3))
    assert named.pair == config.pair and named.seed == 3
    assert named.prompts[0].source == "a.jsonl"


def test_options_change_the_drafter() -> None:
    config = command.configured(command.Arguments(drafter="lm", layers=15))
    assert (config.pair.drafter.kind, config.pair.drafter.layers) == ("lm", 15)
    with pytest.raises(ConfigurationError, match="is never rejected"):
        command.configured(command.Arguments(drafter="lm"))


class Letters:
    """A tokenizer: a letter is a token."""

    chat_template = None

    def __call__(self, text: str, **options: Any) -> dict[str, list[int]]:
        return {"input_ids": [2 + ord(letter) % 62 for letter in text[:20]]}

    def decode(self, tokens: list[int], **options: Any) -> str:
        return "".join(chr(64 + token) for token in tokens)


def test_the_command_goes_on_after_a_kill_and_refuses_other_logs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    pair = chain_pair()
    pair.tokenizer = Letters()
    monkeypatch.setattr(command, "load_pair", lambda config: pair)
    monkeypatch.setattr(collect, "COST_CYCLES", 2)
    text = "pair: {drafter: {kind: eagle3, beam_width: 1, max_depth: 8, max_size: 8}}\n"
    text += "blocks: [3, 6]\njudged: 4\nchoosing: 4\ncode: 2\nreasoning: 2\nslack_tokens: 4\n"
    text += "max_new_tokens: 48\nreasoning_tokens: 40\nwrong_draws: 1\n"
    (tmp_path / "study.yaml").write_text(text)
    argv = ["rejoin", "--config", str(tmp_path / "study.yaml"), "--output", str(tmp_path)]
    argv.append("--no-live")
    assert command.main(argv) == 0
    folder = tmp_path / "rejoin"
    line = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert line["schema"] == "draftgym.study.rejoin/1" and line["ok"]
    measured = line["measured"]
    assert set(measured["value"]) == {"block 3", "block 6"}
    assert set(measured["format"]) == {"judging", "reasoning", "code", "code with prefix"}
    assert all(Path(name).read_bytes()[:4] == b"\x89PNG" for name in measured["figures"])
    (folder / "log" / "003.json").unlink()
    assert command.main(argv) == 0
    captured = capsys.readouterr()
    assert "going on after 23 of 24 texts" in captured.err
    again = json.loads(captured.out.splitlines()[-1])["measured"]
    assert again["survival"] == measured["survival"] and again["value"] == measured["value"]
    (folder / "log" / "003.json").write_text("{")
    with pytest.raises(DraftGymError, match=r"003\.json: damaged"):
        command.main(argv)
    # The log of another text is none of this one's.
    (folder / "log" / "003.json").write_bytes((folder / "log" / "004.json").read_bytes())
    assert command.main(argv) == 0
    captured = capsys.readouterr()
    assert "going on after 23 of 24 texts" in captured.err
    assert json.loads(captured.out.splitlines()[-1])["measured"]["survival"] == again["survival"]
    with pytest.raises(DraftGymError, match=r"holds another study \(plan\.config\.seed"):
        command.main([*argv, "--seed", "5"])
    (folder / command.PLAN).write_text("")
    with pytest.raises(DraftGymError, match=r"plan\.json: damaged"):
        command.main(argv)


def test_changed_prompts_are_logged_anew(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    pair = chain_pair()
    pair.tokenizer = Letters()
    monkeypatch.setattr(command, "load_pair", lambda config: pair)
    monkeypatch.setattr(collect, "COST_CYCLES", 2)
    file = tmp_path / "prompts.jsonl"
    text = "pair: {drafter: {kind: eagle3, beam_width: 1, max_depth: 8, max_size: 8}}\n"
    text += "blocks: [3]\njudged: 3\nchoosing: 3\ncode: 0\nreasoning: 0\nslack_tokens: 4\n"
    text += "max_new_tokens: 40\nwrong_draws: 1\nlive: 0\n"
    (tmp_path / "study.yaml").write_text(text)
    argv = ["rejoin", "--config", str(tmp_path / "study.yaml"), "--output", str(tmp_path)]
    argv += ["--no-live", "--data", str(file)]

    with pytest.raises(DraftGymError, match=r"prompts\.jsonl"):
        command.main(argv)
    assert not (tmp_path / "rejoin" / command.PLAN).exists(), "claimed without prompts"
    for words in ("abc", "xyz"):
        rows = [{"id": f"p{i}", "domain": "toy", "turns": [f"{i}{words}{i}"]} for i in range(30)]
        file.write_text("".join(json.dumps(row) + "\n" for row in rows))
        assert command.main(argv) == 0
        assert "going on after" not in capsys.readouterr().err
    assert command.main(argv) == 0
    assert "going on after 6 of 6 texts" in capsys.readouterr().err


def test_chance_needs_two_requests(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    pair = chain_pair()
    pair.tokenizer = Letters()
    monkeypatch.setattr(command, "load_pair", lambda config: pair)
    argv = ["rejoin", "--output", str(tmp_path), "--no-live", "--prompts", "2"]
    everything = collect.load_prompts

    def one_request(*arguments: Any) -> Any:
        found = everything(*arguments)
        return [replace(prompt, request_id="same") for prompt in found]

    monkeypatch.setattr(collect, "load_prompts", one_request)
    with pytest.raises(ConfigurationError, match="all of one request"):
        command.main(argv)

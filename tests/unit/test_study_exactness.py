"""Exactness: laws against exact arithmetic and enumeration, trials, and a tiny pair."""

from __future__ import annotations

import json
from fractions import Fraction
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from draftgym.benchmark.runner import Request
from draftgym.clock import FakeClock
from draftgym.commands.studies import exactness as command
from draftgym.commands.study import main as study
from draftgym.decoder.config import SamplingConfig
from draftgym.decoder.rules.chain import ChainRejectionRule
from draftgym.decoder.sampling.noise import gumbel
from draftgym.decoder.tree import Selection
from draftgym.errors import ConfigurationError
from draftgym.studies.exactness import laws, trials
from draftgym.studies.exactness.chi_square import of_many_laws, of_one_law
from draftgym.studies.exactness.pair import RULES, Cell, measure_cell
from draftgym.studies.exactness.trials import NARROW_Q, P, Q, known_values, run_trials
from draftgym.studies.exactness.witness import CELLS, RANKS, cells, restart
from tests.tiny import tiny_model, tiny_pair

EXACT_P = (Fraction(5, 10), Fraction(3, 10), Fraction(2, 10))
EXACT_Q = (Fraction(2, 10), Fraction(5, 10), Fraction(3, 10))


def enumerated(p: laws.Law, q: laws.Law, replacement: laws.Law) -> list[Fraction]:
    """The emitted law by walking over every proposal and replacement."""
    out = [Fraction(0)] * len(p)
    for drawn, other in product(range(len(p)), repeat=2):
        kept = min(Fraction(1), p[drawn] / q[drawn]) if q[drawn] else Fraction(0)
        path = q[drawn] * replacement[other]
        out[drawn] += path * kept
        out[other] += path * (1 - kept)
    return out


def test_laws_by_hand_in_exact_arithmetic() -> None:
    assert laws.corrected(EXACT_P, EXACT_Q) == EXACT_P
    assert laws.restarted(EXACT_P, EXACT_Q) == (
        Fraction(35, 100), Fraction(39, 100), Fraction(26, 100),
    )  # fmt: skip
    assert laws.total_variation(laws.restarted(EXACT_P, EXACT_Q), EXACT_P) == Fraction(15, 100)
    assert laws.acceptance((Fraction(4, 5), Fraction(1, 5)), (Fraction(2, 5), Fraction(3, 5))) == (
        Fraction(3, 5)
    )
    late = laws.masked_too_late(EXACT_P, EXACT_Q, (True, True, False))
    assert late == (Fraction(7, 10), Fraction(3, 10), 0)
    assert laws.masked(EXACT_P, (True, True, False)) == (Fraction(5, 8), Fraction(3, 8), 0)


def test_laws_are_what_enumeration_gives() -> None:
    assert enumerated(EXACT_P, EXACT_Q, laws.residual(EXACT_P, EXACT_Q)) == list(EXACT_P)
    assert enumerated(EXACT_P, EXACT_Q, EXACT_P) == list(laws.restarted(EXACT_P, EXACT_Q))


def test_float64_laws_are_within_rounding_of_exact_ones() -> None:
    for got, want in (
        (laws.corrected(P, Q), laws.corrected(EXACT_P, EXACT_Q)),
        (laws.restarted(P, Q), laws.restarted(EXACT_P, EXACT_Q)),
        (laws.masked_too_late(P, Q, trials.ALLOWED),
         laws.masked_too_late(EXACT_P, EXACT_Q, trials.ALLOWED)),
    ):  # fmt: skip
        assert max(abs(Fraction(a) - b) for a, b in zip(got, want, strict=True)) <= 1e-12
    assert 0 < laws.worst_rounding(20, 30, 1) <= 1e-12


def test_a_mask_that_leaves_no_residual_is_refused() -> None:
    with pytest.raises(ValueError, match="nothing is left"):
        laws.masked_too_late(EXACT_P, EXACT_Q, (False, True, True))


@pytest.mark.parametrize(
    ("p", "q"), [(P, Q), (P, NARROW_Q), (P, P), ((0.9, 0.05, 0.03, 0.02), (0.1, 0.2, 0.3, 0.4))]
)
def test_coupled_match_is_how_often_the_argmaxes_agree(p: laws.Law, q: laws.Law) -> None:
    draws = 100_000
    noise = gumbel(7, 0, torch.arange(draws), vocab=len(p))
    one, other = (
        (torch.tensor(law, dtype=torch.float64).log() + noise).argmax(-1) for law in (p, q)
    )
    match = laws.coupled_match(p, q)
    error = (match * (1 - match) / draws) ** 0.5
    assert float((one == other).double().mean()) == pytest.approx(match, abs=4 * error + 1e-9)
    assert match <= laws.acceptance(p, q) + 1e-12


@pytest.fixture(scope="module")
def known() -> dict[str, Any]:
    return {value.name: value for value in known_values()}


def test_all_known_values_come_out(known: dict[str, Any]) -> None:
    assert [name for name, value in known.items() if not value.ok] == []
    assert trials.TRIALS == 200_000 and trials.SEED == 20260923


def test_known_values_tell_the_mistakes_from_the_right_way(known: dict[str, Any]) -> None:
    """Counted laws are far enough apart that one could not pass for another."""
    for token in "ab":
        for wrong, right in (("restarted", "corrected"), ("masked too late", "masked before")):
            mistaken, value = (known[f"{name}({token}), counted"] for name in (wrong, right))
            assert abs(mistaken.got - value.expected) > 2 * value.within


def test_p_equal_to_q_never_reads_the_residual() -> None:
    found = run_trials(P, P, 20_000)
    assert found.kept.all()


def test_what_is_never_drafted_comes_from_the_residual_alone() -> None:
    found = run_trials(P, NARROW_Q, 20_000)
    assert not (found.drawn == 2).any()
    assert (found.spare[~found.kept] == 2).any()


def test_trials_decide_as_the_rule_of_the_session() -> None:
    """The same noise at the same place gives the same proposal, acceptance and token."""
    count = 200
    found = run_trials(P, Q, count, seed=5)
    settings = SamplingConfig(temperature=1.0, seed=5, rule="rejection", proposals="drawn")
    rule = ChainRejectionRule(settings)
    log_p, log_q = (torch.tensor([law]).log() for law in (P, Q))
    for k in range(count):
        rule.start(0)
        drawn = rule.draw(rule.rank(log_q, k, None), k, None)
        chosen = Selection(
            torch.cat((torch.zeros(1, dtype=torch.long), drawn)),
            torch.zeros(2, dtype=torch.long),
            torch.arange(2),
            torch.ones(2, 2).tril().bool(),
            1,
        )
        verdict = rule.verify(log_p.expand(2, -1), k - 1, chosen)
        assert drawn == found.drawn[k]
        assert bool(verdict.path) == bool(found.kept[k])
        assert verdict.tokens[0] == (found.drawn if verdict.path else found.spare)[k]


def test_chi_square_by_hand() -> None:
    found = of_one_law(np.array([30.0, 50, 20]), np.array([0.25, 0.5, 0.25]))
    assert (found.statistic, found.freedom, found.draws) == (2.0, 2, 100)
    assert found.p_value == pytest.approx(np.exp(-1))
    pooled = of_one_law(np.array([90.0, 4, 6]), np.array([0.92, 0.04, 0.04]))
    assert (pooled.statistic, pooled.freedom) == (pytest.approx(4 / 92 + 4 / 8), 1)
    assert of_one_law(np.array([9.0, 1]), np.array([1.0, 0])).p_value == 0
    assert of_one_law(np.array([9.0, 0]), np.array([1.0, 0])).p_value == 1


def test_many_laws_that_are_one_give_pearsons_statistic() -> None:
    law = np.array([0.2, 0.3, 0.5])
    observed = np.eye(3)[[0] * 30 + [1] * 30 + [2] * 40]
    found = of_many_laws(observed, np.tile(law, (100, 1)))
    wanted = of_one_law(observed.sum(0), law)
    assert found.statistic == pytest.approx(wanted.statistic)
    assert (found.freedom, found.draws) == (wanted.freedom, 100)


def test_many_laws_reject_as_often_as_promised_and_see_a_wrong_law() -> None:
    generator = np.random.default_rng(3)
    values, wrong = [], []
    for _ in range(200):
        pi = generator.dirichlet(np.ones(4), 150)
        drawn = (generator.random((150, 1)) > pi.cumsum(1)).sum(1)
        values.append(of_many_laws(np.eye(4)[drawn], pi).p_value)
        drawn = np.where(generator.random(150) < 0.3, 0, drawn)
        wrong.append(of_many_laws(np.eye(4)[drawn], pi).p_value)
    assert 0.005 <= np.mean(np.array(values) < 0.05) <= 0.12
    assert np.mean(np.array(wrong) < 0.05) > 0.9


def test_cells_are_a_law_that_holds_every_token() -> None:
    torch.manual_seed(0)
    log_p, log_q = (torch.randn(1, 40).mul(2).log_softmax(-1) for _ in range(2))
    log_q[0, :5] = -torch.inf
    law, cell_of = cells(log_p, log_q > log_p)
    by_token = torch.zeros(CELLS, dtype=torch.float64)
    order = log_p[0].argsort(descending=True)
    for token in range(40):
        cell = int(cell_of(torch.tensor([token])))
        rank = int((order == token).nonzero()) + 1
        assert cell // 2 == sum(rank > end for end in RANKS)
        assert cell % 2 == bool(log_q[0, token] > log_p[0, token])
        by_token[cell] += log_p[0, token].double().exp()
    assert torch.allclose(law[0], by_token / by_token.sum(), atol=1e-6)


def test_where_a_restart_errs_and_by_how_much() -> None:
    favoured, distance = restart(*(torch.tensor([law]).log() for law in (P, Q)))
    assert favoured.tolist() == [[False, True, True]]
    assert distance.tolist() == pytest.approx([0.15], abs=1e-6)
    assert restart(*[torch.tensor([P]).log()] * 2)[1].tolist() == pytest.approx([0], abs=1e-6)


REQUESTS = [Request(str(i), "test", (3, 5, 7 + i), i) for i in range(6)]
CLUSTERS = {"0": "a", "1": "a", "2": "b", "3": "c", "4": "d", "5": "e"}


def tiny_cell(rule: str, **changes: Any) -> Cell:
    sampling = SamplingConfig(temperature=1.2, seed=11, **RULES[rule])
    pair = tiny_pair(
        4, beam_width=1, max_depth=2, eos=frozenset(), model=tiny_model(4, vocab=16),
        sampling=sampling,
    )  # fmt: skip
    settings = {"depth": 2, "repeats": 150, "moments": 2, "clock": FakeClock(), **changes}
    return measure_cell(pair, rule, sampling, REQUESTS, CLUSTERS, 60, **settings)


@pytest.mark.parametrize("rule", RULES)
def test_a_pair_does_what_theory_says(rule: str) -> None:
    cell = tiny_cell(rule)
    assert abs(cell.deviation) < 4
    assert min(cell.text.p_value, cell.repeated.p_value) > 1e-4
    assert cell.text.draws == sum(cell.positions) > 200
    assert cell.repeated.draws == 300
    assert (cell.restarted is None) == (rule != "chain_rejection")
    assert cell.over_computed.low < 1 < cell.over_computed.high or abs(cell.deviation) > 1
    share = cell.measured_share
    assert 0 < share.low < share.estimate < share.high < 1


def test_the_study_sees_a_rule_that_resamples(monkeypatch: pytest.MonkeyPatch) -> None:
    from draftgym.decoder.rules import chain

    monkeypatch.setattr(chain, "residual", lambda p, q: p)
    cell = tiny_cell("chain_rejection", repeats=600, moments=6)
    assert min(cell.text.p_value, cell.repeated.p_value) < 1e-3


def arguments(folder: Path) -> list[str]:
    return ["exactness", "--prompts", "0", "--trials", "2000", "--output", str(folder)]


def test_command_without_the_pair(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert study(arguments(tmp_path)) == 0
    line = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert line["schema"] == "draftgym.study.exactness/1"
    assert line["ok"] is True and line["measured"]["cells"] == []
    folder = tmp_path / "exactness-laws"
    assert json.loads((folder / "result.json").read_text()) == line
    assert not (tmp_path / "exactness").exists(), "what was measured on the pair stays"
    assert (folder / "laws.png").read_bytes().startswith(b"\x89PNG")


def test_command_fails_when_the_acceptance_code_is_wrong(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    from draftgym.decoder.rules import chain

    monkeypatch.setattr(chain, "residual", lambda p, q: p)
    assert study(arguments(tmp_path)) == 1
    missed = json.loads(capsys.readouterr().out.splitlines()[-1])["missed"]
    assert "corrected(a), counted" in missed and "corrected(a)" not in missed


def test_command_on_a_pair_goes_on_after_a_kill(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    pair = tiny_pair(1, beam_width=1, max_depth=2, eos=frozenset())
    monkeypatch.setattr(command, "load_pair", lambda config: pair)
    monkeypatch.setattr(command, "encode", lambda prompts, encoder: [
        Request(prompt.id, prompt.domain, (3, 5, 7), i) for i, prompt in enumerate(prompts)
    ])  # fmt: skip
    options = [
        *("exactness", "--prompts", "3", "--tokens", "12", "--temperatures", "1.0"),
        *("--repeats", "5", "--moments", "1", "--trials", "2000", "--output", str(tmp_path)),
    ]
    cells, measure = tmp_path / "exactness" / "cells", command.measure_cell
    asked: list[str] = []

    def killed(pair: Any, rule: str, *rest: Any, **settings: Any) -> Cell:
        asked.append(rule)
        if len(asked) == 2:
            raise KeyboardInterrupt
        return measure(pair, rule, *rest, **settings)

    monkeypatch.setattr(command, "measure_cell", killed)
    with pytest.raises(KeyboardInterrupt):
        study(options)
    assert [file.name for file in cells.iterdir()] == ["chain_rejection-1.json"]
    assert study(options) == 0
    assert asked == ["chain_rejection", "rejection", "rejection", "coupled"]
    assert not cells.exists()
    line = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert [cell["rule"] for cell in line["measured"]["cells"]] == list(RULES)
    assert line["measured"]["tests"]["text"]["count"] == 3
    assert (tmp_path / "exactness" / "pair.png").read_bytes().startswith(b"\x89PNG")


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--prompts", "1"], "--prompts: must be 0, or at least 2"),
        (["--tokens", "2"], "--tokens"),
        (["--trials", "10"], "--trials"),
        (["--temperatures", "0"], "--temperatures"),
        (["--temperatures", "1", "1"], "--temperatures: must differ"),
        (["--temperatures", "1", "1.0000001"], "--temperatures: must differ"),
        (["--temperatures", "nan"], "--temperatures: must be at least"),
    ],
)
def test_bad_arguments_are_refused(options: list[str], message: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match=message):
        command.main(["exactness", *options, "--output", str(tmp_path)])

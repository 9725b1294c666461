"""First-level acceptance: closed forms against draws, and against the real rules."""

from __future__ import annotations

import json
from typing import Any

import pytest
import torch

from draftgym.benchmark import acceptance
from draftgym.benchmark.acceptance import (
    WIDTHS,
    AcceptanceResult,
    compare,
    coupled_match,
    measure,
    optimum,
    summarise,
    top_mass,
)
from draftgym.benchmark.runner import Request
from draftgym.benchmark.statistics import StatisticsError
from draftgym.clock import FakeClock
from draftgym.commands import acceptance as command
from draftgym.decoder.config import SamplingConfig
from draftgym.decoder.controllers import FixedController
from draftgym.decoder.session import DecoderSession
from tests.tiny import tiny_model, tiny_pair

REQUESTS = [Request(f"p{i}", "test", (3, 5, 7 + i)) for i in range(4)]


def log_laws(*rows: tuple[float, ...]) -> torch.Tensor:
    return torch.tensor(rows, dtype=torch.float64).log()


def test_closed_forms_by_hand() -> None:
    p, q = log_laws((0.4, 0.6), (0.5, 0.5)), log_laws((0.6, 0.4), (0.5, 0.5))
    assert optimum(p, q).tolist() == pytest.approx([0.8, 1.0])
    assert top_mass(p, q, 1).tolist() == pytest.approx([0.4, 0.5])
    assert top_mass(p, q, 4).tolist() == pytest.approx([1.0, 1.0])
    # By the sum over pairs: 1 / (1 + max(1.5, 2/3)) for each of the two tokens.
    assert coupled_match(p, q).tolist() == pytest.approx([0.8, 1.0])


def test_coupled_match_is_the_sum_over_pairs() -> None:
    torch.manual_seed(0)
    p, q = (torch.randn(5, 12).mul(2).log_softmax(-1) for _ in range(2))
    p[0, 3], q[1, 4], p[2, 5], q[2, 5] = (-torch.inf,) * 4
    p, q = p.log_softmax(-1), q.log_softmax(-1)
    p_, q_ = p.double().exp(), q.double().exp()
    ratios = torch.maximum(p_[:, None, :] / p_[:, :, None], q_[:, None, :] / q_[:, :, None])
    wanted = (1 / ratios.nan_to_num(nan=torch.inf).sum(-1)).sum(-1)
    assert torch.allclose(coupled_match(p, q), wanted, atol=1e-6)
    total_variation = 1 - optimum(p, q)
    assert (coupled_match(p, q) <= optimum(p, q) + 1e-9).all()
    assert (coupled_match(p, q) >= (1 - total_variation) / (1 + total_variation) - 1e-9).all()


def test_what_the_drafter_rules_out_is_not_proposed() -> None:
    p, q = log_laws((0.2, 0.3, 0.5)), log_laws((0.0, 1.0, 0.0))
    assert top_mass(p, q, 3).tolist() == pytest.approx([0.3])
    found = compare(7, p, q, 0, 0, 400)
    assert found["coupled_tree_w4_realised"] == pytest.approx(0.3, abs=0.09)


def test_draws_agree_with_closed_forms() -> None:
    torch.manual_seed(1)
    p, q = (torch.randn(1, 16).mul(1.5).log_softmax(-1) for _ in range(2))
    found = compare(3, p, q, 0, 0, 600)
    assert found["rejection_chain_realised"] == pytest.approx(found["optimum"], abs=0.08)
    assert found["coupled_tree_w1_realised"] == pytest.approx(found["coupled_chain"], abs=0.08)
    trees = [found[f"coupled_tree_w{width}_realised"] for width in WIDTHS]
    assert trees == sorted(trees)


@pytest.fixture(scope="module")
def measured() -> AcceptanceResult:
    pair = tiny_pair(4, eos=frozenset(), model=tiny_model(4, vocab=16))
    sampling = SamplingConfig(temperature=1.0, seed=1)
    return measure(pair, "eagle3", sampling, REQUESTS, 100, draws=2, clock=FakeClock())


@pytest.mark.parametrize(
    ("rule", "proposals", "width", "name"),
    [
        ("rejection", "drawn", 1, "rejection_chain"),
        ("rejection", "best", 2, "rejection_tree_w2"),
        ("coupled", "best", 1, "coupled_chain"),
        ("coupled", "best", 2, "coupled_tree_w2_realised"),
    ],
)
def test_predicts_what_the_session_accepts(
    measured: AcceptanceResult, rule: Any, proposals: Any, width: int, name: str
) -> None:
    """Rounds of one pass accept as often as is measured beside plainly sampled text."""
    drafted = tiny_pair(
        4, beam_width=width, eos=frozenset(), model=tiny_model(4, vocab=16),
        sampling=SamplingConfig(temperature=1.0, seed=2, rule=rule, proposals=proposals),
    )  # fmt: skip
    session = DecoderSession(drafted, drafted.new_drafter(), clock=FakeClock())
    records = []
    for sequence, request in enumerate(REQUESTS):
        session.start(request.tokens, 120, sequence)
        records += [r for r in session.run(FixedController(1, width)) if r.depth == 1]
    accepted = sum(record.accepted for record in records) / len(records)
    # Four standard errors of each side; positions are nearly independent.
    share = measured.methods[name].estimate
    errors = 0.25 / len(records) + 0.25 / measured.positions
    assert accepted == pytest.approx(share, abs=4 * errors**0.5)


def test_measure_counts_positions_and_stops_at_the_end() -> None:
    pair = tiny_pair(1, eos=frozenset())
    sampling = SamplingConfig(temperature=1.0, seed=1)
    result = measure(pair, "eagle3", sampling, REQUESTS[:3], 5, draws=2, clock=FakeClock())
    assert result.positions == 15
    assert set(result.over_optimum) == set(result.methods) - {acceptance.OPTIMUM}
    assert result.over_optimum["rejection_chain"].estimate == pytest.approx(1)
    for share in result.methods.values():
        assert 0 <= share.low <= share.estimate <= share.high <= 1
    with pytest.raises(StatisticsError, match="no prompts"):
        summarise([], [])


def test_the_target_as_its_own_drafter_is_always_kept() -> None:
    pair = tiny_pair(1, "lm", eos=frozenset())
    sampling = SamplingConfig(temperature=1.3, seed=1, top_p=0.9)
    result = measure(pair, "lm", sampling, REQUESTS[:2], 6, draws=2, clock=FakeClock())
    for name in ("optimum", "rejection_chain_realised", "coupled_chain"):
        assert result.methods[name].estimate == pytest.approx(1, abs=1e-4)


def test_result_line(capsys: pytest.CaptureFixture[str]) -> None:
    pair = tiny_pair(1, eos=frozenset())
    sampling = SamplingConfig(temperature=1.0)
    result = measure(pair, "eagle3", sampling, REQUESTS[:2], 3, draws=1, clock=FakeClock())
    command.report(result, command.Arguments(), {"command": "test"})
    line = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert line["schema"] == "draftgym.acceptance/1"
    assert line["positions"] == 6
    assert set(line["methods"]["coupled_chain"]) == {
        "share", "interval", "over_optimum", "over_optimum_interval",
    }  # fmt: skip
    assert set(line["methods"]["optimum"]) == {"share", "interval"}


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--prompts", "1"], "--prompts: must be at least 2"),
        (["--tokens", "0"], "--tokens"),
        (["--draws", "0"], "--draws"),
        (["--temperature", "0"], "--temperature"),
    ],
)
def test_bad_arguments_are_refused(arguments: list[str], message: str) -> None:
    from draftgym.errors import ConfigurationError

    with pytest.raises(ConfigurationError, match=message):
        command.main(arguments)

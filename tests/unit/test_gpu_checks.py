"""The code of the CUDA checks, run on a CPU: they work, and they notice what they look for."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from draftgym.decoder.drafters import growth
from tests.gpu import checks
from tests.gpu.__main__ import CHECKS, main
from tests.gpu.latency import latency
from tests.gpu.pairs import LLAMA31_8B, QWEN3_4B, Shapes
from tests.gpu.synchronisation import SynchronisationError, counted, forbidden

CPU = torch.device("cpu")
SMALL = {
    "vocab_size": 128,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 16,
}


def small(shapes: Shapes) -> Shapes:
    """The same pair with few and narrow layers."""
    draft: dict[str, Any] = {**SMALL, "num_hidden_layers": 1}
    if shapes.drafter == "eagle3":
        draft = {key: SMALL[key] for key in shapes.draft if key in SMALL}
        draft |= {"draft_vocab_size": 100, "feature_layers": (0, 1, 2)}
    return replace(
        shapes,
        target={**shapes.target, **SMALL, "num_hidden_layers": 3},
        draft={**shapes.draft, **draft},
    )


@pytest.mark.parametrize("name", [name for name in CHECKS if name != "clocks"])
def test_checks_pass_on_a_cpu(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(checks, "TOKENS", 24)
    monkeypatch.setattr(checks, "PROMPTS", checks.PROMPTS[:2])
    assert CHECKS[name](CPU)


def test_clock_check_runs_on_a_cpu() -> None:
    assert checks.clocks(CPU, size=512, slack_seconds=1.0)["event_seconds"] > 0


@pytest.mark.parametrize("shapes", [QWEN3_4B, LLAMA31_8B], ids=lambda shapes: shapes.name)
def test_latency_runs_in_small_shapes(shapes: Shapes) -> None:
    report = latency(small(shapes), CPU, torch.float32, rounds=2, prompt_tokens=40)
    assert [cell["depth"] for cell in report["cells"]] == [1, 4, 8]
    assert all(cell["verify_ms"] > 0 for cell in report["cells"])
    assert "latency only" in report["label"]


def test_true_shapes_have_their_published_sizes() -> None:
    """Parameters by hand: embedding, layers and, where it is not tied, the output layer."""
    for shapes, billions in ((QWEN3_4B, 4.02), (LLAMA31_8B, 8.03)):
        fields = shapes.target
        heads = fields["num_attention_heads"] + 2 * fields["num_key_value_heads"]
        dim = fields.get("head_dim") or fields["hidden_size"] // fields["num_attention_heads"]
        attention = (heads + fields["num_attention_heads"]) * dim * fields["hidden_size"]
        feed_forward = 3 * fields["hidden_size"] * fields["intermediate_size"]
        embeddings = 1 if fields["tie_word_embeddings"] else 2
        total = fields["num_hidden_layers"] * (attention + feed_forward)
        total += embeddings * fields["vocab_size"] * fields["hidden_size"]
        assert total / 1e9 == pytest.approx(billions, abs=0.01)


@pytest.mark.parametrize(
    "waits",
    [
        lambda x: x.sum().item(),
        lambda x: x[x > 1],
        lambda x: x.nonzero(),
        lambda x: torch.tensor([1, 2], device=x.device),
    ],
)
def test_waiting_is_noticed(waits: Any) -> None:
    with pytest.raises(SynchronisationError, match="wait"), forbidden(CPU):
        waits(torch.arange(4))
    with counted(CPU) as count:
        torch.arange(4).sum().item()
    assert count.value == 1


def test_a_read_inside_a_draft_pass_fails_the_check(monkeypatch: pytest.MonkeyPatch) -> None:
    grow = growth.grow

    def reading(tree: Any, log_probs: torch.Tensor, *rest: Any) -> torch.Tensor:
        log_probs.max().item()
        return grow(tree, log_probs, *rest)

    monkeypatch.setattr(growth, "grow", reading)
    with pytest.raises(SynchronisationError):
        checks.synchronisations(CPU)


def test_the_script_writes_its_result(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def broken(device: torch.device) -> dict[str, Any]:
        raise AssertionError("on purpose")

    monkeypatch.setattr("tests.gpu.__main__.CHECKS", {"ties": checks.ties})
    output = tmp_path / "gpu.json"
    arguments = ["--device", "cpu", "--output", str(output), "--no-latency"]
    assert main(arguments) == 0
    assert '"ok": true' in output.read_text()
    monkeypatch.setattr("tests.gpu.__main__.CHECKS", {"broken": broken, "ties": checks.ties})
    assert main(arguments) == 1
    assert "on purpose" in output.read_text()
    assert "draftgym.gpu/1" in capsys.readouterr().out.splitlines()[-1]

"""Damaged, foreign or missing files: one message that names them, and nothing accepted."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast

from draftgym.__main__ import main
from draftgym.benchmark.samples import SampleStore
from draftgym.commands import generate
from draftgym.commands.train import train
from draftgym.configuration import load_yaml, read_yaml
from draftgym.decoder.config import DrafterConfig, PairConfig, SamplingConfig
from draftgym.decoder.loading import load_model
from draftgym.decoder.model_cache import MANIFEST, _is_whole
from draftgym.decoder.pair import load_pair
from draftgym.decoder.sources import expanded
from draftgym.errors import ConfigurationError, DraftGymError, SourceError
from draftgym.features import FeatureLayout
from draftgym.locking import exclusive
from draftgym.runtime import PolicyError, read_policy
from policies.config import TrainConfig
from policies.logging import MetricsLog, NullTracker
from tests.tiny import VOCAB, tiny_model

CPU = torch.device("cpu")


@pytest.fixture
def target(tmp_path: Path) -> Path:
    """A whole model folder."""
    folder = tmp_path / "target"
    tiny_model(3).save_pretrained(folder)
    words = {f"w{number}": number for number in range(VOCAB)}
    tokenizer = Tokenizer(models.WordLevel(words, "w0"))
    tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    PreTrainedTokenizerFast(tokenizer_object=tokenizer).save_pretrained(folder)
    return folder


def load(folder: Path) -> Any:
    return load_model(str(folder), CPU, torch.float32, 64)


def test_a_whole_folder_loads(target: Path) -> None:
    assert load(target).model.vocab_size == VOCAB


def rewrite(file: Path, **changes: Any) -> None:
    file.write_text(json.dumps(json.loads(file.read_text()) | changes))


def poison(target: Path) -> None:
    state = load_file(target / "model.safetensors")
    state["model.layers.1.mlp.up_proj.weight"][3, 4] = torch.nan
    save_file(state, target / "model.safetensors", metadata={"format": "pt"})


def halve(target: Path) -> None:
    file = target / "model.safetensors"
    file.write_bytes(file.read_bytes()[: file.stat().st_size // 2])


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (
            lambda t: rewrite(t / "config.json", num_hidden_layers=3),
            r"weights missing: .*layers\.2",
        ),
        (poison, r"model\.layers\.1\.mlp\.up_proj\.weight holds NaN"),
        (halve, "cannot be read: "),
        (lambda t: (t / "config.json").write_text("{"), "cannot be read: "),
        (lambda t: (t / "tokenizer.json").write_text("{}"), "cannot be read: "),
        (lambda t: (t / "generation_config.json").write_text("{"), "cannot be read: JSONDecode"),
    ],
    ids=["missing layer", "NaN", "half", "config", "tokenizer", "generation"],
)
def test_row_57_a_damaged_model_folder_is_refused(
    target: Path, damage: Callable[[Path], Any], message: str
) -> None:
    damage(target)
    with pytest.raises(SourceError, match=message) as caught:
        load(target)
    assert str(target) in str(caught.value)


def test_stop_ids_must_be_integers(target: Path) -> None:
    rewrite(target / "generation_config.json", eos_token_id="x")
    drafter = DrafterConfig(kind="ngram")
    with pytest.raises((ConfigurationError, SourceError), match=r"eos_token_id|cannot be read"):
        load_pair(PairConfig(target=str(target), drafter=drafter, device="cpu"))


def test_unknown_users_home_is_no_model() -> None:
    with pytest.raises(SourceError, match="~nobody-of-that-name"):
        expanded("~nobody-of-that-name/model")


def test_a_conversion_with_a_damaged_manifest_is_made_again(tmp_path: Path) -> None:
    (tmp_path / "model.safetensors").write_bytes(b"1234")
    for text in ("", "[]", '{"bytes": null}', '{"bytes": {}}', '{"bytes": 3}'):
        (tmp_path / MANIFEST).write_text(text)
        assert not _is_whole(tmp_path)
    (tmp_path / MANIFEST).write_text('{"bytes": {"model.safetensors": 4}}')
    assert _is_whole(tmp_path)


def test_one_process_at_a_time(tmp_path: Path) -> None:
    folder = tmp_path / "run"
    with (
        exclusive(folder),
        pytest.raises(DraftGymError, match="another process"),
        exclusive(folder),
    ):
        pytest.fail("both hold it")
    with exclusive(folder):
        assert folder.is_dir()


def test_metrics_of_an_unfinished_rollout_are_written_once(tmp_path: Path) -> None:
    path = tmp_path / "metrics.jsonl"
    log = MetricsLog(path, NullTracker())
    for step in (1, 2, 3):
        log.log("rollout", step, {})
    kept = 2
    resumed = MetricsLog(path, NullTracker())
    assert resumed.rows == 3
    resumed.rewind(kept)
    resumed.log("rollout", 3, {"again": 1})
    resumed.close()
    log.close()
    rows = [json.loads(line) for line in path.read_text().splitlines()]
    assert [row["step"] for row in rows] == [1, 2, 3]
    assert rows[2]["again"] == 1


@pytest.mark.parametrize("text", ['{"a": 1}', '{"key": "k", "phase": "test", "method": "m"}'])
def test_foreign_samples_name_their_line(tmp_path: Path, text: str) -> None:
    file = tmp_path / "samples.jsonl"
    file.write_text('{"torn": \n' + text + "\n")
    with pytest.raises(ConfigurationError, match=r"samples\.jsonl, line 2"):
        SampleStore(file, "k").load("test", ["m"])


@pytest.mark.parametrize(
    "change",
    [{"beam_width": 10**30}, {"history": 1e308}, {"max_depth": 2.5}, {"size_grid": (0, 10**9)}],
)
def test_shapes_of_a_downloaded_layout_are_bounded(change: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=next(iter(change))):
        FeatureLayout(**change)


def test_deeply_nested_yaml_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "deep.yaml"
    file.write_text("a: " + "[" * 3000)
    with pytest.raises(ConfigurationError, match=r"deep\.yaml: (nested|not valid)"):
        read_yaml(file)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: DrafterConfig(kind="ngram", layers=3), "layers"),
        (lambda: DrafterConfig(kind="none", source="x"), "source"),
        (lambda: SamplingConfig(top_k=5), "temperature 0"),
        (lambda: SamplingConfig(temperature=1e300), "temperature"),
        (lambda: SamplingConfig(temperature=0.5, rule="greedy"), "greedy"),
        (lambda: SamplingConfig(temperature=0.5, proposals="drawn"), "rejection"),
    ],
)
def test_settings_without_effect_are_refused(make: Callable[[], Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        make()


@pytest.mark.parametrize(
    ("argv", "message"),
    [
        (["hi", "--policy", "nowhere", "--depth", "1"], "the policy decides"),
        (["hi", "--size", "1000000"], "--size: must be from 0"),
        (["hi", "--temperature", "-1"], "--temperature"),
        (["  "], "prompt is empty"),
        (["\udcff bad"], "not valid UTF-8"),
    ],
)
def test_generate_refuses_before_it_loads(
    argv: list[str], message: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(generate, "load_pair", lambda config: pytest.fail("it loaded a model"))
    with pytest.raises(ConfigurationError, match=message):
        generate.main(argv)


def test_a_folder_that_cannot_be_written_is_one_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "file").write_text("")
    status = main(["train", "--runs", str(tmp_path / "file"), "--run", "x"])
    assert status == 2
    last = capsys.readouterr().err.strip().splitlines()[-1]
    assert last.startswith("error: ") and "file" in last


@pytest.mark.parametrize(
    ("text", "field"),
    [
        ("drafter: {max_depth: true}", r"drafter\.max_depth"),
        ("drafter: {max_depth: '4'}", r"drafter\.max_depth"),
        ("sampling: {temperature: false}", r"sampling\.temperature"),
        ("context_limit_tokens: 12.0", "context_limit_tokens"),
    ],
)
def test_a_value_of_another_type_is_refused(text: str, field: str, tmp_path: Path) -> None:
    file = tmp_path / "pair.yaml"
    file.write_text(text)
    with pytest.raises(ConfigurationError, match=field):
        load_yaml(file, PairConfig)


def test_a_seed_that_changes_nothing_is_said(capsys: pytest.CaptureFixture[str]) -> None:
    for temperature, silent in ((None, False), (0.7, True)):
        arguments = generate.Arguments("hello", temperature=temperature, seed=3)
        sampling = generate._sampled(PairConfig(), arguments).sampling
        assert sampling.seed == 3
        assert ("--seed has no effect" in capsys.readouterr().err) is not silent


def test_a_folder_that_is_no_policy_says_so(tmp_path: Path) -> None:
    (tmp_path / "policy").mkdir()
    with pytest.raises(PolicyError, match=r"is no policy folder$"):
        read_policy(tmp_path)
    (tmp_path / "policy" / "policy.json").write_text("{}")
    with pytest.raises(PolicyError, match=rf"did you mean {tmp_path / 'policy'}\?"):
        read_policy(tmp_path)


@pytest.mark.parametrize(
    ("text", "options", "message"),
    [
        ("device: cuda:7", {}, "device .of the small networks.*cuda:7"),
        ("{}", {"resume": True}, "no run to resume"),
    ],
)
def test_a_refused_training_leaves_no_folder(
    text: str,
    options: dict[str, bool],
    message: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    file = tmp_path / "run.yaml"
    file.write_text(text)
    config = load_yaml(file, TrainConfig)
    with pytest.raises(DraftGymError, match=message):
        train(config, tmp_path / "runs" / "one", **options)
    assert not (tmp_path / "runs").exists()

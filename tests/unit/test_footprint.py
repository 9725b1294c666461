"""Memory estimates: exact parameter counts, and refusal before anything is loaded."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoConfig, AutoModelForCausalLM, LlamaConfig

from draftgym.decoder import footprint as module
from draftgym.decoder.config import DrafterConfig, PairConfig
from draftgym.decoder.drafters.eagle3 import Eagle3Drafter
from draftgym.decoder.footprint import (
    GIB,
    Footprint,
    cache_elements,
    check_memory,
    count_parameters,
    estimate,
    head_bytes,
)
from draftgym.decoder.llama import LlamaTarget, UnsupportedModelError
from draftgym.decoder.memory import free_device_bytes
from draftgym.decoder.pair import load_pair
from draftgym.errors import ConfigurationError
from tests.tiny import tiny_head, tiny_model, tiny_pair

CPU, CUDA = torch.device("cpu"), torch.device("cuda", 0)
SHAPE = {
    "vocab_size": 50,
    "hidden_size": 24,
    "intermediate_size": 40,
    "num_hidden_layers": 3,
    "num_attention_heads": 6,
    "num_key_value_heads": 2,
    "max_position_embeddings": 64,
}


@pytest.mark.parametrize(
    ("kind", "extra"),
    [
        ("llama", {}),
        ("llama", {"tie_word_embeddings": True}),
        ("llama", {"attention_bias": True, "mlp_bias": True, "head_dim": 8}),
        ("mistral", {"sliding_window": None, "head_dim": 8}),
        ("qwen2", {}),
        ("qwen3", {"head_dim": 16}),
        ("qwen3", {"head_dim": 16, "attention_bias": True, "tie_word_embeddings": True}),
    ],
)
def test_parameters_are_counted_exactly(kind: str, extra: dict[str, Any]) -> None:
    config = AutoConfig.for_model(kind, **SHAPE, **extra)
    with torch.device("meta"):
        model = AutoModelForCausalLM.from_config(config)
    assert count_parameters(config).stored == model.num_parameters()


def test_published_sizes() -> None:
    """Llama-3.1-8B has 8.03e9 parameters; its cache takes 128 KiB a token in bfloat16."""
    config = LlamaConfig(
        vocab_size=128256,
        hidden_size=4096,
        intermediate_size=14336,
        num_hidden_layers=32,
        num_attention_heads=32,
        num_key_value_heads=8,
        max_position_embeddings=131072,
    )
    assert count_parameters(config).stored == 8_030_261_248
    assert cache_elements(config, 1) * 2 == 128 * 1024
    found = estimate(PairConfig(context_limit_tokens=4096), config, None, CUDA, torch.bfloat16)
    assert (found.target, found.context_tokens) == (16_060_522_496, 4096)
    assert found.loading < found.target


@pytest.mark.parametrize("drafter", ["eagle3", "hybrid"])
def test_the_estimate_is_what_a_pair_holds(drafter: Any) -> None:
    model = tiny_model(0, context=256)
    pair = tiny_pair(0, drafter, model=model)
    head = pair.head
    assert head is not None
    held = sum(tensor.nbytes for tensor in head.state_dict().values())
    held += head.rope_cos.nbytes + head.rope_sin.nbytes
    found = estimate(pair.config, model.config, head.config, CUDA, torch.float32)
    assert found.drafter == head_bytes(head.config, 4) == held
    cache = pair.target.new_cache(256 + 32 + 1)._block.nbytes
    made = pair.new_drafter("eagle3")
    assert isinstance(made, Eagle3Drafter)
    features = 4 * (256 + 32 + 1) * len(made.feature_layers) * model.config.hidden_size
    assert found.caches == cache + made._cache.nbytes + features
    assert found.target == sum(p.nbytes for p in model.parameters())
    assert LlamaTarget(model).weight_bytes <= found.target


def test_packed_copies_are_counted_on_a_cpu() -> None:
    tied = tiny_model(0, tie_word_embeddings=True).config
    packed = estimate(PairConfig(), tied, None, CPU, torch.float32)
    shared = estimate(PairConfig(), tied, None, CPU, torch.bfloat16)
    assert packed.target == 2 * shared.target + 4 * tied.vocab_size * tied.hidden_size
    assert packed.loading > 2 * shared.loading


def test_a_draft_model_counts_like_a_target() -> None:
    config = tiny_model(0).config
    lm = PairConfig(drafter=DrafterConfig(kind="lm", source="org/model"))
    alone = estimate(PairConfig(), config, None, CUDA, torch.float32)
    both = estimate(lm, config, config, CUDA, torch.float32)
    assert (both.target, both.drafter) == (alone.target, alone.target)
    assert both.caches == 2 * alone.caches
    assert both.loading == alone.loading
    cut = lm.model_copy(update={"drafter": lm.drafter.model_copy(update={"layers": 1})})
    shallow = estimate(cut, config, config, CUDA, torch.float32)
    kept = alone.caches // int(config.num_hidden_layers)
    assert shallow.caches == alone.caches + kept < both.caches
    itself = estimate(lm, config, None, CUDA, torch.float32)
    assert (itself.drafter, itself.caches) == (0, both.caches)


def test_the_estimate_is_printed(capsys: pytest.CaptureFixture[str]) -> None:
    check_memory(Footprint(15 * GIB, GIB, GIB // 2, 11 * GIB, 4096), CUDA, free=100 * GIB)
    printed = capsys.readouterr().err
    assert "target 15.00 + drafter 1.00 + caches 0.50 for 4096 tokens = 16.50 GiB" in printed
    assert "(27.50 while loading); free on cuda:0: 100.00 GiB" in printed
    check_memory(Footprint(GIB, 0, 0, GIB, 8), CPU, free=3 * GIB // 2)
    assert "short of memory" in capsys.readouterr().err


def test_what_cannot_fit_is_refused() -> None:
    big = Footprint(15 * GIB, GIB, 0, 11 * GIB, 4096)
    for device, free in ((CUDA, 20), (CPU, 15)):
        with pytest.raises(ConfigurationError, match=r"needs .* GiB is free.*smaller dtype"):
            check_memory(big, device, free=free * GIB)
    check_memory(big, CPU, free=20 * GIB)


def test_unknown_memory_refuses_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "free_device_bytes", lambda device: None)
    vast = Footprint(1 << 60, 0, 0, 0, 8)
    check_memory(vast, CPU)
    with pytest.raises(ConfigurationError):
        check_memory(vast, CPU, free=1 << 40)  # known and too little: refused


def test_free_bytes_of_devices(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda device: (7, 9))
    assert free_device_bytes(CUDA) == 7
    assert free_device_bytes(CPU) != 7


def model_folder(folder: Path, **changes: Any) -> Path:
    """A folder that passes for a model until its weights are read."""
    tiny_model(0, **changes).config.save_pretrained(folder)
    (folder / "model.safetensors").write_bytes(b"not read")
    (folder / "tokenizer.json").write_text("{}")
    return folder


def test_a_pair_that_cannot_fit_is_refused_before_loading(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "free_device_bytes", lambda device: 1000)
    target = str(model_folder(tmp_path))
    none = PairConfig(target=target, device="cpu", drafter=DrafterConfig(kind="none"))
    with pytest.raises(ConfigurationError, match="does not fit"):
        load_pair(none)


def test_a_bad_head_is_refused_before_loading(tmp_path: Path) -> None:
    target = str(model_folder(tmp_path / "target"))
    head = tmp_path / "head"
    head.mkdir()
    drafter = DrafterConfig(kind="eagle3", source=str(head))
    (head / "config.json").write_text(json.dumps({"hidden_size": 32}))
    (head / "pytorch_model.bin").write_bytes(b"pickle")
    with pytest.raises(ConfigurationError, match=r"drafter\.source: .*pytorch_model\.bin: a pick"):
        load_pair(PairConfig(target=target, device="cpu", drafter=drafter))


def test_a_draft_model_is_checked_before_the_target_is_loaded(tmp_path: Path) -> None:
    target = str(model_folder(tmp_path / "target"))
    drafter = model_folder(tmp_path / "drafter")
    described = json.loads((drafter / "config.json").read_text())
    (drafter / "config.json").write_text(json.dumps(described | {"hidden_act": "gelu"}))
    lm = DrafterConfig(kind="lm", source=str(drafter))
    with pytest.raises(UnsupportedModelError, match="gelu"):
        load_pair(PairConfig(target=target, device="cpu", drafter=lm))


def test_tiny_head_is_its_own_shape() -> None:
    assert head_bytes(tiny_head().config, 2) < head_bytes(tiny_head().config, 4)

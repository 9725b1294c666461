"""The head's layout, its attention seam, and what loading refuses."""

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from safetensors.torch import load_file, save_file
from torch import Tensor

import draftgym
from draftgym.decoder.drafters.eagle3_head import Eagle3Config, Eagle3Head, load_head, save_head

CONFIG = Eagle3Config(
    hidden_size=12,
    intermediate_size=20,
    num_attention_heads=3,
    num_key_value_heads=1,
    head_dim=4,
    rope_theta=1e4,
    rms_norm_eps=1e-5,
    target_vocab_size=30,
    draft_vocab_size=8,
    feature_layers=(1, 4),
    max_position_embeddings=32,
)
VOCABULARY = torch.tensor([0, 3, 4, 9, 10, 20, 28, 29])


@pytest.fixture
def head() -> Eagle3Head:
    torch.manual_seed(0)
    made = Eagle3Head(CONFIG)
    made.set_vocabulary(VOCABULARY)
    return made.eval().requires_grad_(False)


def causal(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
    q, k, v = (tensor.transpose(0, 1) for tensor in (query, key, value))
    return F.scaled_dot_product_attention(
        q, k.expand_as(q), v.expand_as(q), is_causal=True
    ).transpose(0, 1)


def test_published_weight_names(head: Eagle3Head) -> None:
    assert {name: list(tensor.shape) for name, tensor in head.state_dict().items()} == {
        "fc.weight": [12, 24],
        "midlayer.hidden_norm.weight": [12],
        "midlayer.input_layernorm.weight": [12],
        "midlayer.self_attn.q_proj.weight": [12, 24],
        "midlayer.self_attn.k_proj.weight": [4, 24],
        "midlayer.self_attn.v_proj.weight": [4, 24],
        "midlayer.self_attn.o_proj.weight": [12, 12],
        "midlayer.post_attention_layernorm.weight": [12],
        "midlayer.mlp.gate_proj.weight": [20, 12],
        "midlayer.mlp.up_proj.weight": [20, 12],
        "midlayer.mlp.down_proj.weight": [12, 20],
        "norm.weight": [12],
        "lm_head.weight": [8, 12],
        "d2t": [8],
        "t2d": [30],
    }


def test_offsets_map_draft_ids_to_target_ids(head: Eagle3Head) -> None:
    assert torch.equal(head.target_ids(), VOCABULARY)
    assert head.d2t.tolist() == [0, 2, 2, 6, 6, 15, 22, 22]
    assert head.t2d.nonzero().flatten().tolist() == VOCABULARY.tolist()


def test_decode_equals_the_formula(head: Eagle3Head) -> None:
    embeddings, features = torch.randn(5, 12), torch.randn(5, 24)
    hidden = head.fuse(features)
    output = head.decode(embeddings, hidden, torch.arange(5), causal)

    def norm(values: Tensor, weight: Tensor) -> Tensor:
        return values * (values.pow(2).mean(-1, keepdim=True) + 1e-5).rsqrt() * weight

    def rope(values: Tensor) -> Tensor:
        angles = torch.outer(torch.arange(5.0), 1e4 ** -(torch.arange(2.0) / 2)).unsqueeze(1)
        turned = torch.view_as_complex(torch.stack(values.chunk(2, -1), -1).contiguous())
        turned = turned * torch.polar(torch.ones_like(angles), angles)
        return torch.cat((turned.real, turned.imag), -1)

    layer = head.midlayer
    joined = torch.cat(
        (
            norm(embeddings, layer.input_layernorm.weight),
            norm(hidden, layer.hidden_norm.weight),
        ),
        -1,
    )
    attention = layer.self_attn
    attended = causal(
        rope((joined @ attention.q_proj.weight.T).view(5, 3, 4)),
        rope((joined @ attention.k_proj.weight.T).view(5, 1, 4)),
        (joined @ attention.v_proj.weight.T).view(5, 1, 4),
    )
    middle = hidden + attended.reshape(5, 12) @ attention.o_proj.weight.T
    normed = norm(middle, layer.post_attention_layernorm.weight)
    gate = F.silu(normed @ layer.mlp.gate_proj.weight.T)
    expected = middle + (gate * (normed @ layer.mlp.up_proj.weight.T)) @ (
        layer.mlp.down_proj.weight.T
    )
    torch.testing.assert_close(output, expected)
    logits = norm(expected, head.norm.weight) @ head.lm_head.weight.T
    torch.testing.assert_close(head.logits(output), logits)


def test_leading_dimensions_are_free(head: Eagle3Head) -> None:
    seen: list[torch.Size] = []

    def attend(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        seen.extend((query.shape, key.shape, value.shape))
        return query

    shape = (2, 3)
    positions = torch.zeros(shape, dtype=torch.int64)
    output = head.decode(torch.randn(*shape, 12), torch.randn(*shape, 12), positions, attend)
    assert output.shape == (2, 3, 12)
    assert seen == [torch.Size([2, 3, 3, 4]), torch.Size([2, 3, 1, 4]), torch.Size([2, 3, 1, 4])]


def test_round_trip(head: Eagle3Head, tmp_path: Path) -> None:
    save_head(head, tmp_path, torch.float32)
    loaded = load_head(tmp_path)
    assert loaded.config == CONFIG
    for name, tensor in head.state_dict().items():
        assert torch.equal(tensor, loaded.state_dict()[name]), name
    assert not any(parameter.requires_grad for parameter in loaded.parameters())
    assert sorted(path.name for path in tmp_path.iterdir()) == ["config.json", "model.safetensors"]


def test_bfloat16_storage_and_memory(head: Eagle3Head, tmp_path: Path) -> None:
    save_head(head, tmp_path)
    assert load_file(tmp_path / "model.safetensors")["fc.weight"].dtype == torch.bfloat16
    loaded = load_head(tmp_path, dtype=torch.bfloat16)
    assert loaded.norm.weight.dtype == loaded.rope_cos.dtype == torch.bfloat16
    assert loaded.d2t.dtype == torch.int64


def _set(name: str, change: Callable[[Tensor], Tensor]) -> Callable[[dict[str, Tensor]], None]:
    def apply(state: dict[str, Tensor]) -> None:
        state[name] = change(state[name]).contiguous()

    return apply


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda state: state.pop("fc.weight"), r"model\.safetensors: fc\.weight: missing"),
        (lambda state: state.update(extra=torch.zeros(1)), r"extra: unknown tensor"),
        (_set("fc.weight", lambda t: t[:, 1:]), r"fc\.weight: shape \[12, 23\].*\[12, 24\]"),
        (_set("fc.weight", lambda t: t.long()), r"fc\.weight: type torch\.int64"),
        (_set("d2t", lambda t: t.int()), r"d2t: need int64"),
        (_set("d2t", lambda t: t + 1), r"d2t: maps outside 0\.\.29"),
        (_set("d2t", lambda t: t * 0 + 1), r"t2d: must be true exactly"),
        (_set("d2t", lambda t: t.flip(0)), r"d2t: target ids must increase"),
        (_set("t2d", lambda t: ~t), r"t2d: must be true exactly"),
        (_set("t2d", lambda t: t.byte()), r"t2d: type torch\.uint8"),
    ],
)
def test_bad_weights_name_file_and_field(
    head: Eagle3Head, tmp_path: Path, change: Callable[[dict[str, Tensor]], Any], message: str
) -> None:
    save_head(head, tmp_path)
    path = tmp_path / "model.safetensors"
    state = load_file(path)
    change(state)
    save_file(state, path)
    with pytest.raises(ValueError, match=message):
        load_head(tmp_path)


@pytest.mark.parametrize(
    ("field", "value", "message"),
    [
        ("architecture", "other", "architecture: 'other'"),
        ("num_key_value_heads", 2, "num_key_value_heads: 2 does not divide"),
        ("hidden_act", "tanh", "hidden_act: unknown 'tanh'; accepted: silu, gelu"),
        ("head_dim", 3, "head_dim: must be even"),
        ("hidden_size", 0, "hidden_size: must be positive"),
        ("draft_vocab_size", 31, "draft_vocab_size: 31 exceeds"),
        ("feature_layers", [4, 1], "feature_layers: must increase strictly"),
        ("surprise", 1, "config.json: .*surprise"),
    ],
)
def test_bad_config_names_file_and_field(
    head: Eagle3Head, tmp_path: Path, field: str, value: object, message: str
) -> None:
    save_head(head, tmp_path)
    path = tmp_path / "config.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), field: value}))
    with pytest.raises(ValueError, match=message):
        load_head(tmp_path)


@pytest.mark.parametrize("name", ["config.json", "model.safetensors"])
def test_missing_and_corrupt_files_are_named(head: Eagle3Head, tmp_path: Path, name: str) -> None:
    save_head(head, tmp_path)
    (tmp_path / name).write_bytes((tmp_path / name).read_bytes()[:20])
    with pytest.raises(ValueError, match=name):
        load_head(tmp_path)
    (tmp_path / name).unlink()
    with pytest.raises(ValueError, match=name):
        load_head(tmp_path)


def test_set_vocabulary_refuses_unsorted_ids() -> None:
    with pytest.raises(ValueError, match="increase strictly"):
        Eagle3Head(CONFIG).set_vocabulary(VOCABULARY.flip(0))
    with pytest.raises(ValueError, match="maps outside"):
        Eagle3Head(replace(CONFIG, draft_vocab_size=1)).set_vocabulary(torch.tensor([30]))


def test_the_shipped_head_loads_and_is_small() -> None:
    folder = Path(draftgym.__file__).parent / "pretrained" / "smollm2-135m-eagle3"
    shipped = load_head(folder)
    assert shipped.config.feature_layers == (3, 15, 27)
    assert (shipped.config.hidden_size, shipped.config.draft_vocab_size) == (576, 6144)
    assert all(parameter.isfinite().all() for parameter in shipped.parameters())
    assert (folder / "model.safetensors").stat().st_size <= 20_000_000
    assert "Held-out acceptance" in (folder / "README.md").read_text()

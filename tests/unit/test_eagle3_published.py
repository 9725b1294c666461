"""Published EAGLE-3 checkpoints: the layout, the round trip and what is refused."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from safetensors.torch import save_file
from torch import Tensor
from transformers import LlamaConfig
from transformers.models.llama.modeling_llama import LlamaRotaryEmbedding

from draftgym.clock import FakeClock
from draftgym.decoder.controllers import PlainController, RandomController
from draftgym.decoder.drafters.eagle3_head import Eagle3Config, Eagle3Head, save_head
from draftgym.decoder.drafters.eagle3_layout import default_feature_layers, published_config
from draftgym.decoder.drafters.eagle3_published import (
    load_any_head,
    read_head_config,
    resolve_head,
    weights_digest,
)
from draftgym.decoder.drafters.eagle3_rope import rope_table
from draftgym.decoder.session import DecoderSession
from draftgym.errors import ConfigurationError, SourceError
from tests.tiny import HIDDEN, VOCAB, tiny_model, tiny_pair

LAYERS, DRAFT = 8, 24
CONFIG: dict[str, Any] = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "hidden_act": "silu",
    "hidden_size": HIDDEN,
    "intermediate_size": 48,
    "max_position_embeddings": 280,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "num_hidden_layers": 1,
    "rms_norm_eps": 1e-5,
    "head_dim": 16,
    "vocab_size": VOCAB,
    "draft_vocab_size": DRAFT,
    "torch_dtype": "float16",
}
LLAMA3 = {
    "factor": 8.0,
    "high_freq_factor": 4.0,
    "low_freq_factor": 1.0,
    "original_max_position_embeddings": 32,
    "rope_type": "llama3",
}


def shapes(draft: int = DRAFT, heads: int = 4, kv_heads: int = 2, dim: int = 16) -> dict[str, Any]:
    """The published names and shapes, written out."""
    width, inner = HIDDEN, 48
    return {
        "fc.weight": (width, 3 * width),
        "midlayer.hidden_norm.weight": (width,),
        "midlayer.input_layernorm.weight": (width,),
        "midlayer.post_attention_layernorm.weight": (width,),
        "midlayer.self_attn.q_proj.weight": (heads * dim, 2 * width),
        "midlayer.self_attn.k_proj.weight": (kv_heads * dim, 2 * width),
        "midlayer.self_attn.v_proj.weight": (kv_heads * dim, 2 * width),
        "midlayer.self_attn.o_proj.weight": (width, heads * dim),
        "midlayer.mlp.gate_proj.weight": (inner, width),
        "midlayer.mlp.up_proj.weight": (inner, width),
        "midlayer.mlp.down_proj.weight": (width, inner),
        "norm.weight": (width,),
        "lm_head.weight": (draft, width),
    }


def checkpoint(draft: int = DRAFT) -> dict[str, Tensor]:
    torch.manual_seed(3)
    state = {name: 0.3 * torch.randn(shape) for name, shape in shapes(draft).items()}
    ids = torch.randperm(VOCAB)[:draft].sort().values
    state["d2t"] = ids - torch.arange(draft)
    state["t2d"] = torch.zeros(VOCAB, dtype=torch.bool)
    state["t2d"][ids] = True
    return state


def write(
    folder: Path, state: dict[str, Tensor] | None = None, shards: int = 1, **changes: Any
) -> Path:
    """A checkpoint folder; fields set to `...` are left out of `config.json`."""
    folder.mkdir(parents=True, exist_ok=True)
    fields = {name: value for name, value in (CONFIG | changes).items() if value is not ...}
    (folder / "config.json").write_text(json.dumps(fields))
    tensors = {name: tensor.contiguous() for name, tensor in (state or checkpoint()).items()}
    if shards == 1:
        save_file(tensors, folder / "model.safetensors")
        return folder
    names = sorted(tensors)
    weight_map: dict[str, str] = {}
    for shard in range(shards):
        file = f"model-{shard + 1:05d}-of-{shards:05d}.safetensors"
        part = {name: tensors[name] for name in names[shard::shards]}
        save_file(part, folder / file)
        weight_map |= dict.fromkeys(part, file)
    index = {"metadata": {}, "weight_map": weight_map}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))
    return folder


def load(folder: Path, embedding: Tensor | None = None) -> Eagle3Head:
    given = torch.zeros(VOCAB, HIDDEN) if embedding is None else embedding
    return load_any_head(folder, LAYERS, given)


def causal(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
    q, k, v = (tensor.transpose(0, 1) for tensor in (query, key, value))
    k, v = (tensor.repeat_interleave(len(q) // len(k), 0) for tensor in (k, v))
    return F.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(0, 1)


def logits(head: Eagle3Head) -> Tensor:
    torch.manual_seed(4)
    embeddings, features = torch.randn(40, HIDDEN), torch.randn(40, 3 * HIDDEN)
    return head.logits(head.decode(embeddings, head.fuse(features), torch.arange(40), causal))


def own_head(state: dict[str, Tensor], **changes: Any) -> Eagle3Head:
    """The same weights in a head of our own making."""
    fields: dict[str, Any] = {
        "hidden_size": HIDDEN,
        "intermediate_size": 48,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "head_dim": 16,
        "rope_theta": 10_000.0,
        "rms_norm_eps": 1e-5,
        "target_vocab_size": VOCAB,
        "draft_vocab_size": DRAFT,
        "feature_layers": (2, 4, 5),
        "max_position_embeddings": 280,
    }
    head = Eagle3Head(Eagle3Config(**(fields | changes)))
    head.load_state_dict(state)
    return head.eval().requires_grad_(False)


@pytest.mark.parametrize("shards", [1, 3])
def test_logits_equal_our_own_head_with_the_same_weights(tmp_path: Path, shards: int) -> None:
    state = checkpoint()
    loaded = load(write(tmp_path, state, shards))
    assert loaded.config == own_head(state).config
    assert torch.equal(logits(loaded), logits(own_head(state)))
    assert torch.equal(loaded.target_ids(), state["t2d"].nonzero().flatten())
    assert not any(parameter.requires_grad for parameter in loaded.parameters())


def test_rope_comes_from_the_heads_own_fields(tmp_path: Path) -> None:
    state = checkpoint()
    based = load(write(tmp_path / "a", state, rope_theta=1e6, rope_scaling=None))
    assert torch.equal(logits(based), logits(own_head(state, rope_theta=1e6)))
    newer = {**LLAMA3, "rope_theta": 5e5}
    scaled = [
        load(write(tmp_path / "b", state, rope_theta=5e5, rope_scaling=LLAMA3)),
        load(write(tmp_path / "c", state, rope_parameters=newer)),
    ]
    expected = logits(own_head(state, rope_theta=5e5, rope_scaling=LLAMA3))
    assert all(torch.equal(logits(head), expected) for head in scaled)
    assert not torch.allclose(expected, logits(own_head(state, rope_theta=5e5)), atol=1e-2)


@pytest.mark.parametrize(
    "scaling", [LLAMA3, {"type": "linear", "factor": 4.0}, {"rope_type": "yarn", "factor": 4.0}]
)
def test_scaled_rope_is_transformers_own(scaling: dict[str, Any]) -> None:
    config = published_config(CONFIG | {"rope_theta": 5e5, "rope_scaling": scaling}, "x", LAYERS)
    cos, sin = rope_table(config)
    kind = scaling.get("rope_type", scaling.get("type"))
    theirs = LlamaRotaryEmbedding(
        LlamaConfig(
            hidden_size=64,
            num_attention_heads=4,
            max_position_embeddings=280,
            rope_parameters={**scaling, "rope_type": kind, "rope_theta": 5e5},
        )
    )
    expected = theirs(torch.zeros(1, 280, 64), torch.arange(280)[None])
    torch.testing.assert_close(cos, expected[0][0])
    torch.testing.assert_close(sin[:, 8:], expected[1][0][:, 8:])
    torch.testing.assert_close(sin[:, :8], -expected[1][0][:, :8])
    assert cos.shape == (280, 16)


def test_a_scaled_head_keeps_its_scaling_in_our_own_folder(tmp_path: Path) -> None:
    head = load(write(tmp_path / "a", rope_theta=5e5, rope_scaling=LLAMA3))
    save_head(head, tmp_path / "b", torch.float32)
    again = load(tmp_path / "b")
    assert again.config == head.config
    assert torch.equal(logits(again), logits(head))


@pytest.mark.parametrize(("layers", "expected"), [(32, (2, 16, 29)), (36, (2, 18, 33))])
def test_feature_layers_are_states_that_enter_2_half_and_3_before_the_end(
    layers: int, expected: tuple[int, ...]
) -> None:
    assert default_feature_layers(layers) == expected
    assert published_config(CONFIG, "x", layers).feature_layers == expected


def test_named_feature_layers_in_both_conventions(tmp_path: Path) -> None:
    def layers(**fields: Any) -> tuple[int, ...]:
        return published_config(CONFIG | fields, "x", LAYERS).feature_layers

    name = "eagle_aux_hidden_state_layer_ids"
    assert layers(**{name: [2, 3, 6]}) == (2, 3, 6)
    assert layers(**{name: [1, 3, 5]}) == (2, 4, 6)  # counted as outputs
    assert layers(eagle_config={name: [1, 3, 4], "use_aux_hidden_state": True}) == (2, 4, 5)
    assert read_head_config(write(tmp_path, **{name: [2, 3, 6]}), LAYERS).feature_layers[2] == 6
    with pytest.raises(ValueError, match=r"enter layers .* the target has 8"):
        layers(**{name: [1, 3, 7]})
    with pytest.raises(ValueError, match="need a list of integers"):
        layers(**{name: "2,3"})
    with pytest.raises(ValueError, match="the target has L = 6"):
        published_config(CONFIG, "x", 6)


def test_a_head_that_proposes_every_token_needs_no_tables(tmp_path: Path) -> None:
    state = checkpoint(VOCAB)
    bare = {name: tensor for name, tensor in state.items() if name not in ("d2t", "t2d")}
    head = load(write(tmp_path / "a", bare, draft_vocab_size=...))
    assert torch.equal(head.target_ids(), torch.arange(VOCAB))
    untouched = bare | {"d2t": torch.zeros(VOCAB).long(), "t2d": torch.zeros(VOCAB).bool()}
    assert load(write(tmp_path / "b", untouched, draft_vocab_size=VOCAB)).t2d.all()
    wrong = bare | {"d2t": torch.ones(VOCAB).long()}
    with pytest.raises(ValueError, match=r"model\.safetensors: d2t: must be zero"):
        load(write(tmp_path / "c", wrong, draft_vocab_size=VOCAB))
    cut = bare | {"lm_head.weight": torch.ones(DRAFT, HIDDEN)}
    with pytest.raises(ValueError, match=r"lm_head\.weight: shape"):
        load(write(tmp_path / "d", cut, draft_vocab_size=VOCAB))


def _set(name: str, change: Callable[[Tensor], Tensor]) -> Callable[[dict[str, Tensor]], None]:
    def apply(state: dict[str, Tensor]) -> None:
        state[name] = change(state[name])

    return apply


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda state: state.pop("d2t"), r"d2t: missing; .* proposes 24 of 64"),
        (lambda state: state.pop("t2d"), r"t2d: missing"),
        (_set("d2t", lambda t: t.float()), r"d2t: type torch\.float32"),
        (_set("d2t", lambda t: t.int()), r"d2t: need int64"),
        (_set("d2t", lambda t: t[:-1]), r"d2t: shape \[23\]"),
        (_set("d2t", lambda t: t + 60), r"d2t: maps outside 0\.\.63"),
        (_set("d2t", lambda t: t + torch.arange(len(t))), r"d2t: "),  # ids instead of offsets
        (_set("t2d", lambda t: ~t), r"t2d: must be true exactly"),
        (_set("t2d", lambda t: t[:-1]), r"t2d: shape \[63\]"),
        (lambda state: state.pop("fc.weight"), r"fc\.weight: missing"),
        (_set("fc.weight", lambda t: t[:, :64]), r"fc\.weight: shape \[32, 64\]"),
        (
            lambda state: state.update({"midlayer.self_attn.q_proj.bias": torch.zeros(64)}),
            r"q_proj\.bias: the head's linear layers have no bias",
        ),
        (
            lambda state: state.update({"midlayer.self_attn.q_norm.weight": torch.ones(16)}),
            r"q_norm\.weight: the head does not normalise queries",
        ),
        (
            lambda state: state.update({"layers.0.hidden_norm.weight": torch.ones(16)}),
            r"layers\.0\.hidden_norm\.weight: not the published layout",
        ),
        (lambda state: state.update(other=torch.ones(1)), r"other: unknown tensor"),
    ],
)
def test_wrong_tensors_name_file_and_tensor(
    tmp_path: Path, change: Callable[[dict[str, Tensor]], Any], message: str
) -> None:
    state = checkpoint()
    change(state)
    with pytest.raises(ValueError, match=r"model\.safetensors: .*" + message):
        load(write(tmp_path, state))


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"hidden_size": ...}, "hidden_size: need an integer, got None"),
        ({"vocab_size": "64"}, "vocab_size: need an integer, got '64'"),
        ({"rope_theta": None}, "rope_theta: need a number"),
        ({"rope_scaling": {"type": "dynamic", "factor": 2.0}}, "'dynamic' is not supported"),
        ({"rope_scaling": {"rope_type": "longrope"}}, "accepted: linear, llama3, yarn"),
        ({"rope_scaling": {"type": "default", "mrope_section": [1]}}, "mrope_section"),
        ({"partial_rotary_factor": 0.5}, "partial_rotary_factor: 0.5"),
        ({"target_hidden_size": 64}, "target_hidden_size: 64 is not hidden_size 32"),
        ({"norm_before_residual": True}, "norm_before_residual: True is not supported"),
        ({"sliding_window": 512}, "sliding_window"),
        ({"quantization_config": {"bits": 4}}, "quantised weights"),
        ({"transformer_layer_config": {}}, "speculators"),
        ({"hidden_act": "relu"}, "hidden_act: unknown 'relu'"),
        ({"draft_vocab_size": 65}, "draft_vocab_size: 65 exceeds"),
        ({"eagle_config": {"use_aux_hidden_state": False}}, "is not EAGLE-3"),
    ],
)
def test_wrong_fields_name_file_and_field(
    tmp_path: Path, fields: dict[str, Any], message: str
) -> None:
    with pytest.raises(ValueError, match=r"config\.json: .*" + message):
        load(write(tmp_path, **fields))


def test_harmless_fields_are_accepted(tmp_path: Path) -> None:
    """As published: layer count of the target, a window that is switched off, tied flag."""
    fields = {"num_hidden_layers": 40, "sliding_window": None, "tie_word_embeddings": True}
    head = load(write(tmp_path, attention_bias=False, use_sliding_window=False, **fields))
    assert head.config == load(write(tmp_path / "plain")).config


def test_a_copy_of_the_targets_embedding_is_dropped_and_another_refused(tmp_path: Path) -> None:
    torch.manual_seed(9)
    embedding = torch.randn(VOCAB, HIDDEN)
    copied = checkpoint() | {"embed_tokens.weight": embedding.half()}
    folder = write(tmp_path / "a", copied)
    assert torch.equal(logits(load(folder, embedding)), logits(own_head(checkpoint())))
    with pytest.raises(ValueError, match=r"embed_tokens\.weight: not the target's embedding"):
        load(folder, embedding.flip(0))
    with pytest.raises(ValueError, match=r"embed_tokens\.weight: shape \[64, 32\]"):
        load(folder, embedding[:10])


def test_pickles_are_never_opened(tmp_path: Path) -> None:
    folder = write(tmp_path)
    (folder / "model.safetensors").unlink()
    with pytest.raises(ValueError, match=r"model\.safetensors: missing.*eagle3_checkpoints\.md"):
        load(folder)
    (folder / "pytorch_model.bin").write_bytes(b"\x80\x04cos\nsystem\n.")
    with pytest.raises(ValueError, match=r"pytorch_model\.bin: a pickle.*weights_only=True"):
        load(folder)


def test_the_conversion_in_the_docs_works(tmp_path: Path) -> None:
    page = Path(__file__).parents[2] / "docs" / "eagle3_checkpoints.md"
    code = page.read_text(encoding="utf-8").partition("```python\n")[2].partition("```")[0]
    folder = write(tmp_path)
    (folder / "model.safetensors").unlink()
    state = checkpoint()
    state["tied.weight"] = state["lm_head.weight"]  # shares memory, which safetensors refuses
    torch.save(state, folder / "pytorch_model.bin")
    exec(code.replace('"EAGLE3-LLaMA3.1-Instruct-8B"', repr(str(folder))), {})
    with pytest.raises(ValueError, match=r"tied\.weight: unknown tensor"):
        load(folder)


def test_broken_shards_are_named(tmp_path: Path) -> None:
    folder = write(tmp_path, shards=2)
    index = folder / "model.safetensors.index.json"
    second = folder / "model-00002-of-00002.safetensors"
    digest = weights_digest(folder)
    second.write_bytes(second.read_bytes()[:40])
    assert weights_digest(folder) != digest
    with pytest.raises(ValueError, match="model-00002-of-00002"):
        load(folder)
    for escaping in ("../x.safetensors", "pytorch_model.bin"):
        index.write_text(json.dumps({"weight_map": {"d2t": escaping}}))
        with pytest.raises(ValueError, match=r"index\.json: weight_map: .*not a safetensors file"):
            load(folder)
    index.write_text("{}")
    with pytest.raises(ValueError, match="weight_map: missing or empty"):
        load(folder)


def test_sources_of_heads(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import huggingface_hub

    asked: dict[str, Any] = {}

    def snapshot_download(repository: str, **options: Any) -> str:
        asked.update(options, repository=repository)
        return str(tmp_path)

    monkeypatch.setattr(huggingface_hub, "snapshot_download", snapshot_download)
    assert resolve_head(str(tmp_path)) == tmp_path
    assert asked == {}
    assert resolve_head("org/head@refs/pr/1") == tmp_path
    assert asked["repository"] == "org/head"
    assert asked["revision"] == "refs/pr/1"
    assert asked["allow_patterns"] == ["*.json", "*.safetensors"]
    for source in ("nothing", "./org/head", "~/org/head", "pypi:x==1!y.gguf"):
        with pytest.raises(SourceError, match="a folder or a hub id"):
            resolve_head(source)


@pytest.mark.parametrize("kind", ["eagle3", "hybrid"])
def test_a_tiny_pair_with_a_published_head_is_lossless(tmp_path: Path, kind: Any) -> None:
    model = tiny_model(2, num_hidden_layers=LAYERS)
    pair = tiny_pair(2, kind, model=model, eos=frozenset())
    pair.head = None
    folder = write(tmp_path, checkpoint() | {"embed_tokens.weight": pair.embedding.clone()})
    drafter = pair.config.drafter.model_copy(update={"source": str(folder)})
    pair.config = pair.config.model_copy(update={"drafter": drafter})
    prompt = [3, 5, 7, 9, 11]
    plain = DecoderSession(pair, None, clock=FakeClock())
    plain.start(prompt, 80)
    plain.run(PlainController())
    session = DecoderSession(pair, pair.new_drafter(), clock=FakeClock())
    session.start(prompt, 80)
    session.run(RandomController(1, 8, (0, 1, 2, 4, 8, 16)))
    assert session.tokens == plain.tokens
    assert sum(record.size for record in session.records) > 0
    assert pair.fingerprint()["drafter_sha256"] == weights_digest(folder)


def test_a_pair_reports_a_bad_checkpoint_as_configuration(tmp_path: Path) -> None:
    pair = tiny_pair(2)
    pair.head = None
    drafter = pair.config.drafter.model_copy(update={"source": str(write(tmp_path))})
    pair.config = pair.config.model_copy(update={"drafter": drafter})
    with pytest.raises(ConfigurationError, match=r"drafter\.source: .*the target has L = 2"):
        pair.new_drafter()

"""What is checked when a target and a drafter are put together."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from pydantic import ValidationError
from transformers import GenerationConfig, LlamaConfig

from draftgym.clock import FakeClock
from draftgym.decoder import llama
from draftgym.decoder.config import PairConfig
from draftgym.decoder.controllers import FixedController
from draftgym.decoder.drafters.base import Committed
from draftgym.decoder.drafters.ngram import NgramDrafter
from draftgym.decoder.generation import resolve_generation
from draftgym.decoder.linear import DecodeLinear, DraftLinear, can_halve, pack_linears
from draftgym.decoder.llama import LlamaTarget, UnsupportedModelError, check_supported
from draftgym.decoder.pair import resolve_device, resolve_dtype
from draftgym.decoder.rules.greedy import GreedyRule
from draftgym.decoder.session import DecoderSession
from draftgym.decoder.streaming import TextStream
from draftgym.decoder.tokenizers import check_same_tokenizer
from draftgym.decoder.tree import DraftTree
from draftgym.errors import ConfigurationError
from tests.tiny import tiny_head, tiny_model, tiny_pair


class Tokenizer:
    """The two things that are compared."""

    def __init__(self, words: list[str], bos: bool = False) -> None:
        self._ids = {word: index for index, word in enumerate(words)}
        self._bos = bos

    def get_vocab(self) -> dict[str, int]:
        return dict(self._ids)

    def __call__(self, text: str) -> dict[str, list[int]]:
        start = [0] if self._bos else []
        return {"input_ids": start + [1 + len(word) % 4 for word in text.split()]}


def test_row_31_permuted_tokenizer_names_the_first_id() -> None:
    words = ["<s>", "a", "b", "c", "d"]
    check_same_tokenizer(Tokenizer(words), Tokenizer([*words, "padding"]))
    with pytest.raises(ConfigurationError, match=r"id 2: the target has 'b', the drafter 'c'"):
        check_same_tokenizer(Tokenizer(words), Tokenizer(["<s>", "a", "c", "b", "d"]))
    with pytest.raises(ConfigurationError, match=r"from token 0 on.*BOS"):
        check_same_tokenizer(Tokenizer(words), Tokenizer(words, bos=True))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"model_type": "mamba"}, "'mamba' is not supported; supported: llama"),
        ({"layer_types": ["full_attention", "sliding_attention"]}, "sliding_attention"),
        ({"layer_types": ["linear_attention"]}, "cannot be cropped"),
        ({"sliding_window": 128}, "sliding_window=128"),
        ({"hidden_act": "gelu"}, "gelu"),
        ({"rope_parameters": {"rope_type": "dynamic"}}, "dynamic"),
    ],
)
def test_rows_19_49_unsupported_models_are_refused_with_the_reason(
    changes: dict[str, Any], message: str
) -> None:
    config = LlamaConfig()
    for name, value in changes.items():
        setattr(config, name, value)
    with pytest.raises(UnsupportedModelError, match=message):
        check_supported(config)


def test_row_51_device_and_dtype_are_explicit() -> None:
    cpu = torch.device("cpu")
    assert resolve_dtype("float32", cpu) == torch.float32
    assert resolve_dtype("auto", torch.device("cuda")) == torch.bfloat16
    assert resolve_dtype("auto", cpu) in (torch.float32, torch.bfloat16)
    if not torch.cuda.is_available():
        with pytest.raises(ConfigurationError, match="no CUDA"):
            resolve_device("cuda:1")
    with pytest.raises(ValidationError, match="device"):
        PairConfig(device="tpu")


def test_row_51_a_drafter_elsewhere_or_a_head_of_another_type_is_refused() -> None:
    pair = tiny_pair(0)
    assert pair.head is not None
    pair.head = pair.head.to("meta")
    with pytest.raises(ConfigurationError, match="draft head is on meta, the target on cpu"):
        pair.new_drafter()
    pair.head = tiny_head(0).bfloat16()
    with pytest.raises(ConfigurationError, match=r"draft head is torch\.bfloat16, the target"):
        pair.new_drafter("hybrid")
    pair.draft_model = LlamaTarget(tiny_model(0).to("meta"))
    with pytest.raises(ConfigurationError, match="draft model is on meta"):
        pair.new_drafter("lm")


def test_row_51_a_draft_model_of_another_type_works() -> None:
    pair = tiny_pair(1, "lm", eos=frozenset())
    pair.draft_model = LlamaTarget(tiny_model(1).bfloat16())
    texts = []
    for drafter in (pair.new_drafter(), None):
        session = DecoderSession(pair, drafter, clock=FakeClock())
        session.start([3, 5, 7], 40)
        session.run(FixedController(3, 12 if drafter else 0))
        texts.append(session.tokens)
    assert texts[0] == texts[1]


def test_a_head_that_does_not_fit_is_refused() -> None:
    pair = tiny_pair(0, model=tiny_model(0, vocab=32))
    pair.head = tiny_pair(0).head
    with pytest.raises(ConfigurationError, match=r"expects target embeddings \[64, 32\]"):
        pair.new_drafter()
    with pytest.raises(ConfigurationError, match="accepted: hybrid, eagle3, lm, ngram, none"):
        pair.new_drafter("medusa")
    small = tiny_pair(0, model=tiny_model(0, vocab=8), beam_width=16)
    with pytest.raises(ConfigurationError, match="beam_width 16"):
        small.new_drafter()
    shallow = tiny_pair(0, model=tiny_model(0, num_hidden_layers=1))
    with pytest.raises(ConfigurationError, match="feature_layers"):
        shallow.new_drafter()


def test_a_missing_head_is_an_error_that_names_the_file(tmp_path: Path) -> None:
    pair = tiny_pair(0)
    pair.head = None
    drafter = pair.config.drafter.model_copy(update={"source": str(tmp_path)})
    pair.config = pair.config.model_copy(update={"drafter": drafter})
    with pytest.raises(ConfigurationError, match=r"drafter\.source: .*config\.json"):
        pair.new_drafter()


def test_generation_settings_are_resolved_once() -> None:
    target = LlamaTarget(tiny_model(0))
    checkpoint = GenerationConfig(eos_token_id=[1, 5], repetition_penalty=1.1, temperature=0.6)
    settings = resolve_generation(checkpoint, target, PairConfig(context_limit_tokens=100))
    assert settings.eos_token_ids == {1, 5}
    assert settings.context_limit_tokens == 100
    assert "repetition_penalty=1.1" in settings.describe()
    with pytest.raises(ConfigurationError, match="eos_token_id 64"):
        resolve_generation(GenerationConfig(eos_token_id=64), target, PairConfig())


@pytest.mark.parametrize("rows", [1, 2, 5, 33])
def test_packed_linear_is_the_same_function(rows: int) -> None:
    torch.manual_seed(0)
    layer = torch.nn.Linear(24, 40)
    packed = DecodeLinear(layer.weight, layer.bias)
    x = torch.randn(rows, 24)
    torch.testing.assert_close(packed(x), layer(x))
    half = DecodeLinear(layer.weight.bfloat16())
    torch.testing.assert_close(half(x.bfloat16()), (x.bfloat16() @ layer.weight.bfloat16().T))
    nested = torch.nn.Sequential(torch.nn.Sequential(layer), torch.nn.ReLU())
    expected = nested(x)
    assert pack_linears(DecodeLinear, nested) == 1
    torch.testing.assert_close(nested(x), expected)


def ngram_chain(ids: list[int], limit: int = 10, **options: int) -> tuple[list[int], list[float]]:
    drafter = NgramDrafter(**options)
    committed = Committed(torch.zeros(256, dtype=torch.long), None)
    drafter.start(committed, GreedyRule())
    for token in ids:
        committed.append([token])
        tree = DraftTree(drafter.max_nodes, torch.device("cpu"))
        tree.reset(torch.tensor(token))
        drafter.propose(tree, limit)
    return tree.tokens[1 : tree.size + 1].tolist(), tree.scores[1 : tree.size + 1].tolist()


def test_look_ups_continue_the_newest_longest_match() -> None:
    tokens, scores = ngram_chain([1, 2, 3, 4, 9, 2, 3, 5, 8, 1, 2, 3], max_match=3)
    assert tokens[:9] == [4, 9, 2, 3, 5, 8, 1, 2, 3]  # 1 2 3 was seen once; 2 3 went on to 5 later
    assert tokens[9:] == [4]  # where the text ends the look-up goes on in itself
    assert scores == sorted(scores, reverse=True)
    assert all(score < 0 for score in scores)
    assert ngram_chain([1, 2, 3])[0] == []
    assert ngram_chain([7, 7, 7, 7], limit=2)[0] == [7, 7]
    assert ngram_chain([5, 1, 2, 3, 1, 2, 3], limit=8)[0] == [1, 2, 3, 1, 2, 3, 1, 2]
    assert ngram_chain([1, 2] * 8, limit=3, cap=2)[0] == [1, 2]


def test_look_ups_that_keep_failing_are_trusted_less() -> None:
    _, good = ngram_chain([1, 2, 3, 4] * 6)
    noisy = [1, 5, 1, 6, 1, 7, 1, 8, 1, 9, 1]
    _, bad = ngram_chain(noisy)
    assert good[0] > bad[0]
    assert bad[0] < -0.6  # right in none of four look-ups


def test_streaming_never_breaks_a_character() -> None:
    pieces: list[str] = []
    data = "né 你好\nok".encode()
    stream = TextStream(lambda ids: bytes(ids).decode(errors="replace"), pieces.append)
    for byte in data:
        stream.push([byte])
    stream.close()
    assert "".join(pieces) == data.decode()
    assert all("\N{REPLACEMENT CHARACTER}" not in piece for piece in pieces)


@pytest.mark.parametrize("rows", [1, 4, 33])
def test_a_drafters_weights_are_halved_only_where_they_fit(
    rows: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    torch.manual_seed(0)
    layer = torch.nn.Linear(24, 40)
    x = torch.randn(rows, 24)
    torch.testing.assert_close(
        DraftLinear(layer.weight, layer.bias)(x), layer(x), atol=2e-3, rtol=0
    )
    wide = layer.weight.detach() * 1e6
    torch.testing.assert_close(DraftLinear(wide)(x), x @ wide.T, rtol=1e-4, atol=1.0)
    assert not can_halve(wide) and not can_halve(layer.weight.bfloat16())
    monkeypatch.setattr(torch.backends.quantized, "engine", "qnnpack")
    assert not can_halve(layer.weight)


def test_the_target_never_runs_on_halved_weights() -> None:
    assert DraftLinear not in vars(llama).values()

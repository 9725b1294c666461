"""Transformers' own speculative decoding: same text as plain decoding, times that add up."""

from __future__ import annotations

import pytest
import torch

from draftgym.benchmark.methods import HuggingFaceMethod, SessionMethod
from draftgym.benchmark.peers import assisted, first_layers, prompt_lookup
from draftgym.benchmark.runner import Request
from draftgym.clock import FakeClock, WallClock
from draftgym.decoder.controllers import PlainController
from draftgym.decoder.session import DecoderSession
from draftgym.errors import ConfigurationError
from tests.tiny import tiny_model, tiny_pair

REQUESTS = [Request(f"p{i}", "d", (5 + i, 6, 7, 5 + i, 6)) for i in range(4)]
TOKENS = 24


def plain_texts(eos: tuple[int, ...] = ()) -> list[tuple[int, ...]]:
    session = DecoderSession(tiny_pair(eos=frozenset(eos)), None, clock=FakeClock())
    plain = SessionMethod("plain", session, PlainController())
    return [plain.measure(request, TOKENS).output for request in REQUESTS]


def peers(eos: tuple[int, ...] = ()) -> list[HuggingFaceMethod]:
    model, clock = tiny_model(), WallClock()
    return [
        HuggingFaceMethod(model, clock, eos),
        prompt_lookup(model, clock, eos, tokens=4),
        assisted(model, clock, eos, layers=1),
    ]


@pytest.mark.parametrize("stops", [False, True])
def test_texts_equal_plain_decoding_and_gaps_add_up(stops: bool) -> None:
    eos = (plain_texts()[0][9],) if stops else ()
    expected = plain_texts(eos)
    several = 0
    for method in peers(eos):
        for request, text in zip(REQUESTS, expected, strict=True):
            measured = method.measure(request, TOKENS)
            assert measured.output == text, method.name
            assert measured.seconds == pytest.approx(sum(measured.gaps_seconds))
            assert measured.emitted == len(measured.gaps_seconds) < len(text)
            assert measured.first_token_seconds is not None and measured.first_token_seconds > 0
            assert measured.request_seconds is not None
            inside = measured.first_token_seconds + measured.seconds
            assert inside <= measured.request_seconds + 0.05
            several += measured.gaps_seconds.count(0.0)
    assert several > 0, "no pass yielded more than one token"


def test_names_say_what_they_are() -> None:
    assert [method.name for method in peers()] == [
        "transformers generate",
        "transformers generate, prompt look-up of 4",
        "transformers generate, assistant of the first 1 layers",
    ]


def test_the_assistant_shares_the_targets_weights() -> None:
    model = tiny_model()
    cut = first_layers(model, 1)
    theirs = model.state_dict()
    for name, weight in cut.state_dict().items():
        assert weight.data_ptr() == theirs[name].data_ptr(), name
    assert len(cut.model.layers) == 1 and len(model.model.layers) == 2
    assert not any(weight.requires_grad for weight in cut.parameters())
    with torch.inference_mode():
        ids = torch.tensor([[5, 6, 7]])
        assert not torch.equal(cut(ids).logits, model(ids).logits)


@pytest.mark.parametrize("layers", [0, 2])
def test_an_assistant_is_smaller_than_the_target(layers: int) -> None:
    with pytest.raises(ConfigurationError, match="the target has 2; accepted: 1 to 1"):
        assisted(tiny_model(), FakeClock(), layers=layers)


def test_what_an_assistant_adapted_to_is_forgotten() -> None:
    method = assisted(tiny_model(), FakeClock(), layers=1)
    assistant = method._assistant
    assistant.generation_config.num_assistant_tokens = 1
    assistant.generation_config.num_assistant_tokens_schedule = "heuristic"
    first = method.measure(REQUESTS[0], TOKENS)
    assert method.measure(REQUESTS[0], TOKENS).gaps_seconds == first.gaps_seconds
    assert assistant.generation_config.num_assistant_tokens is None

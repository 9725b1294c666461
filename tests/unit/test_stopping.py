"""Stop strings: the same end as plain decoding, wherever blocks begin and end."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from draftgym.clock import FakeClock
from draftgym.commands.generate import main
from draftgym.decoder.controllers import FixedController, PlainController, RandomController
from draftgym.decoder.generate import generate
from draftgym.decoder.session import DecoderSession
from draftgym.decoder.stopping import StopStrings, held_back
from draftgym.decoder.streaming import TextStream
from draftgym.errors import ConfigurationError
from tests.oracle import OracleDrafter
from tests.tiny import tiny_pair

PROMPT = [3, 5, 7, 9, 11]
LENGTH = 60
# Letters, pairs of letters, and halves of characters of two bytes.
SPELLING = [
    *(bytes([97 + i % 26]) for i in range(30)),
    *(bytes([65 + i, 97 + i]) for i in range(20)),
    *[b"\xc3", b"\xa9"] * 7,
]


def spell(tokens: Sequence[int]) -> str:
    return b"".join(SPELLING[token] for token in tokens).decode(errors="replace")


class Tokenizer:
    """Decodes by the table; nothing is special."""

    def decode(self, tokens: Sequence[int], skip_special_tokens: bool) -> str:
        return spell(tokens)


def spelling_pair(drafter: Any = "eagle3", eos: frozenset[int] = frozenset()) -> Any:
    pair = tiny_pair(1, drafter, eos=eos)
    pair.tokenizer = Tokenizer()
    return pair


def plain_tokens() -> list[int]:
    session = DecoderSession(spelling_pair(), None, clock=FakeClock())
    session.start(PROMPT, LENGTH)
    session.run(PlainController())
    return session.tokens


def cut(tokens: list[int], stop: str) -> list[int]:
    """Token by token, over the whole text."""
    ends = (n for n in range(1, len(tokens) + 1) if stop in spell(tokens[:n]))
    return tokens[: next(ends, len(tokens))]


@pytest.mark.parametrize("place", range(12))
@pytest.mark.parametrize("span", [1, 2, 4, 9])
def test_stops_inside_a_block_and_across_blocks(place: int, span: int) -> None:
    answer = plain_tokens()
    stop = spell(answer[place : place + span]).strip("\N{REPLACEMENT CHARACTER}")
    if not stop:
        stop = spell(answer[: place + span])
    expected = cut(answer, stop)
    pair = spelling_pair()
    oracle = OracleDrafter(PROMPT + answer, lambda position: 0)
    session = DecoderSession(pair, oracle, clock=FakeClock(), log_probs=True)
    seen: list[int] = []
    pieces: list[str] = []
    stream = TextStream(pair.decode, pieces.append, [stop])

    def receive(tokens: Sequence[int]) -> None:
        seen.extend(tokens)
        stream.push(tokens)

    result = generate(session, PROMPT, LENGTH, FixedController(4, 64), receive, [stop])
    stream.close()
    assert list(result.tokens) == expected == seen
    assert result.stop_reason == "stop"
    assert "".join(pieces) == spell(answer).split(stop)[0]
    assert 1 + sum(record.emitted for record in result.records) == len(expected)
    assert all(record.accepted <= record.emitted for record in result.records)
    assert len(session.log_probs) == len(expected)


@pytest.mark.parametrize("drafter", ["hybrid", "eagle3", "lm", "ngram"])
def test_every_drafter_stops_alike(drafter: Any) -> None:
    answer = plain_tokens()
    stop = spell(answer[7:10])
    pair = spelling_pair(drafter)
    session = DecoderSession(pair, pair.new_drafter(), clock=FakeClock())
    for seed in range(3):
        controller = RandomController(seed, 6, (0, 1, 4, 16, 32))
        result = generate(session, PROMPT, LENGTH, controller, stop_strings=["never", stop])
        assert list(result.tokens) == cut(answer, stop)
        # The next answer has no stop string.
        assert list(generate(session, PROMPT, LENGTH, controller).tokens) == answer


def test_an_end_of_sequence_before_the_string_wins_and_the_string_beats_the_budget() -> None:
    answer = plain_tokens()
    early = next(i for i in range(3, 20) if answer[i] not in answer[:i])
    pair = spelling_pair(eos=frozenset({answer[early]}))
    session = DecoderSession(pair, None, clock=FakeClock())
    stop = spell(answer[: early + 3])
    result = generate(session, PROMPT, LENGTH, PlainController(), stop_strings=[stop])
    assert result.stop_reason == "eos" and list(result.tokens) == answer[: early + 1]
    session.ignore_eos = True
    expected = cut(answer, stop)
    result = generate(session, PROMPT, len(expected), PlainController(), stop_strings=[stop])
    assert result.stop_reason == "stop" and list(result.tokens) == expected


def test_the_first_token_of_all_may_stop() -> None:
    pair = spelling_pair()
    session = DecoderSession(pair, pair.new_drafter(), clock=FakeClock())
    first = spell(plain_tokens()[:1])
    result = generate(session, PROMPT, LENGTH, FixedController(2, 4), stop_strings=[first])
    assert len(result.tokens) == 1 and not result.records and result.stop_reason == "stop"


@given(
    tokens=st.lists(st.integers(0, 63), min_size=1, max_size=60),
    blocks=st.lists(st.integers(1, 6), min_size=60, max_size=60),
    place=st.integers(0, 50),
    length=st.integers(1, 5),
)
def test_any_blocks_end_where_the_whole_text_does(
    tokens: list[int], blocks: list[int], place: int, length: int
) -> None:
    text = spell(tokens).replace("\N{REPLACEMENT CHARACTER}", "")
    stop = text[place : place + length] or "zz"
    check = StopStrings([stop], spell)
    emitted: list[int] = []
    for size in blocks:
        block = tokens[len(emitted) : len(emitted) + size]
        end = check.end(emitted, block)
        assert end == check.end(emitted, block)
        emitted += block[:end]
        if end is not None or not block:
            break
    assert emitted == cut(tokens, stop)


@given(text=st.text(alphabet="ab\n", max_size=30), stop=st.text("ab\n", min_size=1, max_size=4))
def test_a_stream_never_shows_a_stop_string_or_its_beginning(text: str, stop: str) -> None:
    pieces: list[str] = []
    stream = TextStream(lambda ids: "".join(map(chr, ids)), pieces.append, [stop])
    for letter in text:
        stream.push([ord(letter)])
        shown = "".join(pieces)
        assert stop not in shown and not shown[len(text.split(stop)[0]) :]
    stream.close()
    assert "".join(pieces) == text.split(stop)[0]


def test_only_what_may_become_a_stop_string_is_held_back() -> None:
    assert held_back("Hello Us", ["User:", "\n"]) == 2
    assert held_back("Hello", ["User:"]) == 0
    assert held_back("aaa", ["aaab"]) == 3
    assert held_back("anything", []) == 0


def test_empty_stop_strings_are_refused() -> None:
    session = DecoderSession(spelling_pair(), None, clock=FakeClock())
    with pytest.raises(ConfigurationError, match="stop_strings"):
        generate(session, PROMPT, 5, PlainController(), stop_strings=["x", ""])
    with pytest.raises(ConfigurationError, match="--stop: must not be empty"):
        main(["hello", "--stop", ""])

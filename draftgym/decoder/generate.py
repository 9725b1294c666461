"""Generate one answer with a session and a controller."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from draftgym.decoder.session import DecoderSession
from draftgym.decoder.stopping import StopStrings
from draftgym.state import Controller, RoundRecord


@dataclass(frozen=True, slots=True)
class GenerationResult:
    """One answer and what it cost.

    Attributes:
        tokens: Emitted ids, to the end-of-sequence id or to the one that completes a stop string,
            inclusive.
        records: One per round; the first token comes from the prefill.
        stop_reason: `eos`, `stop`, `budget` or `context`.
        prefill_seconds: Until the first token.
        seconds: All rounds.
    """

    tokens: tuple[int, ...]
    records: tuple[RoundRecord, ...]
    stop_reason: str
    prefill_seconds: float
    seconds: float

    @property
    def tau_emitted(self) -> float:
        """Mean tokens emitted per round, bonus counted; 0 without rounds."""
        emitted = sum(record.emitted for record in self.records)
        return emitted / len(self.records) if self.records else 0.0


def generate(
    session: DecoderSession,
    prompt_tokens: Sequence[int],
    max_new_tokens: int,
    controller: Controller,
    on_tokens: Callable[[Sequence[int]], None] | None = None,
    stop_strings: Sequence[str] = (),
) -> GenerationResult:
    """Decode one prompt.

    Args:
        session: Its earlier sequence is forgotten.
        prompt_tokens: Token ids.
        max_new_tokens: Budget, the first token included.
        controller: Decides depth and size.
        on_tokens: Called with the new ids of the prefill and of every round, each id once, in
            order, outside the timed region.
        stop_strings: Texts that end the answer, within a block of accepted tokens too. Nothing
            after them is emitted; `TextStream` leaves out the stop string itself.

    Raises:
        ValueError: See `DecoderSession.start`.
        ConfigurationError: An empty stop string.
    """
    stop = StopStrings(stop_strings, session.pair.decode).end if stop_strings else None
    controller.reset()
    session.start(prompt_tokens, max_new_tokens, stop=stop)
    if on_tokens is not None:
        on_tokens(tuple(session.tokens))
    while not session.finished:
        record = session.step(controller)
        if on_tokens is not None:
            on_tokens(record.tokens)
    assert session.stop_reason is not None
    return GenerationResult(
        tokens=tuple(session.tokens),
        records=tuple(session.records),
        stop_reason=session.stop_reason,
        prefill_seconds=session.prefill_seconds,
        seconds=sum(record.seconds for record in session.records),
    )

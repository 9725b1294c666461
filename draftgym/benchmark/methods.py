"""The methods a comparison runs: sessions under any controller, and Transformers' `generate`.

For every method the clock runs over decoding rounds only: prefill and what it yields are left
out alike, and timed for themselves.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from itertools import pairwise
from typing import Any

import torch

from draftgym.benchmark.runner import Measurement, Request
from draftgym.clock import Clock, witness_of
from draftgym.decoder.session import DecoderSession
from draftgym.state import Controller

TRANSFORMERS = "transformers generate"


class SessionMethod:
    """A decoder session under one controller.

    Methods may share a session: each request starts it afresh.

    Args:
        name: In reports.
        session: Where to decode.
        controller: Decides depth and size; for one that learns over requests, what makes it.
    """

    def __init__(
        self, name: str, session: DecoderSession, controller: Controller | Callable[[], Controller]
    ) -> None:
        self._name = name
        self._session = session
        self._make: Callable[[], Controller] = (
            controller if callable(controller) else lambda: controller
        )
        self._controller = self._make()

    @property
    def name(self) -> str:
        return self._name

    def measure(self, request: Request, max_new_tokens: int) -> Measurement:
        """Decode one prompt; seconds are the sum of the rounds' own."""
        witness = witness_of(self._session.clock)
        begin = witness()
        self._session.start(request.tokens, max_new_tokens, request.sequence)
        records = tuple(self._session.run(self._controller))
        request_seconds = witness() - begin
        return Measurement(
            output=tuple(self._session.tokens),
            seconds=sum(record.seconds for record in records),
            emitted=sum(record.emitted for record in records),
            records=records,
            first_token_seconds=self._session.prefill_seconds,
            request_seconds=request_seconds,
        )

    def renew(self) -> None:
        """Begin with a controller made anew, if one can be made."""
        self._controller = self._make()


class HuggingFaceMethod:
    """Transformers' own greedy `generate` with its default cache.

    A streamer, which `generate` hands the tokens of every forward pass of the target, reads the
    clock: the measured time runs from the end of the first pass (prefill) to the end of the
    last, as for sessions. Under assisted decoding the first pass already verifies candidates, so
    whatever tokens it yields are left out together with its time.

    Args:
        model: A Transformers `*ForCausalLM`.
        clock: Source of time.
        eos_ids: Token ids that end a text; empty to ignore all.
        name: In reports.
        settings: Further fields of the generation configuration.
        assistant: Drafts candidates, when given; what it adapted to one request is forgotten
            before the next.
    """

    def __init__(
        self,
        model: Any,
        clock: Clock,
        eos_ids: tuple[int, ...] = (),
        *,
        name: str = TRANSFORMERS,
        settings: Mapping[str, Any] | None = None,
        assistant: Any = None,
    ) -> None:
        self._model = model
        self._clock = clock
        self._eos_ids = eos_ids
        self._name = name
        self._settings = dict(settings or {})
        self._assistant = assistant

    @property
    def name(self) -> str:
        return self._name

    def measure(self, request: Request, max_new_tokens: int) -> Measurement:
        """Decode one prompt."""
        witness = witness_of(self._clock)
        stamps = _Timestamps(self._clock)
        begin, opened = self._clock.boundary(), witness()
        output = self._generate(request.tokens, max_new_tokens, stamps)
        request_seconds = witness() - opened
        gaps = stamps.gaps()
        return Measurement(
            output=output,
            seconds=stamps.seconds[-1] - stamps.seconds[0],
            emitted=len(gaps),
            first_token_seconds=stamps.seconds[0] - begin,
            gaps_seconds=gaps,
            request_seconds=request_seconds,
        )

    def renew(self) -> None:
        """Nothing is carried over from request to request."""

    def _generate(
        self, tokens: tuple[int, ...], max_new_tokens: int, stamps: _Timestamps
    ) -> tuple[int, ...]:
        from transformers import GenerationConfig

        prompt = torch.tensor([tokens], device=self._model.device)  # [1, prompt]
        # The checkpoint's own settings (penalties, other stop tokens) must not leak in.
        self._model.generation_config = GenerationConfig()
        helper = {}
        if self._assistant is not None:
            self._assistant.generation_config = GenerationConfig()
            helper = {"assistant_model": self._assistant}
        config = GenerationConfig(
            do_sample=False,
            max_new_tokens=max_new_tokens,
            eos_token_id=list(self._eos_ids) or None,
            pad_token_id=0,
            **self._settings,
        )
        with torch.inference_mode():
            full = self._model.generate(
                prompt,
                attention_mask=torch.ones_like(prompt),
                generation_config=config,
                streamer=stamps,
                **helper,
            )
        return tuple(full[0, len(tokens) :].tolist())


class _Timestamps:
    """Reads the clock after each pass of the target."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._prompt_seen = False
        self.seconds: list[float] = []
        self.tokens: list[int] = []

    def put(self, value: torch.Tensor) -> None:
        if not self._prompt_seen:  # the prompt itself comes first
            self._prompt_seen = True
            return
        self.tokens.append(value.numel())
        self._clock.note("verify", value.numel())
        self.seconds.append(self._clock.boundary())

    def end(self) -> None:
        """The text is finished."""

    def gaps(self) -> tuple[float, ...]:
        """Seconds before every token after the first pass; a pass's tokens arrive together."""
        waits = [late - early for early, late in pairwise(self.seconds)]
        return tuple(
            wait if place == 0 else 0.0
            for wait, count in zip(waits, self.tokens[1:], strict=True)
            for place in range(count)
        )

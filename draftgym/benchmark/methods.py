"""The methods a comparison runs: sessions under any controller, and Transformers' `generate`.

For every method the clock runs over decoding rounds only: prefill and the first token, which
prefill yields, are left out alike.
"""

from __future__ import annotations

from typing import Any

import torch

from draftgym.benchmark.runner import Measurement, Request
from draftgym.clock import Clock
from draftgym.decoder.session import DecoderSession
from draftgym.state import Controller

TRANSFORMERS = "transformers generate"


class SessionMethod:
    """A decoder session under one controller.

    Methods may share a session: each request starts it afresh.

    Args:
        name: In reports.
        session: Where to decode.
        controller: Decides depth and size.
    """

    def __init__(self, name: str, session: DecoderSession, controller: Controller) -> None:
        self._name = name
        self._session = session
        self._controller = controller

    @property
    def name(self) -> str:
        return self._name

    def measure(self, request: Request, max_new_tokens: int) -> Measurement:
        """Decode one prompt; seconds are the sum of the rounds' own."""
        self._session.start(request.tokens, max_new_tokens, request.sequence)
        records = tuple(self._session.run(self._controller))
        return Measurement(
            output=tuple(self._session.tokens),
            seconds=sum(record.seconds for record in records),
            emitted=sum(record.emitted for record in records),
            records=records,
        )


class HuggingFaceMethod:
    """Transformers' own greedy `generate` with its default cache.

    A stopping criterion, which `generate` calls after every token, reads the clock: the
    measured time runs from the first token (the end of prefill) to the last, as for sessions.

    Args:
        model: A Transformers `*ForCausalLM`.
        clock: Source of time.
        eos_ids: Token ids that end a text; empty to ignore all.
    """

    def __init__(self, model: Any, clock: Clock, eos_ids: tuple[int, ...] = ()) -> None:
        self._model = model
        self._clock = clock
        self._eos_ids = eos_ids

    @property
    def name(self) -> str:
        return TRANSFORMERS

    def measure(self, request: Request, max_new_tokens: int) -> Measurement:
        """Decode one prompt."""
        stamps = _Timestamps(self._clock)
        output = self._generate(request.tokens, max_new_tokens, stamps)
        return Measurement(
            output=output,
            seconds=stamps.seconds[-1] - stamps.seconds[0],
            emitted=len(stamps.seconds) - 1,
        )

    def _generate(
        self, tokens: tuple[int, ...], max_new_tokens: int, stamps: _Timestamps
    ) -> tuple[int, ...]:
        from transformers import GenerationConfig, StoppingCriteriaList

        prompt = torch.tensor([tokens], device=self._model.device)  # [1, prompt]
        # The checkpoint's own settings (penalties, other stop tokens) must not leak in.
        self._model.generation_config = GenerationConfig()
        config = GenerationConfig(
            do_sample=False,
            max_new_tokens=max_new_tokens,
            eos_token_id=list(self._eos_ids) or None,
            pad_token_id=0,
        )
        with torch.inference_mode():
            full = self._model.generate(
                prompt,
                attention_mask=torch.ones_like(prompt),
                generation_config=config,
                stopping_criteria=StoppingCriteriaList([stamps]),
            )
        return tuple(full[0, len(tokens) :].tolist())


class _Timestamps:
    """Reads the clock after each token; never stops."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self.seconds: list[float] = []

    def __call__(self, input_ids: torch.Tensor, scores: Any, **_: Any) -> torch.Tensor:
        self._clock.note("verify", 1)
        self.seconds.append(self._clock.boundary())
        return torch.zeros(input_ids.shape[0], dtype=torch.bool, device=input_ids.device)

"""What an environment is made of when `gymnasium.make` is given nothing else."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from draftgym.clock import WallClock
from draftgym.decoder.config import DrafterConfig, PairConfig
from draftgym.decoder.controllers import FixedController, RandomController
from draftgym.decoder.pair import load_pair
from draftgym.decoder.session import DecoderSession
from draftgym.features import FeatureLayout
from draftgym.prompts import PromptSource, load_prompts
from draftgym.state import Controller
from envs.interface import Session

_DEFAULT_SIZE = 8


def compose(
    session: Session | Callable[[], Session] | None,
    prompts: Sequence[Sequence[int]] | None,
    layout: FeatureLayout,
) -> tuple[Session, Sequence[Sequence[int]]]:
    """The given session and prompts, or the default pair and the bundled policy prompts.

    Args:
        session: From the caller: a session, something that makes one, or None.
        prompts: Token ids of each prompt, from the caller, or None.
        layout: Sizes the default session.

    Raises:
        ValueError: If only one of session and prompts is given, or the session may draft deeper
            or verify more than the layout can show.
    """
    if (session is None) != (prompts is None):
        missing = "prompts" if prompts is None else "session"
        raise ValueError(
            f"{missing}: missing; session and prompts are given together or not at all"
        )
    if session is not None and prompts is not None:
        made = session() if callable(session) else session
        for name in ("max_depth", "max_size"):
            allowed, shown = getattr(made, name), getattr(layout, name)
            if allowed > shown:
                raise ValueError(f"layout.{name}: {shown}, but the session allows {allowed}")
        return made, prompts
    return _default_pair(layout)


def _default_pair(layout: FeatureLayout) -> tuple[Session, Sequence[Sequence[int]]]:
    pair = load_pair(
        PairConfig(
            drafter=DrafterConfig(
                beam_width=layout.beam_width,
                max_depth=layout.max_depth,
                max_size=layout.max_size,
            )
        )
    )
    session = DecoderSession(
        pair,
        pair.new_drafter(),
        clock=WallClock(pair.device),
        max_depth=layout.max_depth,
        max_size=layout.max_size,
        history=layout.history,
    )
    texts = load_prompts([PromptSource()], "policy")
    return session, [pair.encode_prompt(prompt.turns) for prompt in texts]


def default_size_controller() -> Controller:
    """A fixed verification size."""
    return FixedController(0, _DEFAULT_SIZE)


def default_depth_controller(layout: FeatureLayout, seed: int | None, worker: int) -> Controller:
    """A depth drawn anew for every round, from a stream of the worker's own."""
    sequence = np.random.SeedSequence(seed, spawn_key=(worker, 1))
    entropy = int(sequence.generate_state(1)[0])
    return RandomController(entropy, layout.max_depth, layout.size_grid)

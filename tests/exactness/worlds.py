"""Tiny pairs that differ in everything a session could get wrong."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch

from draftgym.clock import FakeClock
from draftgym.decoder import linear
from draftgym.decoder.drafters.eagle3_config import Eagle3Config
from draftgym.decoder.drafters.eagle3_head import Eagle3Head
from draftgym.decoder.pair import DRAFTERS, ModelPair
from draftgym.decoder.session import DecoderSession
from tests.exactness.poison import PoisonedSession
from tests.tiny import HIDDEN, tiny_model, tiny_pair

DRAFTER_NAMES = ("hybrid", "eagle3", "lm_itself", "lm_cut", "ngram")
DRAWABLE = ("eagle3", "lm_itself", "lm_cut")


@dataclass(frozen=True, slots=True)
class World:
    """One pair and the limits of its sessions.

    Attributes:
        seed: Of the weights.
        vocab: Ids of the target.
        context: Most committed tokens.
        head_context: Positions of the draft head; drafting ends before the target's context.
        draft_vocab: Ids that the head can propose.
        width: Beam width, `W`.
        depth: Most passes, `D`.
        size: Most verified tokens, `V`.
        tied: Every logit occurs twice.
        packed: Weights packed as in real decoding, which costs models this small more than it
            saves.
    """

    seed: int
    vocab: int = 64
    context: int = 160
    head_context: int = 170
    draft_vocab: int = 64
    width: int = 4
    depth: int = 8
    size: int = 32
    tied: bool = False
    packed: bool = False


WORLDS = (
    World(1, depth=6, packed=True),
    World(2, context=96, head_context=60, draft_vocab=40, width=2, depth=5, size=116),
    World(3, width=1, depth=6, size=6),
    World(4, vocab=16, draft_vocab=11, context=90, width=3, depth=3, size=5),
    World(5, context=128, head_context=138, width=4, depth=6, size=116, tied=True),
)


def build_pair(world: World) -> ModelPair:
    """The pair of a world, with a head that knows a part of the vocabulary."""
    with _packing(world.packed):
        return _build_pair(world)


@contextmanager
def _packing(packed: bool) -> Iterator[None]:
    chosen = linear.can_pack
    linear.can_pack = chosen if packed else lambda weight: False
    try:
        yield
    finally:
        linear.can_pack = chosen


def _build_pair(world: World) -> ModelPair:
    model = tiny_model(world.seed, world.vocab, world.context)
    if world.tied:
        half = world.vocab // 2
        with torch.no_grad():
            model.lm_head.weight[half:] = model.lm_head.weight[:half]
    pair = tiny_pair(
        world.seed, beam_width=world.width, max_depth=world.depth, context=world.context,
        eos=frozenset(), model=model,
    )  # fmt: skip
    pair.head = _head(world)
    pair.head.pack()
    return pair


def _head(world: World) -> Eagle3Head:
    torch.manual_seed(world.seed + 1000)
    config = Eagle3Config(
        hidden_size=HIDDEN,
        intermediate_size=48,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=8,
        rope_theta=10000.0,
        rms_norm_eps=1e-6,
        target_vocab_size=world.vocab,
        draft_vocab_size=world.draft_vocab,
        feature_layers=(0, 1),
        max_position_embeddings=world.head_context,
    )
    head = Eagle3Head(config)
    known = torch.randperm(world.vocab)[: world.draft_vocab].sort().values
    head.set_vocabulary(known)
    return head.eval().requires_grad_(False)


def new_drafter(pair: ModelPair, name: str) -> Any:
    """A drafter of `DRAFTER_NAMES`; `lm_cut` is the target's first layer."""
    if not name.startswith("lm"):
        return DRAFTERS[name](pair)
    target: Any = pair.target
    pair.draft_model = target if name == "lm_itself" else target.first_layers(1)
    return DRAFTERS["lm"](pair)


def new_session(pair: ModelPair, world: World, name: str, **options: Any) -> DecoderSession:
    """A session whose stale memory is poison."""
    return PoisonedSession(
        pair,
        new_drafter(pair, name),
        clock=FakeClock(),
        max_depth=world.depth,
        max_size=world.size,
        **options,
    )

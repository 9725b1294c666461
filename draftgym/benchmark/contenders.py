"""Who competes in an evaluation, each as a method to measure."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial

from draftgym.benchmark.config import Cell, EvaluateConfig, Peer
from draftgym.benchmark.methods import HuggingFaceMethod, SessionMethod
from draftgym.benchmark.peers import assisted, prompt_lookup
from draftgym.benchmark.reference import Reference
from draftgym.benchmark.summary import PLAIN, POLICY
from draftgym.clock import Clock
from draftgym.controllers import rule_named
from draftgym.controllers.tuning import Tuning
from draftgym.decoder.controllers import FixedController, PlainController
from draftgym.decoder.pair import ModelPair
from draftgym.decoder.session import DecoderSession
from draftgym.errors import ConfigurationError
from draftgym.provenance import hardware
from draftgym.runtime import load_controller
from draftgym.state import MeasuredCosts

CONTROL = "plain, once more"
"""Must come out no different from plain."""

CostsOf = Callable[[DecoderSession, Sequence[int]], MeasuredCosts]
"""What a learned policy is told about this machine: of a session and a size grid."""


class Contenders:
    """Makes methods of one pair; those with the same limits share a session.

    Args:
        config: Of the evaluation.
        pair: Decodes.
        clock: Times it.
        tuning: Of published rules, if any compete.
    """

    def __init__(
        self, config: EvaluateConfig, pair: ModelPair, clock: Clock, tuning: Tuning | None
    ) -> None:
        self._config, self._pair, self._clock, self._tuning = config, pair, clock, tuning
        drafter = config.pair.drafter
        self._session = self._new_session(drafter.max_depth, drafter.max_size, 8)
        if tuning is not None:
            self._session.costs = tuning.space.ratios

    def plain(self, name: str = PLAIN) -> SessionMethod:
        """Plain decoding, without a drafter."""
        session = DecoderSession(self._pair, None, clock=self._clock)
        return SessionMethod(name, session, PlainController())

    def control(self) -> list[SessionMethod]:
        """Plain decoding under another name, if the configuration wants it."""
        return [self.plain(CONTROL)] if self._config.control else []

    def cell(self, cell: Cell) -> SessionMethod:
        """A fixed cell."""
        return SessionMethod(cell.name, self._session, FixedController(cell.depth, cell.size))

    def rules(self) -> list[SessionMethod]:
        """Tuned rules but fixed cells, which compete by name."""
        if self._tuning is None:
            return []
        space, seed = self._tuning.space, self._config.seeds.order
        return [
            SessionMethod(
                rule_named(rule.name).title, self._session, partial(rule.controller, space, seed)
            )
            for rule in self._tuning.rules
            if rule.name != "fixed"
        ]

    def learned(self, costs_of: CostsOf) -> list[SessionMethod]:
        """The policy, and those beside it.

        Args:
            costs_of: Tells them about costs.
        """
        config = self._config
        paths = {POLICY: config.policy} if config.policy is not None else {}
        paths |= {config.named(path): path for path in config.beside}
        return [self._learned(name, path, costs_of) for name, path in paths.items()]

    def peers(self, reference: Reference) -> list[HuggingFaceMethod]:
        """Transformers' own decoding, as far as the configuration wants it.

        Args:
            reference: The target in Transformers; only loaded if there are peers.
        """
        if not self._config.peers:
            return []
        model, stops = reference.model, tuple(sorted(self._pair.generation.eos_token_ids))
        layers = self._config.assistant_layers
        makers: dict[Peer, Callable[[], HuggingFaceMethod]] = {
            "generate": lambda: HuggingFaceMethod(model, self._clock, stops),
            "prompt_lookup": lambda: prompt_lookup(model, self._clock, stops),
            "assistant": lambda: assisted(model, self._clock, stops, layers=layers),
        }
        try:
            return [makers[peer]() for peer in self._config.peers]
        except ConfigurationError as error:
            raise ConfigurationError(f"assistant_layers: {error}") from error

    def _learned(self, name: str, path: str, costs_of: CostsOf) -> SessionMethod:
        pair = self._pair
        machine = hardware(pair.device, pair.dtype)
        controller = load_controller(path, pair.fingerprint(), machine)
        layout = controller.layout
        session = self._new_session(layout.max_depth, layout.max_size, layout.history)
        session.costs = costs_of(session, layout.size_grid)
        return SessionMethod(name, session, controller)

    def _new_session(self, max_depth: int, max_size: int, history: int) -> DecoderSession:
        return DecoderSession(
            self._pair,
            self._pair.new_drafter(),
            clock=self._clock,
            max_depth=max_depth,
            max_size=max_size,
            history=history,
        )

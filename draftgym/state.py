"""What a controller may look at: plain numbers and numpy arrays, no torch.

The session fills these; `draftgym.features` turns them into observations; rules, learned
policies and environments read the same objects.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

Float32Array = NDArray[np.float32]


@dataclass(frozen=True, slots=True)
class RoundRecord:
    """One finished draft-then-verify round.

    Attributes:
        depth: Draft-model passes made.
        nodes: Nodes in the draft tree when the size was chosen.
        requested_size: Verification size asked for, before clamping.
        size: Drafted tokens verified (root not counted); 0 is a plain decoding step.
        accepted: Drafted tokens kept and emitted.
        tokens: Emitted token ids, in order, at most `accepted + 1`; shorter when a stop or
            the budget cuts the block.
        context_tokens: Committed tokens before the round, root included.
        uningested_tokens: Committed tokens the drafter had not seen before the round.
        clamped: The round could not honour the request (budget, context or tree size).
        draft_seconds: All draft passes and free proposals.
        pass_seconds: Seconds of each draft pass, `depth` of them.
        verify_seconds: Target pass and acceptance.
        commit_seconds: Cache compaction and drafter commit.
        policy_seconds: Features and decisions, zero for fixed controllers.
        seconds: Whole round between two synchronised boundaries; what a user waits for.
        decisions: Decisions charged to the policy; zero for fixed controllers.
    """

    depth: int
    nodes: int
    requested_size: int
    size: int
    accepted: int
    tokens: tuple[int, ...]
    context_tokens: int
    uningested_tokens: int
    clamped: bool
    draft_seconds: float
    pass_seconds: tuple[float, ...]
    verify_seconds: float
    commit_seconds: float
    policy_seconds: float
    seconds: float
    decisions: int = 0

    @property
    def emitted(self) -> int:
        """Tokens emitted by the round."""
        return len(self.tokens)


@dataclass(slots=True)
class History:
    """Acceptance of the last rounds of one sequence, newest last.

    Args:
        length: Rounds kept.
    """

    length: int = 8
    accepted: list[int] = field(default_factory=list)
    drafted: list[int] = field(default_factory=list)
    verified: list[int] = field(default_factory=list)
    rounds: int = 0

    def append(self, accepted: int, drafted: int, verified: int) -> None:
        """Add one round: drafted tokens accepted, draft passes made, drafted tokens verified."""
        for values, value in (
            (self.accepted, accepted),
            (self.drafted, drafted),
            (self.verified, verified),
        ):
            values.append(value)
            del values[: -self.length]
        self.rounds += 1


@dataclass(frozen=True, slots=True)
class MeasuredCosts:
    """Cost ratios measured once per run on this machine, for the observation.

    Attributes:
        draft_pass_over_plain: One later draft pass over one plain decoding step.
        verify_slope_over_plain: Extra cost per verified token over one plain decoding step.
    """

    draft_pass_over_plain: float = 0.0
    verify_slope_over_plain: float = 0.0


class Confidence(NamedTuple):  # one is made at every decision; a frozen dataclass costs twice
    """What the drafter believes, read from the device in one transfer.

    Attributes:
        frontier_scores: Cumulative log-probabilities of the frontier, descending, at most W.
        entropy: Entropy (nats) of the next-token law at the best expanded node.
        margin: Difference of its two largest probabilities.
        node_scores: Cumulative log-probabilities of all nodes, descending.
    """

    frontier_scores: Sequence[float]
    entropy: float
    margin: float
    node_scores: Sequence[float]


class ReadConfidence(Protocol):
    """Reads the device once and returns what the drafter believes."""

    def __call__(self, law: bool = True) -> Confidence:
        """Without the law, entropy and margin are 0 and cost nothing."""


NO_CONFIDENCE = Confidence((), 0.0, 0.0, ())
"""Before anything was drafted."""


@dataclass(slots=True)
class RoundState:
    """The running round, as a controller sees it before each decision.

    Attributes:
        depth: Draft passes made so far in this round.
        nodes: Nodes in the tree so far.
        max_depth: Passes that this round may make (configuration, budget, context).
        max_size: Drafted tokens that this round may verify (configuration, budget, context),
            not counting how many nodes exist.
        context_tokens: Committed tokens, root included.
        context_limit: Largest number of committed tokens allowed.
        remaining_tokens: Budget left.
        max_new_tokens: Budget of the request.
        uningested_tokens: Committed tokens the drafter has not seen (0 after the first pass).
        history: Acceptance of earlier rounds of this sequence.
        costs: Cost ratios of this machine.
        read_confidence: Reads the device once and returns what the drafter believes, entropy and
            margin of the next-token law only if they are wanted. Fixed controllers never call it,
            so they never pay for it.
    """

    depth: int
    nodes: int
    max_depth: int
    max_size: int
    context_tokens: int
    context_limit: int
    remaining_tokens: int
    max_new_tokens: int
    uningested_tokens: int
    history: History
    costs: MeasuredCosts
    read_confidence: ReadConfidence


class Controller(Protocol):
    """Decides draft depth and verification size; fixed cells, rules and policies alike."""

    @property
    def free(self) -> bool:
        """True when decisions read nothing: no features, no per-pass marks, nothing charged."""

    def reset(self) -> None:
        """Forget the last sequence; called at the start of each request."""

    def draft_again(self, state: RoundState) -> bool:
        """Whether to make (another) draft pass; asked before every pass, the first included."""

    def choose_size(self, state: RoundState) -> int:
        """Verification size `V >= 0` for the tree as it stands; clamped by the session."""

    def observe(self, record: RoundRecord) -> None:
        """Told of every finished round, outside the timed region."""

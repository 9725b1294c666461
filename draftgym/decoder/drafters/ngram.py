"""Look-ups in the sequence itself: the continuation of the last place with the same suffix.

Follows prompt look-up decoding (Saxena 2023) and Transformers' `PromptLookupCandidateGenerator`
in what is proposed, but goes on in its own proposal where the text ends, as loops do. The score
is the log of a survival estimate: look-ups are replayed on the committed text as it grows, so a
match length that kept predicting the next token here is trusted here. Nothing depends on which
drafts were made or verified.
"""

from __future__ import annotations

import math
from collections import defaultdict

from draftgym.decoder.drafters.base import Committed
from draftgym.decoder.rules.base import Rule
from draftgym.decoder.tree import DraftTree

PRIOR_WEIGHT = 4.0
"""Trials that the prior survival counts for."""

HALF_DISTANCE_TOKENS = 512
"""Distance at which the prior survival of a match is halved."""

FIRST_SCALE, LATER_SCALE, DEEP_SCALE, DEEP_STEP = 0.7, 0.42, 0.15, 8
"""Calibration: scales of the log-survival of the first token, of the steps after it, and of those
beyond `DEEP_STEP`. A look-up that was right so far goes on more often than independent steps
would (docs/log.md)."""


class NgramDrafter:
    """Free proposals only: no passes, one chain.

    Args:
        cap: Most tokens proposed.
        max_match: Longest suffix looked up; shorter ones are tried when it is not found.
    """

    name = "ngram"
    draws = False
    max_depth = 0
    feature_layers: tuple[int, ...] = ()
    context_limit = 1 << 30

    def __init__(self, cap: int = 32, max_match: int = 8) -> None:
        self.max_nodes = cap
        self._max_match = max_match
        self._follow_up: dict[tuple[int, ...], int] = {}
        self._hits: dict[int, int] = defaultdict(int)
        self._trials: dict[int, int] = defaultdict(int)
        self._indexed = 0
        self._found: tuple[int, int] | None = None  # look-up at `_indexed`

    def start(self, committed: Committed, rule: Rule) -> None:
        self._committed = committed
        self._follow_up.clear()
        self._hits.clear()
        self._trials.clear()
        self._indexed, self._found = 0, None

    @property
    def uningested(self) -> int:
        return len(self._committed.ids) - self._indexed

    def _look_up(self, end: int) -> tuple[int, int] | None:
        """Longest suffix of `ids[:end]` seen before: its length and where it went on."""
        ids = self._committed.ids
        for length in range(min(self._max_match, end), 0, -1):
            position = self._follow_up.get(tuple(ids[end - length : end]))
            if position is not None:
                return length, position
        return None

    def _ingest(self) -> None:
        ids = self._committed.ids
        for end in range(self._indexed, len(ids)):
            # The last round's proposal was the look-up at its end.
            found = self._found if end == self._indexed else self._look_up(end)
            if found is not None:
                self._trials[found[0]] += 1
                self._hits[found[0]] += ids[found[1]] == ids[end]
            # Suffixes ending before `end` go on at `end`; the newest place wins.
            for length in range(1, min(self._max_match, end) + 1):
                self._follow_up[tuple(ids[end - length : end])] = end
        self._indexed = len(ids)
        self._found = self._look_up(len(ids))

    def _log_survival(self, match: int, distance: int) -> float:
        """Log of a smoothed probability that a look-up of this match and distance is right."""
        prior = match / (match + 1.0) * math.exp2(-distance / HALF_DISTANCE_TOKENS)
        hits, trials = self._hits[match], self._trials[match]
        survival = (hits + PRIOR_WEIGHT * prior) / (trials + PRIOR_WEIGHT)
        return math.log(min(survival, 1.0 - 1e-6))

    def propose(self, tree: DraftTree, max_depth: int) -> None:
        self._ingest()
        ids = self._committed.ids
        found, count = self._found, min(max_depth, self.max_nodes)
        if found is None or count <= 0:
            return
        match, position = found
        distance = len(ids) - position
        chain = ids[position : position + count]
        while len(chain) < count:  # past the end of the text a look-up goes on in itself
            chain.append(chain[-distance])
        scores, total = [], 0.0
        # Each agreeing token lengthens the match, up to the longest that is told apart.
        longest = max(0, self._max_match - match)
        steps = [self._log_survival(match + step, distance) for step in range(longest + 1)]
        for step in range(count):
            scale = FIRST_SCALE if not step else LATER_SCALE if step <= DEEP_STEP else DEEP_SCALE
            total += scale * steps[min(step, longest)]
            scores.append(total)
        tree.add_chain(chain, scores)

    def expand(self, tree: DraftTree) -> None:
        raise RuntimeError("the ngram drafter makes no draft passes: depth is always 0")

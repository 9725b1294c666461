"""Look-ups and a draft head in one tree: the text repeats itself, or the head guesses.

The look-up's continuation is in the tree before the first pass, so a round without a pass still
speculates. A pass adds the head's children; a path that both propose is one node with the higher
score (`growth.grow`). Both scores estimate log-survival, so one order ranks them: look-ups are
calibrated (`ngram`), the head's own log-probabilities need no correction.
"""

from __future__ import annotations

from draftgym.decoder.drafters.base import Committed
from draftgym.decoder.drafters.eagle3 import Eagle3Drafter
from draftgym.decoder.drafters.ngram import NgramDrafter
from draftgym.decoder.rules.base import Rule
from draftgym.decoder.tree import DraftTree


class HybridDrafter:
    """An n-gram continuation and a model's tree, verified in one pass.

    Args:
        free: Makes free proposals.
        model: Makes draft passes.
    """

    name = "hybrid"
    draws = False

    def __init__(self, free: NgramDrafter, model: Eagle3Drafter) -> None:
        self.free, self.model = free, model
        self.max_depth = model.max_depth
        self.max_nodes = free.max_nodes + model.max_nodes
        self.feature_layers = model.feature_layers
        self.context_limit = model.context_limit

    def start(self, committed: Committed, rule: Rule) -> None:
        self.free.start(committed, rule)
        self.model.start(committed, rule)

    @property
    def uningested(self) -> int:
        return self.model.uningested

    def propose(self, tree: DraftTree, max_depth: int) -> None:
        self.free.propose(tree, max_depth)

    def expand(self, tree: DraftTree) -> None:
        self.model.expand(tree)

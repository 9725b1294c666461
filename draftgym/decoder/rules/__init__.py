"""Verification rules: which drafted tokens are kept, and how drafters rank what they draft."""

from __future__ import annotations

from collections.abc import Callable

from draftgym.decoder.config import SamplingConfig
from draftgym.decoder.rules.base import IdenticalRule, Rule, Verdict
from draftgym.decoder.rules.chain import ChainRejectionRule
from draftgym.decoder.rules.coupled import CoupledRule
from draftgym.decoder.rules.greedy import GreedyRule
from draftgym.decoder.rules.rejection import RejectionRule

RULES: dict[str, Callable[[SamplingConfig], Rule]] = {
    "greedy": lambda sampling: GreedyRule(),
    "coupled": CoupledRule,
    "rejection": RejectionRule,
    "chain_rejection": ChainRejectionRule,
}


def new_rule(sampling: SamplingConfig) -> Rule:
    """The rule that a configuration names."""
    return RULES[sampling.rule_name](sampling)


__all__ = ["RULES", "IdenticalRule", "Rule", "Verdict", "new_rule"]

"""All published rules, one line each, in the order of reports."""

from __future__ import annotations

from draftgym.controllers.bandits import Exp3Rule, Ucb1Rule
from draftgym.controllers.base import Rule
from draftgym.controllers.c2t import C2TRule
from draftgym.controllers.confidence import ConfidenceRule
from draftgym.controllers.disco import DiscoRule
from draftgym.controllers.dynamic_depth import DynamicDepthRule
from draftgym.controllers.entropy import AdaEdlRule, SvipRule
from draftgym.controllers.fixed import FixedRule, RandomRule
from draftgym.controllers.gammatune import GammaTuneRule
from draftgym.controllers.heuristic import HeuristicRule
from draftgym.controllers.look_up import LookUpRule
from draftgym.controllers.specdecpp import SpecDecRule
from draftgym.controllers.survival import SurvivalRule
from draftgym.controllers.tapout import TapOutRule

RULES: dict[str, Rule] = {
    rule.name: rule
    for rule in (
        FixedRule(),
        RandomRule(),
        LookUpRule(),
        HeuristicRule(),
        ConfidenceRule(),
        SvipRule(),
        AdaEdlRule(),
        DynamicDepthRule(),
        GammaTuneRule(),
        Ucb1Rule(),
        Exp3Rule(),
        TapOutRule(),
        SurvivalRule(),
        DiscoRule(),
        SpecDecRule(),
        C2TRule(),
    )
}
"""By name."""


def rule_named(name: str) -> Rule:
    """The rule of a name.

    Raises:
        ValueError: If there is none; names those that there are.
    """
    if name not in RULES:
        raise ValueError(f"unknown rule {name!r}; accepted: {', '.join(RULES)}")
    return RULES[name]

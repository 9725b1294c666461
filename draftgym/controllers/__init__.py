"""Published rules that choose draft depth and verification size, with what tunes them."""

from draftgym.controllers.base import Fitted, RoundCosts, Rule, Settings, Space
from draftgym.controllers.registry import RULES, rule_named
from draftgym.controllers.tuning import TunedRule, tune

__all__ = [
    "RULES",
    "Fitted",
    "RoundCosts",
    "Rule",
    "Settings",
    "Space",
    "TunedRule",
    "rule_named",
    "tune",
]

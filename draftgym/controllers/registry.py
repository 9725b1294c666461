"""All published rules, one line each, in the order of reports."""

from __future__ import annotations

from draftgym.controllers.base import Rule
from draftgym.controllers.fixed import FixedRule, RandomRule

RULES: dict[str, Rule] = {
    rule.name: rule
    for rule in (
        FixedRule(),
        RandomRule(),
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

"""The question whether a combination can exist."""

from __future__ import annotations

from torchsmith.facts.files import Facts
from torchsmith.resolve.build_rules import BUILD_RULES
from torchsmith.resolve.combination import Clash, Combination
from torchsmith.resolve.rules import RULES
from torchsmith.resolve.stack import stack_rule


def clashes(facts: Facts, asked: Combination) -> tuple[Clash, ...]:
    """Every rule this combination breaks, always in the same order."""
    return tuple(
        clash for rule in (*RULES, stack_rule, *BUILD_RULES) for clash in rule(facts, asked)
    )

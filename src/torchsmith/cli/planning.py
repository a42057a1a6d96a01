"""From the command line to a plan: what `plan`, `doctor` and `build` have in common."""

from __future__ import annotations

from typing import TYPE_CHECKING, NoReturn

if TYPE_CHECKING:
    from collections.abc import Sequence

    from torchsmith.host.models import Host
    from torchsmith.plan.models import Plan
    from torchsmith.recipe.load import LoadedRecipe
    from torchsmith.resolve.models import Refusal, Resolution


def resolutions(
    loaded: LoadedRecipe, host: Host, *, json: bool, some: bool = False, variant: str = ""
) -> list[Resolution]:
    """Resolve every variant; where one cannot exist, show why and end the command.

    With `some`, the variants that can exist are enough; with `variant`, only that one is looked at.
    """
    from torchsmith.facts.files import shipped
    from torchsmith.recipe.matrix import expand, named
    from torchsmith.resolve.models import Refusal
    from torchsmith.resolve.resolve import resolve

    facts = shipped()
    variants = [named(loaded.recipe, variant)] if variant else expand(loaded.recipe)
    outcomes = [resolve(item, facts, host, loaded.files) for item in variants]
    refused = [item for item in outcomes if isinstance(item, Refusal)]
    resolved = [item for item in outcomes if not isinstance(item, Refusal)]
    if refused and not (some and resolved):
        _refuse(refused, len(outcomes), json=json)
    return resolved


def make(
    loaded: LoadedRecipe, host: Host, *, json: bool, some: bool = False, variant: str = ""
) -> Plan:
    """Plan every variant, or one; or end the command as `resolutions` does."""
    from torchsmith import __version__
    from torchsmith.facts.files import shipped
    from torchsmith.plan.build import make_plan

    resolved = resolutions(loaded, host, json=json, some=some, variant=variant)
    return make_plan(loaded.recipe, resolved, shipped(), __version__, name=variant)


def _refuse(refused: Sequence[Refusal], count: int, *, json: bool) -> NoReturn:
    from torchsmith.cli.output import print_json
    from torchsmith.cli.show_plan import show_refusals
    from torchsmith.errors import ConflictError
    from torchsmith.plan.models import as_json

    if json:
        print_json({"refused": as_json(tuple(refused))})
    else:
        show_refusals(refused)
    subject = (
        "this cannot exist" if count == 1 else f"{len(refused)} of {count} variants cannot exist"
    )
    raise ConflictError(subject, "Change the recipe as said above; nothing was written.")

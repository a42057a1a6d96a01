"""From the command line to a plan: what `plan`, `doctor`, `build` and others have in common."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Iterator
from typing import TYPE_CHECKING

from torchsmith.cli.output import print_json

if TYPE_CHECKING:
    from torchsmith.engine.door import Wanted
    from torchsmith.engine.store import Store
    from torchsmith.host.models import Host
    from torchsmith.plan.models import Plan
    from torchsmith.recipe.load import LoadedRecipe
    from torchsmith.resolve.models import Resolution


def resolutions(loaded: LoadedRecipe, host: Host) -> list[Resolution]:
    """Resolve every variant; where one cannot exist, show why and end the command."""
    from torchsmith.engine.door import resolutions as resolved

    with _refusals_shown(json=False):
        return resolved(loaded, host)


def make(
    loaded: LoadedRecipe,
    host: Host,
    *,
    json: bool,
    store: Store | None = None,
    wanted: Wanted | None = None,
) -> Plan:
    """Plan a recipe through the one door; or end the command as `resolutions` does."""
    from torchsmith.engine.door import plan_recipe
    from torchsmith.engine.store import Store

    with _refusals_shown(json=json):
        return plan_recipe(loaded, host, store or Store(), wanted, note)


def note(text: str) -> None:
    """Say what was decided for reasons outside the recipe."""
    print(f"!  {text}", file=sys.stderr)


@contextlib.contextmanager
def _refusals_shown(*, json: bool) -> Iterator[None]:
    from torchsmith.engine.door import RefusedError

    try:
        yield
    except RefusedError as refused:
        from torchsmith.cli.show_plan import show_refusals
        from torchsmith.plan.models import as_json

        if json:
            print_json({"refused": as_json(refused.refusals)})
        else:
            show_refusals(refused.refusals)
        raise

"""`torchsmith doctor`."""

from __future__ import annotations

from typing import Annotated

import typer

from torchsmith.cli import wishes


def doctor(
    recipe: wishes.RecipeArgument = None,
    preset: wishes.Preset = None,
    host: wishes.HostFile = None,
    json: Annotated[bool, typer.Option("--json", help="For scripts, and for --host.")] = False,
) -> None:
    """Look at this machine and say what a recipe would miss here.

    Ends with 0 if everything is there, 4 if something must be mended first.
    """
    from torchsmith.cli import planning
    from torchsmith.cli.output import print_json
    from torchsmith.errors import HostError
    from torchsmith.facts.files import shipped
    from torchsmith.plan.models import as_json
    from torchsmith.resolve.verdicts import Needs, examine, worst

    here = wishes.host_for(host)
    facts = shipped()
    resolution = None
    needs = Needs()
    if recipe is not None or preset is not None:
        loaded = wishes.loaded(recipe, preset, {})
        if host is None:
            here = wishes.with_torches(here, loaded)
        made = planning.make(loaded, here, json=json, some=True)
        resolution = made.variants[0]
        needs = Needs(
            memory_mb=max((step.cost.memory_mb for step in made.steps), default=0),
            disk_mb=sum(step.cost.disk_mb for step in made.steps),
            images=any(step.kind == "image" for step in made.steps),
        )
    lines = examine(here, facts, resolution, needs)
    rating = worst(lines)
    if json:
        verdicts = as_json(tuple(lines))
        print_json({"host": here.model_dump(mode="json"), "verdicts": verdicts, "verdict": rating})
    else:
        from torchsmith.cli.show_doctor import show_verdicts

        show_verdicts(lines)
    if rating == "fail":
        raise HostError(
            "this machine cannot do it as it is"
            if resolution
            else "something essential is missing",
            "The lines marked x say what mends each.",
        )

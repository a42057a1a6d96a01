"""`torchsmith doctor`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from typer import Argument, Option

from torchsmith.cli import options, planning
from torchsmith.cli.output import print_checks, print_json
from torchsmith.errors import HostError, UsageError

if TYPE_CHECKING:
    from torchsmith.checks import Check, Rating


def doctor(
    recipe: Annotated[
        Path | None, Argument(help="A recipe; with --env an environment's folder, or its python.")
    ] = None,
    preset: options.Preset = None,
    host: options.HostFile = None,
    env: Annotated[
        bool, Option("--env", help="Look at an installed torch, by default the active one.")
    ] = False,
    workers: Annotated[
        int | None, Option(min=0, help="With --env: DataLoader workers; default: cores.")
    ] = None,
    timeout: Annotated[
        float, Option(min=1, help="With --env: seconds one import may take.")
    ] = 60.0,
    json: Annotated[bool, Option("--json", help="For scripts, and for --host.")] = False,
) -> None:
    """Say what a recipe lacks on this machine, or check an installed torch.

    Ends with 0 if everything is there, 4 if something must be mended first.
    """
    if not env:
        options.unused("without --env", "workers", "timeout")
    if env:
        _environment(recipe, preset, host, workers=workers, timeout=timeout, json=json)
        return
    from torchsmith.engine.door import Wanted
    from torchsmith.facts.files import shipped
    from torchsmith.resolve.verdicts import Needs, examine

    here = planning.read_machine(host, brief=False)
    facts = shipped()
    resolution = None
    needs = Needs()
    if recipe is not None or preset is not None:
        loaded = planning.read_recipe(recipe, preset)
        if host is None:
            here = planning.with_torches(here, loaded)
        made = planning.make(
            loaded,
            here,
            json=json,
            wanted=Wanted(some=True, elsewhere=host is not None, must=False),
        )
        resolution = made.variants[0]
        needs = Needs(
            memory_mb=max((step.cost.memory_mb for step in made.steps), default=0),
            disk_mb=sum(step.cost.disk_mb for step in made.steps),
            images=any(step.kind in ("base", "image") for step in made.steps),
        )
    checks = examine(here, facts, resolution, needs)
    if _show(checks, {"host": here.model_dump(mode="json")}, json=json) == "fail":
        raise HostError(
            "this machine cannot do it as it is"
            if resolution
            else "something essential is missing",
            "The lines marked x say what mends each.",
        )


def _environment(
    place: Path | None,
    preset: str | None,
    host: Path | None,
    *,
    workers: int | None,
    timeout: float,
    json: bool,
) -> None:
    from torchsmith.diagnose.environment.examine import examine
    from torchsmith.diagnose.environment.read import read
    from torchsmith.facts.files import shipped

    if preset is not None:
        raise UsageError("--env and --preset do not go together", "Leave one of them out.")
    machine = planning.read_machine(host) if host is not None else None
    seen = read(place, host=machine, workers=workers, timeout=timeout)
    about = {"python": seen.python, "torch": seen.facts.version or seen.torches[0].version}
    if not json:
        print(seen.python)
    if _show(examine(seen, shipped()), about, json=json) == "fail":
        raise HostError(
            "this torch, or what was built against it, cannot work as it is",
            "The lines marked x say what mends each.",
        )


def _show(checks: Sequence[Check], about: Mapping[str, object], *, json: bool) -> Rating:
    """Print what was found, and return how it is rated."""
    from torchsmith.checks import worst

    rating = worst(checks)
    if json:
        import msgspec

        print_json({**about, "checks": msgspec.to_builtins(checks), "rating": rating})
    else:
        print_checks(checks)
    return rating

"""`torchsmith doctor`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from typer import Argument, Option

from torchsmith.cli import options, planning
from torchsmith.cli.output import print_json
from torchsmith.errors import HostError, UsageError


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
    if env:
        _environment(recipe, preset, host, workers=workers, timeout=timeout, json=json)
        return
    from torchsmith.engine.door import Wanted
    from torchsmith.facts.files import shipped
    from torchsmith.findings import worst
    from torchsmith.plan.models import as_json
    from torchsmith.resolve.verdicts import Needs, examine

    here = options.host_for(host)
    facts = shipped()
    resolution = None
    needs = Needs()
    if recipe is not None or preset is not None:
        loaded = options.loaded(recipe, preset, {})
        if host is None:
            here = options.with_torches(here, loaded)
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
    from torchsmith.findings import worst

    if preset is not None:
        raise UsageError("--env and --preset do not go together", "Leave one of them out.")
    machine = options.host_for(host) if host is not None else None
    seen = read(place, host=machine, workers=workers, timeout=timeout)
    findings = examine(seen, shipped())
    rating = worst(findings)
    if json:
        import msgspec

        print_json(
            {
                "python": seen.python,
                "torch": seen.facts.version or seen.torches[0].version,
                "findings": msgspec.to_builtins(findings),
                "verdict": rating,
            }
        )
    else:
        from torchsmith.cli.show_doctor import show_findings

        show_findings(seen.python, findings)
    if rating == "fail":
        raise HostError(
            "this torch, or what was built against it, cannot work as it is",
            "The lines marked x say what mends each.",
        )

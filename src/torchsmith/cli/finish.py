"""`torchsmith finish`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

from typer import Argument, Option

from torchsmith.cli import options
from torchsmith.cli.output import print_json, tell


def finish(
    wheel: Annotated[list[Path], Argument(help="Wheels to finish.")],
    libraries: Annotated[
        Literal["vendor", "system", "wheels"],
        Option(
            help="Put those it needs into it; leave them to the system; or, for CUDA, require "
            "NVIDIA's wheels."
        ),
    ] = "vendor",
    label: Annotated[str, Option(help="Local version label it gets: cu126.sm86, or none.")] = "",
    no_strip: Annotated[
        bool, Option("--no-strip", help="Keep symbols and debug information.")
    ] = False,
    torch: Annotated[str, Option(help="Hold what was built against torch to this version.")] = "",
    pins: Annotated[
        Path | None, Option(help="Versions of NVIDIA's wheels, as `pip freeze` prints them.")
    ] = None,
    output: Annotated[
        Path | None, Option(help="Folder. Default: finished/ beside each wheel.")
    ] = None,
    experimental: Annotated[
        bool,
        Option(
            "--experimental", help="Also write each as a wheel variant, which is a draft (PEP 825)."
        ),
    ] = False,
    dry_run: Annotated[
        bool, Option("--dry-run", help="Say what would be done; write nothing.")
    ] = False,
    json: options.Json = False,
) -> None:
    """Make wheels that run on other machines: libraries, paths, tag, label.

    The wheels that are given stay as they are.
    """
    from msgspec import to_builtins

    from torchsmith.package.finish.design import Options
    from torchsmith.package.finish.finish import finish_wheels, lines, pins_in

    made = finish_wheels(
        wheel,
        output,
        Options(
            libraries=libraries,
            strip=not no_strip,
            label=label,
            torch=torch,
            pins=pins_in(pins) if pins else {},
        ),
        dry_run=dry_run,
        say=tell,
    )
    if experimental and not dry_run:
        from torchsmith.package.variant import write_variant

        for item in made:
            tell(f"as a variant: {write_variant(Path(item.result))}")
    if json:
        print_json({"wheels": [to_builtins(item) for item in made]})
        return
    for item in made:
        print("\n".join(lines(item)))

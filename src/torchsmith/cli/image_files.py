"""`torchsmith image render`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from torchsmith.cli import wishes


def render(
    recipe: wishes.RecipeArgument = None,
    preset: wishes.Preset = None,
    runtime: Annotated[
        str, typer.Option("--as", help="compose, apptainer or dockerfile.")
    ] = "dockerfile",
    start: Annotated[
        str, typer.Option("--from", help="With apptainer: the pushed image, or wheels.")
    ] = "",
    output: Annotated[
        Path | None, typer.Option("--output", "-o", help="Write the files into this folder.")
    ] = None,
    host: wishes.HostFile = None,
) -> None:
    """Write the images of a recipe for compose, Apptainer or docker build."""
    from torchsmith import __version__
    from torchsmith.cli import planning
    from torchsmith.cli.output import show_files
    from torchsmith.engine.door import Wanted
    from torchsmith.images.render import render as rendered

    loaded = wishes.loaded(recipe, preset, {})
    here = wishes.with_torches(wishes.host_for(host, brief=True), loaded)
    wanted = Wanted(elsewhere=host is not None, must=False)
    plan = planning.make(loaded, here, json=False, wanted=wanted)
    files = rendered(plan, loaded.recipe, runtime, __version__, start)
    show_files(files, output)

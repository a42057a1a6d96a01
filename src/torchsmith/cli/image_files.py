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
    json: wishes.Json = False,
) -> None:
    """Write the images of a recipe for compose, Apptainer or docker build."""
    from torchsmith import __version__
    from torchsmith.cli import planning
    from torchsmith.cli.output import print_json, show_files, write_tree
    from torchsmith.engine.door import Wanted
    from torchsmith.images.render import render as rendered

    loaded = wishes.loaded(recipe, preset, {})
    here = wishes.with_torches(wishes.host_for(host, brief=True), loaded)
    wanted = Wanted(elsewhere=host is not None, must=False)
    plan = planning.make(loaded, here, json=json, wanted=wanted)
    files = rendered(plan, loaded.recipe, runtime, __version__, start)
    if json:
        if output is not None:
            write_tree(output, files)
        print_json({"files": {name: content.decode() for name, content in files.items()}})
        return
    show_files(files, output)

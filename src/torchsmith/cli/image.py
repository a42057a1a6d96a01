"""`torchsmith image`: container images."""

from __future__ import annotations

import typer

from torchsmith.cli import image_build, image_files, registry

app = typer.Typer(help="Container images.", no_args_is_help=True, rich_markup_mode=None)
app.command("build")(image_build.build)
app.command("wheels")(image_build.wheels)
app.command("push")(registry.push)
app.command("pull")(registry.pull)
app.command("render")(image_files.render)

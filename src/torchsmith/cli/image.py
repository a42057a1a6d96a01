"""`torchsmith image`: container images."""

from __future__ import annotations

from torchsmith.cli import image_build, image_files, registry
from torchsmith.cli.help import App

app = App("Build, push, pull and write down container images.")
app.command("build")(image_build.build)
app.command("wheels")(image_build.wheels)
app.command("push")(registry.push)
app.command("pull")(registry.pull)
app.command("render")(image_files.render)

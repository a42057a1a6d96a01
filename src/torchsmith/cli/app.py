"""The command line itself: which commands there are."""

from __future__ import annotations

from typing import Annotated

import typer

from torchsmith import __version__
from torchsmith.cli import (
    bench,
    build,
    bundle,
    conda,
    diagnose,
    doctor,
    facts,
    finish,
    image,
    init,
    inspect,
    job,
    key,
    libtorch,
    log,
    parity,
    plan,
    publish,
    run,
    schema,
    serve,
    store,
    timeline,
    verify,
)

app = typer.Typer(
    name="torchsmith",
    help="From a recipe to the PyTorch you need: whether it can exist, and what would be done.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
    context_settings={"help_option_names": ["-h", "--help"]},
    epilog="Any command takes --debug, which shows the traceback behind an error.",
)


def _version(wanted: bool) -> None:
    if wanted:
        print(f"torchsmith {__version__}")
        raise typer.Exit


@app.callback()
def root(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Show the version.")
    ] = False,
) -> None:
    """From a recipe to the PyTorch you need: whether it can exist, and what would be done."""


app.command("init")(init.init)
app.command("plan")(plan.plan)
app.command("build")(build.build)
app.command("bundle")(bundle.bundle)
app.command("conda")(conda.conda)
app.command("doctor")(doctor.doctor)
app.command("verify")(verify.verify)
app.command("inspect")(inspect.inspect)
app.add_typer(key.app, name="key")
app.command("libtorch")(libtorch.libtorch)
app.command("finish")(finish.finish)
app.command("diagnose")(diagnose.diagnose)
app.add_typer(facts.app, name="facts")
app.add_typer(image.app, name="image")
app.command("run")(run.run)
app.add_typer(job.app, name="job")
app.command("schema")(schema.schema)
app.add_typer(store.app, name="store")
app.command("log")(log.log)
app.command("timeline")(timeline.timeline)
app.command("bench")(bench.bench)
app.command("parity")(parity.parity)
app.command("publish")(publish.publish)
app.command("yank")(publish.yank)
app.command("remove")(publish.remove)
app.command("serve")(serve.serve)

"""The command line itself: which commands there are."""

from __future__ import annotations

from collections.abc import Callable
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
    fits,
    guard,
    image,
    init,
    inspect,
    job,
    key,
    libtorch,
    lock,
    log,
    parity,
    plan,
    portal,
    publish,
    run,
    schema,
    serve,
    store,
    timeline,
    verify,
)
from torchsmith.cli.help import App

HELP = "From a recipe to the PyTorch you need: checked, planned, built, packaged, proven, shipped."

app = App(
    HELP,
    name="torchsmith",
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
    epilog="`torchsmith help COMMAND` explains one. Any command takes --debug, which shows the "
    "traceback behind an error.",
)


def _version(wanted: bool) -> None:
    if wanted:
        print(f"torchsmith {__version__}")
        raise typer.Exit


@app.callback(help=HELP)
def root(
    version: Annotated[
        bool,
        typer.Option("--version", "-V", callback=_version, is_eager=True, help="Show the version."),
    ] = False,
) -> None:
    """Take what goes before a command."""


# The commands in the order of the help, under its headings.
_SECTIONS: dict[str, dict[str, Callable[..., None] | App]] = {
    "Ask and plan": {
        "init": init.init,
        "plan": plan.plan,
        "doctor": doctor.doctor,
        "facts": facts.app,
        "schema": schema.schema,
    },
    "Build": {
        "lock": lock.lock,
        "build": build.build,
        "guard": guard.guard,
        "bundle": bundle.bundle,
        "log": log.log,
        "timeline": timeline.timeline,
        "diagnose": diagnose.diagnose,
        "store": store.app,
    },
    "Prove and package": {
        "verify": verify.verify,
        "inspect": inspect.inspect,
        "fits": fits.fits,
        "finish": finish.finish,
        "conda": conda.conda,
        "libtorch": libtorch.libtorch,
        "key": key.app,
    },
    "Publish": {
        "publish": publish.publish,
        "yank": publish.yank,
        "remove": publish.remove,
        "serve": serve.serve,
    },
    "Images and jobs": {"image": image.app, "run": run.run, "job": job.app},
    "Watch": {"portal": portal.portal},
    "Compare": {"bench": bench.bench, "parity": parity.parity},
}

for _section, _commands in _SECTIONS.items():
    for _name, _command in _commands.items():
        if isinstance(_command, App):
            app.add_typer(_command, name=_name, rich_help_panel=_section)
        else:
            app.command(_name, rich_help_panel=_section)(_command)

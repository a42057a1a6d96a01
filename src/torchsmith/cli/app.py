"""The command line itself: which commands there are."""

from __future__ import annotations

import importlib
import os
from collections.abc import Sequence
from typing import Annotated

import typer
from typer import Option

from torchsmith import __version__
from torchsmith.cli.help import App

HELP = "From a recipe to the PyTorch you need: checked, planned, built, packaged, proven, shipped."

# The commands in the order of the help, under its headings: which module of this room, and which
# name in it.
_SECTIONS: dict[str, dict[str, str]] = {
    "Ask and plan": {
        "init": "init.init",
        "plan": "plan.plan",
        "doctor": "doctor.doctor",
        "facts": "facts.app",
        "schema": "schema.schema",
        "config": "config.config",
    },
    "Build": {
        "lock": "lock.lock",
        "build": "build.build",
        "guard": "guard.guard",
        "bundle": "bundle.bundle",
        "log": "log.log",
        "timeline": "timeline.timeline",
        "diagnose": "diagnose.diagnose",
        "store": "store.app",
    },
    "Prove and package": {
        "verify": "verify.verify",
        "inspect": "inspect.inspect",
        "fits": "fits.fits",
        "finish": "finish.finish",
        "conda": "conda.conda",
        "libtorch": "libtorch.libtorch",
        "key": "key.app",
    },
    "Publish": {
        "publish": "publish.publish",
        "yank": "publish.yank",
        "remove": "publish.remove",
        "serve": "serve.serve",
    },
    "Images and jobs": {"image": "image.app", "run": "run.run", "job": "job.app"},
    "Watch": {"portal": "portal.portal"},
    "Compare": {"bench": "bench.bench", "parity": "parity.parity"},
}


def command_line(words: Sequence[str] = ()) -> App:
    """The command line; with words, only the command that they name: reading all takes long."""
    app = App(
        HELP,
        name="torchsmith",
        pretty_exceptions_enable=False,
        context_settings={"help_option_names": ["-h", "--help"]},
        epilog="`torchsmith help COMMAND` explains one. Any command takes --debug, which shows "
        "the traceback behind an error.",
    )
    app.callback(help=HELP)(_root)
    known = {name for commands in _SECTIONS.values() for name in commands}
    # A shell that completes a line asks by a variable.
    named = bool(words) and words[0] in known and "_TORCHSMITH_COMPLETE" not in os.environ
    for section, commands in _SECTIONS.items():
        for name, place in commands.items():
            if named and name != words[0]:
                continue
            module, _, attribute = place.partition(".")
            command = getattr(importlib.import_module(f"torchsmith.cli.{module}"), attribute)
            if isinstance(command, App):
                app.add_typer(command, name=name, rich_help_panel=section)
            else:
                app.command(name, rich_help_panel=section)(command)
    return app


def _version(wanted: bool) -> None:
    if wanted:
        print(f"torchsmith {__version__}")
        raise typer.Exit


def _root(
    version: Annotated[
        bool, Option("--version", "-V", callback=_version, is_eager=True, help="Show the version.")
    ] = False,
) -> None:
    """Take what goes before a command."""

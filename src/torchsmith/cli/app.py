"""The command line itself: its commands, and what `--help` prints of them.

Help has the commands in groups, whole sentences and no Python types.
"""

from __future__ import annotations

import importlib
import os
import re
from collections.abc import Callable, Iterable, Sequence
from typing import Annotated, Any, TypeVar

import typer
from typer import Option
from typer.core import TyperCommand, TyperGroup

from torchsmith import __version__
from torchsmith.cli.options import note_given
from torchsmith.cli.output import flush_streams, print_json_error
from torchsmith.errors import UsageError

Function = TypeVar("Function", bound=Callable[..., Any])
# How typer names the kinds of values, and how a person would.
_KINDS = {"str": "TEXT", "int": "N", "float": "NUMBER", "path": "PATH", "file": "PATH"}
_TYPE = re.compile(r" ?<(?:list\[)?([^<>\]]+)\]?>")


class Command(TyperCommand):
    """A command whose help names values and not types; it takes no empty value."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Refuse an empty value: an unset variable of a script would mean something else."""
        ours = args[: args.index("--")] if "--" in args else args
        for before, word in zip(["", *ours], ours, strict=False):
            if not word or (word.startswith("--") and word.endswith("=")):
                # The name before an empty word; the option itself where it is written `--name=`.
                name = word.rstrip("=") or (before if before.startswith("-") else "an argument")
                raise UsageError(
                    f"{name} has an empty value",
                    "Give it a value, or leave it out: is a variable unset?",
                )
        return super().parse_args(ctx, args)

    def invoke(self, ctx: Any) -> Any:
        """Run the command, which may ask what its command line names."""
        note_given(ctx)
        return super().invoke(ctx)

    def collect_usage_pieces(self, ctx: Any) -> list[str]:
        """Write arguments as `FILE` and `[FILE]`."""
        pieces = super().collect_usage_pieces(ctx)
        return [re.sub(r"\{(.*)\}", r"\1", piece).upper() for piece in pieces]

    def format_options(self, ctx: Any, formatter: Any) -> None:
        """Write the arguments and options."""
        _write_parameters(self.get_params(ctx), ctx, formatter)


class Group(TyperGroup):
    """Commands in the sections that `rich_help_panel` names, none of them cut short."""

    def invoke(self, ctx: Any) -> Any:
        """Run a command; with --json, report an unreadable command line in JSON too."""
        try:
            return super().invoke(ctx)
        except BrokenPipeError:
            # `torchsmith ... | head`: the reader has seen enough. click would call it a failure.
            flush_streams()
            raise typer.Exit(0) from None
        except Exception as error:
            # typer carries a copy of click: its errors are known by what they can do.
            if ctx.parent is None and hasattr(error, "format_message"):
                _reword(error)
                hint = f"`{ctx.command_path} help` explains the commands."
                print_json_error(error.format_message(), hint, 2)
            raise

    def format_options(self, ctx: Any, formatter: Any) -> None:
        """Write the options, then the commands."""
        _write_parameters(self.get_params(ctx), ctx, formatter)
        self.format_commands(ctx, formatter)

    def format_commands(self, ctx: Any, formatter: Any) -> None:
        """Write each command with the first paragraph of its help."""
        sections: dict[str, list[tuple[str, str]]] = {}
        for name in self.list_commands(ctx):
            command = self.get_command(ctx, name)
            if command is None or command.hidden:
                continue
            section = getattr(command, "rich_help_panel", None) or "Commands"
            text = (command.help or "").partition("\n\n")[0]
            sections.setdefault(str(section), []).append((name, " ".join(text.split())))
        wide = max((len(name) for rows in sections.values() for name, _ in rows), default=0)
        for section, rows in sections.items():
            with formatter.section(section):
                formatter.write_dl([(f"{name:<{wide}}", text) for name, text in rows])


class App(typer.Typer):
    """A group of commands with the help above."""

    def __init__(self, help: str, **options: Any) -> None:  # noqa: A002 - typer's own name
        super().__init__(
            cls=Group, help=help, no_args_is_help=True, rich_markup_mode=None, **options
        )

    def command(self, name: str | None = None, **options: Any) -> Callable[[Function], Function]:
        """Register a command."""
        return super().command(name, **{"cls": Command, **options})


def _reword(error: Any) -> None:
    """Take out what pydantic writes for programmers."""
    text = str(getattr(error, "message", ""))
    error.message = text.replace("Value error, ", "").replace("Input should be", "it must be")


def parameter_help(parameters: Iterable[Any], ctx: Any) -> dict[str, list[tuple[str, str]]]:
    """The names and the text of each parameter: arguments first, then options."""
    kinds: dict[str, list[tuple[str, str]]] = {"Arguments": [], "Options": []}
    for parameter in parameters:
        record = parameter.get_help_record(ctx)
        if record is None:
            continue
        names, text = record
        if parameter.param_type_name == "argument":
            kinds["Arguments"].append((_TYPE.sub("", names).upper(), text))
        else:
            names = _TYPE.sub(lambda found: f" {_kind(found[1])}", names)
            kinds["Options"].append((names, text))
    return kinds


def _write_parameters(parameters: Iterable[Any], ctx: Any, formatter: Any) -> None:
    for title, rows in parameter_help(parameters, ctx).items():
        if rows:
            with formatter.section(title):
                formatter.write_dl(rows)


def _kind(name: str) -> str:
    return _KINDS.get(name.removesuffix(" range"), name)


HELP = "From a recipe to the PyTorch you need: checked, planned, built, packaged, proven, shipped."

# The commands in the order of the help, under its headings: which module of this room, and which
# name in it.
_SECTIONS: dict[str, dict[str, str]] = {
    "Ask and plan": {
        "init": "init.init",
        "plan": "plan.plan",
        "doctor": "doctor.doctor",
        "facts": "facts.app",
        "schema": "init.schema",
        "config": "config.config",
    },
    "Build": {
        "lock": "lock.lock",
        "build": "build.build",
        "guard": "guard.guard",
        "bundle": "lock.bundle",
        "log": "log.log",
        "timeline": "log.timeline",
        "diagnose": "diagnose.diagnose",
        "store": "store.app",
    },
    "Prove and package": {
        "verify": "verify.verify",
        "inspect": "inspect.inspect",
        "fits": "fits.fits",
        "finish": "pack.finish",
        "conda": "pack.conda",
        "libtorch": "pack.libtorch",
        "key": "key.app",
    },
    "Publish": {
        "publish": "publish.publish",
        "yank": "publish.yank",
        "remove": "publish.remove",
        "serve": "portal.serve",
    },
    "Images and jobs": {"image": "image.app", "run": "run.run", "job": "job.app"},
    "Watch": {"portal": "portal.portal"},
    "Compare": {"bench": "bench.bench", "parity": "bench.parity"},
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

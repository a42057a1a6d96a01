"""The flags that stand for a recipe: one quick question needs no file."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, NamedTuple, get_type_hints

from typer import Argument, Option

from torchsmith.errors import UsageError

if TYPE_CHECKING:
    from typer import Context

RecipeArgument = Annotated[
    Path | None, Argument(help="The recipe file; default: ./recipe.toml, or the embedded one.")
]


def _preset_names(incomplete: str) -> list[str]:
    from torchsmith.recipe.presets import presets

    return [item.name for item in presets() if item.name.startswith(incomplete)]


Preset = Annotated[
    str | None,
    Option(
        "--preset",
        help="Start from a shipped recipe (`torchsmith init --list`).",
        autocompletion=_preset_names,
    ),
]
HostFile = Annotated[
    Path | None, Option("--host", help="Plan for the machine this file describes (doctor --json).")
]
Here = Annotated[
    bool, Option("--here", help="Build on this machine itself, not in the recipe's distribution.")
]
Online = Annotated[
    bool,
    Option("--online", help="Let steps use the network after fetching; else they have none."),
]
NoLock = Annotated[bool, Option("--no-lock", help="Ignore the lock file beside the recipe.")]


# What the command line names, by the parameter's name: not what is a default or a variable's.
_given: dict[str, str] = {}


def note_given(context: Context) -> None:
    """Remember which options and arguments this call names, for `unused`."""
    _given.clear()
    for item in context.command.params:
        name = item.name or ""
        source = context.get_parameter_source(name)
        if source is not None and source.name == "COMMANDLINE":
            argument = (getattr(item, "metavar", None) or name).upper()
            _given[name] = next((word for word in item.opts if word.startswith("--")), argument)


def unused(why: str, *names: str, hint: str = "Leave it out.") -> None:
    """Refuse options that do nothing here: whoever gave one counts on it."""
    for name in names:
        if name in _given:
            raise UsageError(f"{_given[name]} does nothing {why}", hint)


def _size(text: str | None) -> str | None:
    """Refuse a value that is no size before anything else is done."""
    from torchsmith.recipe.values import size_bytes

    try:
        size_bytes(text or "1G")
    except ValueError as error:
        raise UsageError(f"--memory: {error}", "Write a number and its unit.") from None
    return text


def _engine(name: str) -> str:
    """Refuse a container tool that nobody knows before anything else is done."""
    if name:
        from torchsmith.images.tools import check_name

        check_name(name)
    return name


Json = Annotated[bool, Option("--json", help="Print JSON, for scripts.")]
DryRun = Annotated[bool, Option("--dry-run", help="Say what would be done; do nothing.")]
OutputFolder = Annotated[
    Path | None, Option("--output", "-o", help="Write the files into this folder.")
]
Quiet = Annotated[bool, Option("--quiet", "-q", help="Only results and errors.")]
StoreFolder = Annotated[
    Path | None, Option("--store", envvar="TORCHSMITH_STORE", help="Where results are kept.")
]
Jobs = Annotated[
    int | None,
    Option("--jobs", "-j", min=1, envvar="TORCHSMITH_BUILD_JOBS", help="Compilers at once."),
]
Memory = Annotated[
    str | None,
    Option(
        "--memory",
        envvar="TORCHSMITH_BUILD_MEMORY",
        callback=_size,
        help="Memory for all compilers, e.g. 8G.",
    ),
]
EngineName = Annotated[
    str,
    Option(
        "--engine",
        envvar="TORCHSMITH_ENGINE",
        callback=_engine,
        help="podman, docker or buildah; default: the first that works.",
    ),
]
NetworkName = Annotated[
    str, Option("--network", help="The network that image builds see, e.g. host.")
]


class Flag(NamedTuple):
    """A flag that stands for a key of the recipe."""

    name: str
    key: str
    help: str
    repeats: bool = False


FLAGS = (
    Flag("--torch", "torch", "A release such as 2.6.0."),
    Flag("--python", "python", "e.g. 3.11; may be repeated.", repeats=True),
    Flag("--cuda", "cuda", "e.g. 12.6, none or host."),
    Flag("--gpu", "gpus", 'e.g. "RTX 3090", 8.6+PTX or native; repeatable.', repeats=True),
    Flag("--platform", "platform", "linux-x86_64 or linux-aarch64."),
    Flag("--board", "board", "e.g. jetson-tx2."),
    Flag("--system", "system", "e.g. ubuntu-20.04."),
    Flag("--profile", "profile", "release, minimal or debug."),
    Flag("--cpu", "cpu", "portable, native or e.g. haswell."),
    Flag("--compiler", "compiler", "e.g. gcc-9."),
    Flag("--feature", "features", "e.g. nccl=system or mkldnn=off; repeatable.", repeats=True),
    Flag(
        "--with", "companions", "e.g. vision, vision=0.10.1, text=none; repeatable.", repeats=True
    ),
)


def takes_flags(command: Callable[..., None]) -> Callable[..., None]:
    """Give a command every flag of a recipe; those that are given reach it as `overrides`."""
    own = inspect.signature(command)
    hints = get_type_hints(command, include_extras=True)
    kept = [
        item.replace(annotation=hints[item.name], kind=item.POSITIONAL_OR_KEYWORD)
        for item in own.parameters.values()
        if item.name != "overrides"
    ]
    added = [
        inspect.Parameter(
            flag.key,
            inspect.Parameter.POSITIONAL_OR_KEYWORD,
            default=None,
            annotation=Annotated[
                list[str] | None if flag.repeats else str | None, Option(flag.name, help=flag.help)
            ],
        )
        for flag in FLAGS
    ]

    @functools.wraps(command)
    def called(**arguments: object) -> None:
        overrides = {flag.key: arguments.pop(flag.key, None) for flag in FLAGS}
        command(**arguments, overrides={key: value for key, value in overrides.items() if value})

    # The file or preset first, then what changes it, then what is the command's own.
    parameters = [*kept[:2], *added, *kept[2:]]
    called.__signature__ = own.replace(parameters=parameters)  # type: ignore[attr-defined]
    called.__annotations__ = {item.name: item.annotation for item in parameters}
    return called


def as_arguments(overrides: dict[str, object]) -> list[str]:
    """The flags again, as they are written."""
    words: list[str] = []
    for flag in FLAGS:
        value = overrides.get(flag.key)
        for one in value if isinstance(value, list) else [value] if value else []:
            words += [flag.name, str(one)]
    return words

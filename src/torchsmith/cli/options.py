"""The flags that stand for a recipe: one quick question needs no file."""

from __future__ import annotations

import contextlib
import functools
import inspect
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, NamedTuple, get_type_hints

from typer import Argument, Option

from torchsmith.errors import RecipeError, UsageError

if TYPE_CHECKING:
    from torchsmith.host.models import Host
    from torchsmith.recipe.load import LoadedRecipe

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
    bool, Option("--online", help="Let compile steps use the network; without it they have none.")
]
NoLock = Annotated[bool, Option("--no-lock", help="Ignore the lock file beside the recipe.")]


def _size(text: str | None) -> str | None:
    """Refuse what is no size before anything else is done."""
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


Json = Annotated[bool, Option("--json", help="For scripts.")]
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
        "--memory", envvar="TORCHSMITH_BUILD_MEMORY", callback=_size, help="Their budget, e.g. 8G."
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
DEFAULT_RECIPE = Path("recipe.toml")
DEFAULT_PRESET = "quickstart"
MAX_HOST_BYTES = 1 << 20


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
    """Give a command every flag of a recipe; those that are given reach it as `given`."""
    own = inspect.signature(command)
    hints = get_type_hints(command, include_extras=True)
    kept = [
        item.replace(annotation=hints[item.name], kind=item.POSITIONAL_OR_KEYWORD)
        for item in own.parameters.values()
        if item.name != "given"
    ]
    added: list[inspect.Parameter] = []
    for flag in FLAGS:
        option = Option(flag.name, help=flag.help)
        kind = (
            Annotated[list[str] | None, option] if flag.repeats else Annotated[str | None, option]
        )
        added.append(
            inspect.Parameter(
                flag.key, inspect.Parameter.POSITIONAL_OR_KEYWORD, default=None, annotation=kind
            )
        )

    @functools.wraps(command)
    def called(**arguments: object) -> None:
        given = {flag.key: arguments.pop(flag.key, None) for flag in FLAGS}
        command(**arguments, given={key: value for key, value in given.items() if value})

    # The file or preset first, then what changes it, then what is the command's own.
    parameters = [*kept[:2], *added, *kept[2:]]
    called.__signature__ = own.replace(parameters=parameters)  # type: ignore[attr-defined]
    called.__annotations__ = {item.name: item.annotation for item in parameters}
    return called


def as_arguments(given: dict[str, object]) -> list[str]:
    """The flags again, as they are written."""
    words: list[str] = []
    for flag in FLAGS:
        value = given.get(flag.key)
        for one in value if isinstance(value, list) else [value] if value else []:
            words += [flag.name, str(one)]
    return words


def loaded(recipe: Path | None, preset: str | None, given: dict[str, object]) -> LoadedRecipe:
    """The recipe a command is about: a file, a preset, or flags alone."""
    from torchsmith.recipe.compose import COMMAND_LINE, compose, overridden
    from torchsmith.recipe.load import load_recipe, parse_recipe
    from torchsmith.recipe.presets import find_preset

    if recipe is not None and preset is not None:
        raise UsageError("a recipe file and --preset were both given", "Name one of the two.")
    path = find_preset(preset).path if preset is not None else recipe
    if path is None and DEFAULT_RECIPE.is_file():
        path = DEFAULT_RECIPE
        if given:
            flags = ", ".join(flag.name for flag in FLAGS if flag.key in given)
            print(f"!  {path} with {flags} laid over it", file=sys.stderr)
    if path is not None:
        plain = load_recipe(path)
        with flags_named():
            return overridden(plain, given) if given else plain
    if not given:
        print(
            f"no recipe was named: this is the embedded default, {DEFAULT_PRESET}", file=sys.stderr
        )
        return load_recipe(find_preset(DEFAULT_PRESET).path)
    if "torch" not in given:
        raise UsageError("--torch is missing", "Without a recipe file, --torch says which release.")
    with flags_named():
        return parse_recipe(compose(given), COMMAND_LINE, None)


@contextlib.contextmanager
def flags_named() -> Iterator[None]:
    """Name flags, which have no lines, where something is wrong with them."""
    from torchsmith.recipe.compose import COMMAND_LINE

    names = {flag.key: flag.name for flag in FLAGS}
    try:
        yield
    except RecipeError as error:
        if error.path != COMMAND_LINE:
            raise
        messages = []
        for problem in error.problems:
            key, _, rest = problem.key.partition(".")
            key = key.partition("#")[0]
            flag = " ".join(part for part in (names.get(key, key), rest) if part)
            meant = f" (did you mean {problem.meant!r}?)" if problem.meant else ""
            messages.append(f"{flag}: {problem.message}{meant}")
        raise UsageError(
            "\n  ".join(messages), "`torchsmith plan --help` explains the flags."
        ) from None


def with_torches(host: Host, loaded: LoadedRecipe) -> Host:
    """This machine with the installed torches a recipe means to use, if it means to."""
    import os

    from torchsmith.recipe.matrix import expand

    project = loaded.project
    wanted = [
        (str(project / torch.environment) if torch.environment else "", variant.python)
        for variant in expand(loaded.recipe)
        if (torch := variant.recipe.torch).use == "installed"
    ]
    if not wanted:
        return host
    from torchsmith.host.probe import Programs
    from torchsmith.host.torch import read_torches

    return host.model_copy(update={"torches": read_torches(Programs(os.environ), wanted)})


def host_for(path: Path | None, *, brief: bool = False) -> Host:
    """This machine, or the one a file describes."""
    import json

    from torchsmith.host import Host, read_host
    from torchsmith.host.models import check_described
    from torchsmith.inputs import check_file
    from torchsmith.recipe.reading import read_file

    if path is None:
        return read_host(Path.cwd(), brief=brief)
    check_file(path, "`torchsmith doctor --json` on the other machine writes such a file.")
    try:
        try:
            table = json.loads(read_file(path, MAX_HOST_BYTES))
        except json.JSONDecodeError:
            raise ValueError("it is not JSON") from None
        table = table.get("host", table)
        check_described(table)
        return Host.model_validate(table)
    except (ValueError, AttributeError, RecursionError) as error:
        # What pydantic says has many lines and repeats everything.
        why = str(error).partition("\n")[0]
        raise UsageError(
            f"{path} does not describe a machine: {why}",
            "`torchsmith doctor --json` on the other machine writes such a file.",
        ) from None

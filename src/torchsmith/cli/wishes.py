"""The flags that stand for a recipe: one quick question needs no file."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from torchsmith.host.models import Host
    from torchsmith.recipe.load import LoadedRecipe

RecipeArgument = Annotated[
    Path | None,
    typer.Argument(help="The recipe file; default: ./recipe.toml, or the embedded one."),
]
Preset = Annotated[str | None, typer.Option("--preset", help="Start from a shipped recipe.")]
Torch = Annotated[str | None, typer.Option("--torch", help="A release such as 2.6.0.")]
Python = Annotated[list[str] | None, typer.Option("--python", help="e.g. 3.11; may be repeated.")]
Cuda = Annotated[str | None, typer.Option("--cuda", help="e.g. 12.6, none or host.")]
Gpu = Annotated[
    list[str] | None, typer.Option("--gpu", help='e.g. "RTX 3090", 8.6+PTX or native; repeatable.')
]
Platform = Annotated[str | None, typer.Option("--platform", help="linux-x86_64 or linux-aarch64.")]
Board = Annotated[str | None, typer.Option("--board", help="e.g. jetson-tx2.")]
System = Annotated[str | None, typer.Option("--system", help="e.g. ubuntu-20.04.")]
Profile = Annotated[str | None, typer.Option("--profile", help="release, minimal or debug.")]
Cpu = Annotated[str | None, typer.Option("--cpu", help="portable, native or e.g. haswell.")]
Compiler = Annotated[str | None, typer.Option("--compiler", help="e.g. gcc-9.")]
Feature = Annotated[
    list[str] | None, typer.Option("--feature", help="e.g. nccl=system or mkldnn=off; repeatable.")
]
Companion = Annotated[
    list[str] | None,
    typer.Option("--with", help="e.g. vision, or vision=0.10.1; repeatable."),
]
HostFile = Annotated[
    Path | None,
    typer.Option("--host", help="Plan for the machine this file describes (doctor --json)."),
]
DEFAULT_RECIPE = Path("recipe.toml")
DEFAULT_PRESET = "quickstart"
MAX_HOST_BYTES = 1 << 20


_FLAGS = {
    "torch": "torch",
    "python": "python",
    "cuda": "cuda",
    "gpu": "gpus",
    "platform": "platform",
    "board": "board",
    "system": "system",
    "profile": "profile",
    "cpu": "cpu",
    "compiler": "compiler",
    "feature": "features",
    "companion": "companions",
}


def flags(arguments: Mapping[str, object]) -> dict[str, object]:
    """Those of a command's arguments that were given, under the names a recipe has for them."""
    return {key: arguments[name] for name, key in _FLAGS.items() if arguments.get(name)}


def loaded(recipe: Path | None, preset: str | None, given: dict[str, object]) -> LoadedRecipe:
    """The recipe a command is about: a file, a preset, or flags alone."""
    from torchsmith.errors import UsageError
    from torchsmith.recipe.compose import compose, overridden
    from torchsmith.recipe.load import load_recipe, parse_recipe
    from torchsmith.recipe.presets import find_preset

    if recipe is not None and preset is not None:
        raise UsageError("a recipe file and --preset were both given", "Name one of the two.")
    path = find_preset(preset).path if preset is not None else recipe
    # --torch alone makes a recipe; any other flag is laid over the one that is here.
    if path is None and "torch" not in given and DEFAULT_RECIPE.is_file():
        path = DEFAULT_RECIPE
    if path is not None:
        plain = load_recipe(path)
        return overridden(plain, given) if given else plain
    if not given:
        print(
            f"no recipe was named: this is the embedded default, {DEFAULT_PRESET}", file=sys.stderr
        )
        return load_recipe(find_preset(DEFAULT_PRESET).path)
    if "torch" not in given:
        raise UsageError("--torch is missing", "Without a recipe file, --torch says which release.")
    return parse_recipe(compose(given), "the command line", None)


def host_for(path: Path | None, *, brief: bool = False) -> Host:
    """This machine, or the one a file describes."""
    import json

    from torchsmith.errors import UsageError
    from torchsmith.host import Host, read_host
    from torchsmith.recipe.reading import read_file

    if path is None:
        return read_host(Path.cwd(), brief=brief)
    try:
        table = json.loads(read_file(path, MAX_HOST_BYTES))
        return Host.model_validate(table.get("host", table))
    except (ValueError, AttributeError, RecursionError):
        raise UsageError(
            f"{path} does not describe a machine",
            "`torchsmith doctor --json` on the other machine writes such a file.",
        ) from None

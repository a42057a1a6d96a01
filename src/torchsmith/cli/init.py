"""`torchsmith init`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from torchsmith.cli import wishes


@wishes.takes_flags
def init(
    path: Annotated[Path, typer.Argument(help="The file to write; - for standard output.")] = Path(
        "recipe.toml"
    ),
    preset: wishes.Preset = None,
    force: Annotated[bool, typer.Option("--force", help="Replace a file that is there.")] = False,
    list_presets: Annotated[bool, typer.Option("--list", help="Name the presets.")] = False,
    *,
    given: dict[str, object],
) -> None:
    """Write a commented recipe: from answers, flags or a preset."""
    import sys

    from torchsmith.cli.output import print_content, write_file
    from torchsmith.errors import UsageError
    from torchsmith.recipe.load import parse_recipe
    from torchsmith.recipe.presets import find_preset, presets
    from torchsmith.recipe.template import commented_recipe

    if list_presets:
        for item in presets():
            print(f"{item.name:<18} {item.summary}")
        return
    to_stdout = str(path) == "-"
    if path.exists() and not force and not to_stdout:
        raise UsageError(f"{path} is there already", "--force replaces it; or name another file.")
    if preset is not None:
        if given:
            raise UsageError(
                "--preset and other flags were both given",
                "Write the preset first, then change the file; or give flags to `torchsmith plan`.",
            )
        text = find_preset(preset).path.read_text(encoding="utf-8")
    else:
        if not given and sys.stdin.isatty() and not to_stdout:
            given = _ask()
        text = commented_recipe(given)
        # What was typed is checked before anything is written.
        parse_recipe(text, "the answers", None)
    if to_stdout:
        print_content(text)
        return
    write_file(path, text.encode())
    print(f"written: {path}\nnext: torchsmith plan {path}")


def _ask() -> dict[str, object]:
    from torchsmith.facts.files import shipped
    from torchsmith.facts.torch import releases

    newest = releases(shipped())[-1].version
    answers: dict[str, object] = {}
    answers["torch"] = typer.prompt("PyTorch release", default=newest)
    answers["python"] = typer.prompt("Python (several: 3.11,3.12)", default="host").split(",")
    cuda = typer.prompt("CUDA release, 'host' or 'none'", default="none")
    answers["cuda"] = cuda
    if cuda != "none":
        answers["gpus"] = [typer.prompt('GPUs (e.g. "RTX 3090", 8.6, native)', default="published")]
    companions = typer.prompt("Companions (vision,audio,text)", default="")
    answers["companions"] = [item.strip() for item in companions.split(",") if item.strip()]
    return answers

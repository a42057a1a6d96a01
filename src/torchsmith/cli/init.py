"""`torchsmith init`."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from typer import Argument, Option

from torchsmith.cli import options
from torchsmith.cli.output import answer, print_content, print_json
from torchsmith.errors import ConflictError, RecipeError, RecipeProblem, TorchsmithError, UsageError

if TYPE_CHECKING:
    from torchsmith.host.models import Host


@options.takes_flags
def init(
    path: Annotated[Path, Argument(help="The file to write; - for standard output.")] = Path(
        "recipe.toml"
    ),
    preset: options.Preset = None,
    force: Annotated[bool, Option("--force", help="Replace a file that is there.")] = False,
    list_presets: Annotated[bool, Option("--list", help="Name the presets.")] = False,
    json: options.Json = False,
    *,
    given: dict[str, object],
) -> None:
    """Write a commented recipe: from answers, flags or a preset."""
    from torchsmith.files import write_result
    from torchsmith.recipe.compose import COMMAND_LINE, commented_recipe
    from torchsmith.recipe.load import parse_recipe
    from torchsmith.recipe.presets import find_preset, presets

    if list_presets:
        rows = [{"name": item.name, "summary": item.summary} for item in presets()]
        lines = (f"{row['name']:<18} {row['summary']}" for row in rows)
        answer({"presets": rows}, "\n".join(lines), json=json)
        return
    to_stdout = str(path) == "-"
    if path.exists() and not force and not to_stdout:
        raise UsageError(f"{path} already exists", "--force replaces it; or name another file.")
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
        # What was typed is checked, and tried, before anything is written.
        with options.flags_named():
            parse_recipe(text, COMMAND_LINE, None)
        if given and (problem := _problem(given, options.host_for(None, brief=True))):
            raise ConflictError(problem, "Change the flags; nothing was written.")
    if not to_stdout:
        write_result(path, text.encode())
    if json:
        print_json({"recipe": text, "file": "" if to_stdout else str(path)})
    elif to_stdout:
        print_content(text)
    else:
        print(f"written: {path}\nnext: torchsmith plan {path}")


def _ask() -> dict[str, object]:
    """Ask for a recipe; explain an answer that cannot work, and ask again."""
    from torchsmith.facts.files import shipped
    from torchsmith.facts.torch import releases

    newest = releases(shipped())[-1].version
    host = options.host_for(None, brief=True)
    answers: dict[str, object] = {}

    def ask(key: str, question: str, default: str, *, several: bool = False) -> None:
        while True:
            reply = typer.prompt(question, default=default, show_default=bool(default))
            words = [word.strip() for word in reply.split(",") if word.strip()]
            wanted: object = words if several else reply.strip()
            if problem := _problem({**answers, key: wanted}, host):
                print(f"  {problem}", file=sys.stderr)
                continue
            answers[key] = wanted
            return

    ask("torch", "PyTorch release", newest)
    ask("python", "Python (several: 3.11,3.12)", "host", several=True)
    ask("cuda", "CUDA release, 'host' or 'none'", "none")
    if answers["cuda"] != "none":
        ask("gpus", 'GPUs (e.g. "RTX 3090", 8.6, native)', "published", several=True)
    ask("companions", "Companions (vision,audio,text)", "", several=True)
    return answers


def _problem(answers: dict[str, object], host: Host) -> str:
    """Why these answers cannot be a recipe, and what would work; empty if they can."""
    from torchsmith.facts.files import shipped
    from torchsmith.recipe.compose import compose
    from torchsmith.recipe.load import parse_recipe
    from torchsmith.recipe.matrix import expand
    from torchsmith.resolve.models import Refusal
    from torchsmith.resolve.resolve import resolve

    try:
        loaded = parse_recipe(
            compose({"torch": "2.6.0", "python": ["host"], **answers}), "the answers", None
        )
    except RecipeError as error:
        # The lines are of no file that anybody sees.
        found = (RecipeProblem(it.message, key=it.key, meant=it.meant) for it in error.problems)
        return "; ".join(map(str, found))
    except TorchsmithError as error:
        return error.message
    for variant in expand(loaded.recipe):
        outcome = resolve(variant, shipped(), host, loaded.files)
        if isinstance(outcome, Refusal):
            return "; ".join(
                f"{item.message} (what works: {item.cure})" if item.cure else item.message
                for item in outcome.conflicts
            )
    return ""

"""`torchsmith init` and `schema`: a recipe to begin with, and what one may hold."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from typer import Argument, Option

from torchsmith.cli import options, planning
from torchsmith.cli.output import answer, asking, print_content, print_json
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
    overrides: dict[str, object],
) -> None:
    """Write a commented recipe: from answers, flags or a preset."""
    from torchsmith.files import write_result
    from torchsmith.recipe.compose import COMMAND_LINE, commented_recipe
    from torchsmith.recipe.load import parse_recipe
    from torchsmith.recipe.presets import find_preset, presets

    if list_presets:
        options.unused("with --list", "path", "preset", "force", *(it.key for it in options.FLAGS))
        rows = [{"name": item.name, "summary": item.summary} for item in presets()]
        lines = (f"{row['name']:<18} {row['summary']}" for row in rows)
        answer({"presets": rows}, "\n".join(lines), json=json)
        return
    to_stdout = str(path) == "-"
    if path.exists() and not force and not to_stdout:
        raise UsageError(f"{path} already exists", "--force replaces it; or name another file.")
    if preset is not None:
        source = find_preset(preset).path
        text = _with_flags(source.read_text(encoding="utf-8"), overrides)
        folder: Path | None = source.parent
    else:
        if not overrides and sys.stdin.isatty() and not to_stdout:
            overrides = _ask()
        text, folder = commented_recipe(overrides), None
    # The recipe is checked, and planned, before anything is written.
    with planning.flags_named():
        loaded = parse_recipe(text, COMMAND_LINE, folder)
    if overrides and (problem := planning.refusal(loaded, planning.read_machine(None))):
        raise ConflictError(problem, "Change the flags; nothing was written.")
    if not to_stdout:
        write_result(path, text.encode())
    if json:
        print_json({"recipe": text, "file": "" if to_stdout else str(path)})
    elif to_stdout:
        print_content(text)
    else:
        print(f"written: {path}\nnext: torchsmith plan {path}")


def _with_flags(text: str, overrides: dict[str, object]) -> str:
    """A preset with flags laid over it; its comments stay."""
    import tomllib

    from torchsmith.diagnose.recipe_change import with_key
    from torchsmith.recipe.compose import compose

    if not overrides:
        return text
    for key, value in tomllib.loads(compose(overrides)).items():
        if isinstance(value, dict) and key != "torch":
            for name, setting in value.items():
                text = with_key(text, (key, name), setting)
        else:
            text = with_key(text, (key,), value)
    return text


def _ask() -> dict[str, object]:
    """Ask for a recipe; explain an answer that cannot work, and ask again."""
    from torchsmith.facts.files import shipped
    from torchsmith.facts.torch import releases

    newest = releases(shipped())[-1].version
    host = planning.read_machine(None)
    answers: dict[str, object] = {}

    def ask(key: str, question: str, default: str, *, several: bool = False) -> None:
        while True:
            with asking():
                reply = typer.prompt(question, default=default, show_default=bool(default))
            words = [word.strip() for word in reply.split(",") if word.strip()]
            wanted: object = words if several else reply.strip()
            if problem := _problem({**answers, key: wanted}, host):
                print(f"  {problem}", file=sys.stderr)
                continue
            answers[key] = wanted
            return

    ask("torch", "PyTorch release", newest)
    python = next(it for it in _pythons(answers) if not _refused({**answers, "python": [it]}, host))
    ask("python", "Python (several: 3.11,3.12)", python, several=True)
    ask("cuda", "CUDA release, 'host' or 'none'", "none")
    if answers["cuda"] != "none":
        ask("gpus", 'GPUs (e.g. "RTX 3090", 8.6, native)', "published", several=True)
    ask("companions", "Companions (vision,audio,text)", "", several=True)
    return answers


def _pythons(answers: dict[str, object]) -> list[str]:
    """This machine's Python, then those that the torch asked for was published for."""
    from torchsmith.facts.files import shipped
    from torchsmith.facts.torch import releases

    torch = str(answers["torch"])
    known = [it for it in releases(shipped()) if f"{it.version}.".startswith(f"{torch}.")]
    return ["host", *(reversed(known[-1].pythons) if known else ())]


def _problem(answers: dict[str, object], host: Host) -> str:
    """Why no answer to the questions left makes these a recipe; empty if one does."""
    if "python" in answers:
        return _refused(answers, host)
    problems = [_refused({**answers, "python": [it]}, host) for it in _pythons(answers)]
    return problems[0] if all(problems) else ""


def _refused(answers: dict[str, object], host: Host) -> str:
    """Why these answers cannot be a recipe, and what would work; empty if they can."""
    from torchsmith.recipe.compose import compose
    from torchsmith.recipe.load import parse_recipe

    try:
        loaded = parse_recipe(compose(answers), "the answers", None)
    except RecipeError as error:
        # The line numbers belong to no file that the reader sees.
        found = (RecipeProblem(it.message, key=it.key, meant=it.meant) for it in error.problems)
        return "; ".join(map(str, found))
    except TorchsmithError as error:
        return error.message
    return planning.refusal(loaded, host)


def schema(
    job: Annotated[bool, Option("--job", help="Print the schema of a job file instead.")] = False,
) -> None:
    """Print the JSON Schema of a recipe or a job file, for editors."""
    from torchsmith.facts.files import shipped
    from torchsmith.recipe.schema import job_schema_text, schema_text

    print_content(job_schema_text() if job else schema_text(shipped()))

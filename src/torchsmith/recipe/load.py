"""From a file to a `Recipe`, or to one error that lists everything wrong with it."""

from __future__ import annotations

import os
import re
import stat
import tomllib
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from torchsmith.errors import RecipeError, RecipeProblem
from torchsmith.facts.files import Facts, shipped
from torchsmith.recipe.matrix import MAX_VARIANTS, count_variants
from torchsmith.recipe.models import Recipe
from torchsmith.recipe.names import unknown_names
from torchsmith.recipe.positions import key_lines, line_of
from torchsmith.recipe.problems import problems_of

MAX_RECIPE_BYTES = 1 << 20
MAX_FILE_BYTES = 16 << 20


@dataclass(frozen=True)
class LoadedRecipe:
    """A recipe with the files it names, so that nothing later has to read the disk."""

    recipe: Recipe
    path: str
    files: dict[str, bytes] = field(default_factory=dict)


def load_recipe(path: Path, facts: Facts | None = None) -> LoadedRecipe:
    """Read a recipe file. Raises `RecipeError` and nothing else for bad content."""
    shown = str(path)
    text = _read_text(path, shown)
    return parse_recipe(text, shown, path.parent, facts)


def parse_recipe(
    text: str, shown: str, folder: Path | None, facts: Facts | None = None
) -> LoadedRecipe:
    """Read a recipe from text; `folder` is where its own files are (None: it has none)."""
    table = _parse_toml(text, shown)
    lines = key_lines(text)
    try:
        recipe = Recipe.model_validate(table)
    except ValidationError as error:
        raise RecipeError(shown, problems_of(error, table, lines)) from None
    except RecursionError:
        raise RecipeError(shown, [RecipeProblem("the recipe is nested too deeply")]) from None

    problems = [
        RecipeProblem(
            unknown.message,
            key=unknown.key,
            line=line_of(lines, unknown.path),
            meant=unknown.meant,
        )
        for unknown in unknown_names(recipe, facts or shipped())
    ]
    if (count := count_variants(recipe)) > MAX_VARIANTS:
        problems.append(
            RecipeProblem(
                f"the matrix has {count:,} combinations; at most {MAX_VARIANTS:,} can be planned",
                key="matrix",
                line=line_of(lines, ("matrix",)),
            )
        )
    files: dict[str, bytes] = {}
    if folder is not None:
        for key, name in _named_files(recipe):
            try:
                files[name] = _read_project_file(folder, name)
            except ValueError as error:
                problems.append(
                    RecipeProblem(f"{name!r} {error}", key=_dotted(key), line=line_of(lines, key))
                )
    if problems:
        raise RecipeError(shown, sorted(problems, key=lambda problem: problem.line or 0))
    return LoadedRecipe(recipe, shown, files)


def _dotted(path: tuple[str | int, ...]) -> str:
    return ".".join(str(part) for part in path if isinstance(part, str))


def _read_text(path: Path, shown: str) -> str:
    def refuse(message: str, meant: str = "") -> RecipeError:
        return RecipeError(shown, [RecipeProblem(message, meant=meant)])

    try:
        # O_NONBLOCK: a named pipe given by mistake must not hang us before fstat tells.
        handle = os.open(path, os.O_RDONLY | os.O_NONBLOCK)
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or "not a usable path"
        raise refuse(f"cannot be read: {reason}") from None
    with os.fdopen(handle, "rb") as file:
        if not stat.S_ISREG(os.fstat(handle).st_mode):
            raise refuse("is not a file")
        data = file.read(MAX_RECIPE_BYTES + 1)
    if len(data) > MAX_RECIPE_BYTES:
        raise refuse(f"is larger than {MAX_RECIPE_BYTES >> 20} MiB: is this a recipe?")
    if not data.strip():
        raise refuse("is empty; `torchsmith init` writes a recipe to start from")
    try:
        return data.decode("utf-8")
    except UnicodeDecodeError as error:
        raise refuse(f"is not text: byte {error.start} is not UTF-8") from None


_AT_LINE = re.compile(r"\s*\(at line (\d+), column (\d+)\)")


def _parse_toml(text: str, shown: str) -> dict[str, Any]:
    try:
        return tomllib.loads(text.replace("\r\n", "\n"))
    except tomllib.TOMLDecodeError as error:
        message = str(error)
        at = _AT_LINE.search(message)
        line = int(at[1]) if at else None
        plain = _AT_LINE.sub("", message)
        if "Cannot overwrite a value" in plain or "Cannot declare" in plain:
            plain = f"a key or table is written twice ({plain[0].lower()}{plain[1:]})"
        problem = RecipeProblem(f"not valid TOML: {plain}", line=line)
    except (ValueError, OverflowError) as error:
        problem = RecipeProblem(f"not valid TOML: {error}")
    except RecursionError:
        problem = RecipeProblem("not valid TOML: nested too deeply")
    raise RecipeError(shown, [problem])


def _named_files(recipe: Recipe) -> list[tuple[tuple[str | int, ...], str]]:
    """The files whose content decides what is built. An image's client files stay outside."""
    return [(("patches", index), patch.file) for index, patch in enumerate(recipe.patches)]


def _read_project_file(folder: Path, name: str) -> bytes:
    root = folder.resolve()
    path = (root / name).resolve()
    if not path.is_relative_to(root):
        raise ValueError("is a link that leads out of the recipe's folder")
    if not path.is_file():
        raise ValueError("does not exist (looked for it beside the recipe)")
    if path.stat().st_size > MAX_FILE_BYTES:
        raise ValueError(f"is larger than {MAX_FILE_BYTES >> 20} MiB")
    try:
        return path.read_bytes()
    except OSError as error:
        raise ValueError(f"cannot be read: {error.strerror}") from None

"""From a file to a `Recipe`, or to one error that lists everything wrong with it."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from torchsmith.errors import RecipeError, RecipeProblem
from torchsmith.facts.files import Facts, shipped
from torchsmith.facts.gpus import find_gpu, nearest_gpus, other_cards
from torchsmith.facts.platforms import other_platform, other_system, runs_on_glibc
from torchsmith.foreign import LONG_KEY, MAX_KEY_PARTS
from torchsmith.inputs import read_file, read_inside
from torchsmith.names import nearest
from torchsmith.recipe.gpus import gpu_wish
from torchsmith.recipe.matrix import MAX_VARIANTS, count_variants, expand
from torchsmith.recipe.models import Recipe
from torchsmith.recipe.presets import folder as shipped_recipes
from torchsmith.recipe.problems import problems_of, without_problems
from torchsmith.recipe.toml import KeyPath, Written, dotted, key_lines, line_of, shortened

MAX_RECIPE_BYTES = 1 << 20
MAX_FILE_BYTES = 16 << 20
# Nobody reads more than this at once.
MAX_PROBLEMS = 100


@dataclass(frozen=True)
class LoadedRecipe:
    """A recipe with the files it names, so that nothing later has to read the disk."""

    recipe: Recipe
    path: str
    files: dict[str, bytes] = field(default_factory=dict)

    @property
    def project(self) -> Path:
        """Where the files it names lie and results go: beside it, or here for a shipped one."""
        beside = Path(self.path).parent
        return Path() if beside == shipped_recipes() else beside


def load_recipe(path: Path) -> LoadedRecipe:
    """Read a recipe file. Raises `RecipeError` and nothing else for bad content."""
    shown = str(path) if str(path).isprintable() else ascii(str(path))
    try:
        text = text_of(read_file(path, MAX_RECIPE_BYTES))
    except ValueError as error:
        raise RecipeError(shown, (), str(error)) from None
    return parse_recipe(text, shown, path.parent)


def parse_recipe(text: str, shown: str, folder: Path | None) -> LoadedRecipe:
    """Read a recipe from text; `folder` is where its own files are (None: it has none)."""
    table = parse_toml(text, shown)
    lines = key_lines(text)
    problems: list[RecipeProblem] = []
    recipe: Recipe | None = None
    try:
        recipe = Recipe.model_validate(table)
    except ValidationError as error:
        features = [feature.name for feature in shipped().features.feature]
        problems = problems_of(error, table, lines, features)
        # What is right can still be asked whether it makes sense, so that all is said at once.
        recipe = without_problems(error, table)
    files: dict[str, bytes] = {}
    if recipe is not None:
        problems += meaning_problems(recipe, lines)
        if folder is not None:
            problems += _read_files(recipe, folder, lines, files)
    if problems or recipe is None:
        raise RecipeError(shown, _in_order(problems))
    return LoadedRecipe(recipe, shown, files)


def meaning_problems(recipe: Recipe, lines: Mapping[KeyPath, int]) -> Iterator[RecipeProblem]:
    """What is written correctly and still cannot be meant: unknown names, an endless matrix."""
    for path, message, meant in islice(_unknown_names(recipe, shipped()), MAX_PROBLEMS + 1):
        yield RecipeProblem(message, key=dotted(path), line=line_of(lines, path), meant=meant)
    line = line_of(lines, ("matrix",))
    if (count := count_variants(recipe)) > MAX_VARIANTS:
        yield RecipeProblem(
            f"the matrix has {count:,} combinations; at most {MAX_VARIANTS:,} can be planned",
            key="matrix",
            line=line,
        )
    elif recipe.matrix.exclude and next(expand(recipe), None) is None:
        yield RecipeProblem("every combination is excluded", key="matrix.exclude", line=line)


# A key whose name no fact has, what is wrong with it, and the nearest name that some fact has.
_Unknown = tuple[KeyPath, str, str]


def _unknown_names(recipe: Recipe, facts: Facts) -> Iterator[_Unknown]:
    """Every GPU, feature, package, board and system that the facts do not have."""
    cells = [("exclude", recipe.matrix.exclude), ("include", recipe.matrix.include)]
    gpus: list[tuple[KeyPath, Iterable[str]]] = [(("gpus",), recipe.gpus)]
    gpus.append((("packages", "magma_gpus"), recipe.packages.magma_gpus or ()))
    gpus += [(("matrix", "gpus", number), item) for number, item in enumerate(recipe.matrix.gpus)]
    sets: list[tuple[KeyPath, Iterable[str]]] = [(("features",), recipe.features)]
    sets += [
        (("matrix", "features", number), item) for number, item in enumerate(recipe.matrix.features)
    ]
    for kind, listed in cells:
        for number, cell in enumerate(listed):
            gpus.append((("matrix", kind, number, "gpus"), cell.gpus or ()))
            sets.append((("matrix", kind, number, "features"), cell.features or ()))
    for path, texts in gpus:
        yield from _unknown_gpus(facts, path, texts)
    known = [feature.name for feature in facts.features.feature]
    for path, names in sets:
        for name in names:
            if name not in known:
                yield (*path, name), "is not a feature of PyTorch", nearest(name, known)
    known = [item.name for item in facts.stack.package]
    known += [item.package for item in facts.companions.project]
    for name in recipe.stack:
        if name not in known:
            message = "is not a package whose build is known; companions.extension builds any other"
            yield ("stack", name), message, nearest(name, known)
    boards = [board.name for board in facts.boards.board]
    if (board := recipe.board) is not None and board not in boards:
        message = f"{board!r} is not a board we know: {', '.join(boards)}"
        yield ("board",), message, nearest(board, boards)
    if recipe.system is not None:
        yield from _unknown_system(facts, recipe.system)


def _unknown_system(facts: Facts, name: str) -> Iterator[_Unknown]:
    codenames = {system.name: system.codename for system in facts.systems.system}
    if name in codenames:
        return
    if (other := other_platform(facts, name)) is not None:
        message = f"{name!r} is not a distribution torchsmith builds in. {other.exists}"
    elif (there := other_system(facts, name)) is not None:
        message = (
            f"{name!r} is not a distribution torchsmith builds in. {there.name} has glibc "
            f"{there.glibc}: {runs_on_glibc(facts, there.glibc)}. Without `system`, the build is "
            "this machine's own"
        )
    else:
        message = (
            f"{name!r} is not a distribution we know: {', '.join(codenames)}; without it, the "
            "build is this machine's own"
        )
    called = (known for known, codename in codenames.items() if codename in name)
    # What is built in an older release runs in a newer one.
    family, _, asked = name.partition("-")
    alike = [known for known in codenames if known.startswith(f"{family}-")]
    older = [known for known in alike if () < _numbers(known) < _numbers(asked)]
    fitting = older[-1:] or (alike[:1] if _numbers(asked) else [])
    meant = next(called, "") or next(iter(fitting), nearest(name, codenames))
    yield ("system",), message, meant


def _numbers(text: str) -> tuple[int, ...]:
    return tuple(int(part) for part in re.findall(r"\d{1,9}", text))


def _unknown_gpus(facts: Facts, path: KeyPath, texts: Iterable[str]) -> Iterator[_Unknown]:
    for name in (gpu_wish(text).name for text in texts):
        if not name or find_gpu(facts, name) is not None:
            continue
        if (other := other_cards(facts, name)) is not None:
            yield path, f"{shortened(name)} is {other.vendor}: {other.exists}", ""
            continue
        message = (
            f"{shortened(name)} is not a GPU we know; its compute capability, such as "
            '"8.6", always works'
        )
        yield path, message, next(iter(nearest_gpus(facts, name)), "")


def _in_order(problems: list[RecipeProblem]) -> list[RecipeProblem]:
    ordered = sorted(problems, key=lambda problem: problem.line or 0)
    more = len(ordered) - MAX_PROBLEMS
    return ordered if more <= 0 else [*ordered[:MAX_PROBLEMS], RecipeProblem("and there are more")]


def _read_files(
    recipe: Recipe, folder: Path, lines: Mapping[KeyPath, int], files: dict[str, bytes]
) -> Iterator[RecipeProblem]:
    """Read what decides what is built. An image's client files stay outside."""
    for index, patch in enumerate(recipe.patches):
        try:
            files[patch.file] = read_inside(folder, patch.file, MAX_FILE_BYTES)
        except ValueError as error:
            key = ("patches", index)
            yield RecipeProblem(
                f"{shortened(patch.file)} {error} (a path is relative to the recipe's folder)",
                key=dotted(key),
                line=line_of(lines, key),
            )


def text_of(data: bytes) -> str:
    """The text of a file; `ValueError` says why it has none."""
    if data.startswith((b"\xff\xfe", b"\xfe\xff")):
        raise ValueError("is UTF-16 text; save it as UTF-8")
    try:
        # -sig: Windows editors put a byte order mark before UTF-8.
        text = data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise ValueError(f"is not text: byte {error.start} is not UTF-8") from None
    if not text.strip():
        raise ValueError("is empty")
    return text


_AT_LINE = re.compile(r" ?\(at (?:line (\d+), column \d+|end of document)\)")


def parse_toml(text: str, shown: str) -> dict[str, Any]:
    """The table a text holds. Raises `RecipeError` if it is not TOML."""
    if long := LONG_KEY.search(text):
        line = text.count("\n", 0, long.start()) + 1
        message = f"a key has more than {MAX_KEY_PARTS} parts"
        raise RecipeError(shown, [RecipeProblem(message, line=line)])
    try:
        return tomllib.loads(text, parse_float=Written)
    except tomllib.TOMLDecodeError as error:
        message = str(error)
        at = _AT_LINE.search(message)
        last = text.rstrip().count("\n") + 1
        line_number = int(at[1] or last) if at else None
        plain = _AT_LINE.sub("", message)
        if "Cannot overwrite a value" in plain or "Cannot declare" in plain:
            plain = f"a key or table is written twice ({plain[0].lower()}{plain[1:]})"
        if plain == "Invalid value":
            plain += "; text is written in quotes"
        problem = RecipeProblem(f"not valid TOML: {plain}", line=line_number)
    except (ValueError, OverflowError) as error:
        # Python reads no number of more than 4300 digits; it does not say where it stands.
        digits = re.search(r"[0-9_]{4300}", text)
        reason = "a number has too many digits" if digits else str(error)
        line_number = text.count("\n", 0, digits.start()) + 1 if digits else None
        problem = RecipeProblem(f"not valid TOML: {reason}", line=line_number)
    except RecursionError:
        problem = RecipeProblem("not valid TOML: nested too deeply")
    raise RecipeError(shown, [problem])

"""Reading a job: from a job file, or from the `[[job]]` tables of a recipe."""

from __future__ import annotations

import tomllib
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from torchsmith.errors import RecipeError, RecipeProblem, UsageError
from torchsmith.inputs import check_file, read_file
from torchsmith.jobs.models import Job, resolve
from torchsmith.plan.images import image_names
from torchsmith.plan.publish import job_image
from torchsmith.recipe import job as written
from torchsmith.recipe.load import MAX_RECIPE_BYTES, parse_recipe, parse_toml, text_of
from torchsmith.recipe.matrix import expand
from torchsmith.recipe.models import Recipe
from torchsmith.recipe.problems import problems_of
from torchsmith.recipe.toml import key_lines
from torchsmith.recipe.values import size_bytes, unique_names


def load_jobs(path: Path, changes: Sequence[str] = (), names: Iterable[str] = ()) -> list[Job]:
    """The jobs of a file, or only those named, with `changes` laid over them."""
    shown = str(path) if str(path).isprintable() else ascii(str(path))
    hint = "Name a job file, or a recipe with [[job]]."
    check_file(path, hint)
    try:
        text = text_of(read_file(path, MAX_RECIPE_BYTES))
    except ValueError as error:
        unread = RecipeError(shown, (), str(error))
        unread.hint = hint
        raise unread from None
    table = parse_toml(text, shown)
    recipe = parse_recipe(text, shown, path.parent).recipe if "torch" in table else None
    listed = "job" in table and "role" not in table
    tables = table.get("job", []) if listed else [table]
    if recipe is None and listed and set(table) - {"job"}:
        other = ", ".join(sorted(set(table) - {"job"}))
        problem = RecipeProblem(f"{other}: a file of jobs holds [[job]] only")
        raise RecipeError(shown, [problem], job=True)
    if not isinstance(tables, list) or not tables or (recipe is not None and not listed):
        raise UsageError(f"{shown} has no job", "Add a [[job]] with at least one role.")
    chosen = [item for item in tables if _wanted(item, tuple(names))]
    if not chosen:
        known = ", ".join(str(item.get("name")) for item in tables if isinstance(item, dict))
        raise UsageError(f"{shown} has no such job", f"It has: {known}.")
    lines = {(key if listed else ("job", 0, *key)): line for key, line in key_lines(text).items()}
    jobs = _validated([_changed(item, changes) for item in chosen], shown, lines, listed=listed)
    return [_resolved(job, recipe) for job in jobs]


def _wanted(table: Any, names: tuple[str, ...]) -> bool:
    return not names or (isinstance(table, dict) and table.get("name") in names)


def _validated(
    tables: list[Any], shown: str, lines: Mapping[tuple[str | int, ...], int], *, listed: bool
) -> list[written.Job]:
    whole = {"job": tables}
    try:
        return unique_names(written.Jobs.model_validate(whole).job)
    except ValidationError as error:
        problems = problems_of(error, whole, lines)
        if not listed:
            for problem in problems:
                problem.key = problem.key.removeprefix("job#1").removeprefix(".")
        raise RecipeError(shown, problems, job=True) from None
    except ValueError as error:
        raise RecipeError(shown, [RecipeProblem(str(error), key="job")], job=True) from None


def _resolved(job: written.Job, recipe: Recipe | None) -> Job:
    if recipe is None or recipe.image is None:
        return resolve(job, job_image(recipe, job, []) if recipe else "")
    variants = [variant.name for variant in expand(recipe)]
    images = list(image_names(recipe.image, variants[0], only=len(variants) == 1).values())
    if len(variants) > 1 and job.image is None:
        raise UsageError(
            f"job {job.name}: the recipe makes {len(variants)} images, one for each variant",
            f"Say which: --set image={images[0]}.",
        )
    shm_mb = size_bytes(recipe.image.shm_size) >> 20
    return resolve(job, job_image(recipe, job, images), shm_mb)


def _changed(table: Any, changes: Sequence[str]) -> Any:
    """The table with each `key=value` laid over it; `role.NAME.key` is a key of one role."""
    if not isinstance(table, dict):
        return table
    for change in changes:
        key, equals, text = change.partition("=")
        parts = key.strip().split(".")
        if not equals or not all(parts):
            raise UsageError(f"--set {change!r} is not written like key=value")
        roles = table.get("role")
        if parts[0] == "role" and isinstance(roles, list):
            table = {**table, "role": _with_role(roles, parts[1:], _value(text), change)}
        else:
            table = _with(table, parts, _value(text), change)
    return table


def _with(table: dict[str, Any], parts: list[str], value: Any, change: str) -> dict[str, Any]:
    first, *rest = parts
    if not rest and value == "":
        # Nothing behind the = takes a key away: TOML has no word for that.
        return {key: kept for key, kept in table.items() if key != first}
    if not rest:
        return {**table, first: value}
    inner = table.get(first, {})
    if not isinstance(inner, dict):
        raise UsageError(f"--set {change!r}: {first} is not a table")
    return {**table, first: _with(inner, rest, value, change)}


def _with_role(roles: list[Any], parts: list[str], value: Any, change: str) -> list[Any]:
    names = [str(role.get("name", "main")) if isinstance(role, dict) else "" for role in roles]
    named = len(parts) > 1 and parts[0] in names
    keys = parts[1:] if named else parts
    if not keys or (not named and len(names) > 1):
        raise UsageError(
            f"--set {change!r} does not say which role",
            f"Write role.{names[0]}.{'.'.join(keys) or 'key'}=...",
        )
    mine = names.index(parts[0]) if named else 0
    # Reading it says what is wrong with a role that is not a table.
    return [
        _with(role, keys, value, change) if index == mine and isinstance(role, dict) else role
        for index, role in enumerate(roles)
    ]


def _value(text: str) -> Any:
    """A value as TOML reads it; text that is none of its others is text."""
    if "\n" not in text:
        try:
            return tomllib.loads(f"value = {text}")["value"]
        except (tomllib.TOMLDecodeError, RecursionError, ValueError):
            pass
    return text

"""Turning a validation error into problems a person can act on."""

from __future__ import annotations

import itertools
import typing
from collections.abc import Iterable, Mapping
from typing import Any

from pydantic import BaseModel, ValidationError
from pydantic.fields import FieldInfo

from torchsmith.errors import RecipeProblem
from torchsmith.names import nearest
from torchsmith.recipe.models import Matrix, Recipe
from torchsmith.recipe.toml import KeyPath, Written, dotted, line_of, shortened
from torchsmith.secret_names import holds_secret, is_secret_name

_MISSING = object()
# Nobody reads more than this at once.
_MOST = 101
# Keys that have one value in a recipe, and several in its matrix.
_AXES = {(name,) for name in Matrix.model_fields}
# Tables that text may stand for.
_SHORT = ("Torch", "Cuda", "Patch")


def problems_of(
    error: ValidationError,
    table: Any,
    lines: Mapping[KeyPath, int],
    features: Iterable[str] = (),
) -> list[RecipeProblem]:
    """One problem for each place in the file, in the order of the file."""
    homes = _homes(features)
    problems = [
        _problem(path, items, table, lines, homes) for path, items in _grouped(error, table)
    ]
    return sorted(problems, key=lambda problem: (problem.line or 0, problem.key))


def without_problems(error: ValidationError, table: dict[str, Any]) -> Recipe | None:
    """The recipe without the keys that cannot be read, if the rest can."""
    rest = table
    for path, _ in _grouped(error, table):
        # An entry that is gone would renumber those after it: its whole list goes.
        rest = _without(rest, tuple(itertools.takewhile(lambda part: isinstance(part, str), path)))
    try:
        return Recipe.model_validate({"torch": {"release": "0"}, **rest})
    except ValidationError:
        return None


def _without(table: dict[str, Any], path: KeyPath) -> dict[str, Any]:
    if not path or not isinstance(table, dict) or path[0] not in table:
        return table
    first = str(path[0])
    rest = {key: value for key, value in table.items() if key != first}
    return {**rest, first: _without(table[first], path[1:])} if path[1:] else rest


def _grouped(error: ValidationError, table: Any) -> Iterable[tuple[KeyPath, list[dict[str, Any]]]]:
    grouped: dict[KeyPath, list[dict[str, Any]]] = {}
    for item in error.errors(include_url=False, include_context=True):
        path = _written_part(item["loc"], table)
        if item["type"] == "missing":
            path = (*path, item["loc"][-1])
        grouped.setdefault(path, []).append(dict(item))
    return itertools.islice(grouped.items(), _MOST)


def _written_part(loc: KeyPath, table: Any) -> KeyPath:
    """The part of an error's location that is in the file: unions and shorthands add more."""
    path: KeyPath = ()
    for part in loc:
        inside = part < len(table) if isinstance(table, list) and isinstance(part, int) else False
        if not inside and not (isinstance(table, dict) and part in table):
            break
        table = table[part]
        path = (*path, part)
    return path


def _value_at(path: KeyPath, table: Any) -> Any:
    for part in path:
        try:
            table = table[part]
        except (KeyError, IndexError, TypeError):
            return _MISSING
    return table


def _problem(
    path: KeyPath,
    items: list[dict[str, Any]],
    table: Any,
    lines: Mapping[KeyPath, int],
    homes: Mapping[str, list[str]],
) -> RecipeProblem:
    key = dotted(path)
    line = line_of(lines, path)
    value = _value_at(path, table)
    kinds = {item["type"] for item in items}

    if "extra_forbidden" in kinds:
        name = str(path[-1])
        siblings = _keys_at(path[:-1])
        # A key that is right elsewhere is in the wrong place, unless it is nearly right here.
        elsewhere = homes.get(name, [])
        meant = nearest(name, siblings, 0.8 if elsewhere else 0.6)
        message = "is not a key of a recipe"
        if elsewhere and not meant:
            message = f"does not belong here; it is a key of {' or '.join(elsewhere[:3])}"
        if not meant and siblings and path[:-1]:
            message += f"; here it may be one of {', '.join(siblings)}"
        if not meant and path[:-1] == ("companions",):
            message += "; other packages go into [stack] or [[companions.extension]]"
        return RecipeProblem(message, key=key, line=line, meant=meant)
    if "missing" in kinds:
        example = ": name one release at the top, such as torch = '2.6.0'" if key == "torch" else ""
        return RecipeProblem(f"is missing{example}", key=key, line=line)

    if isinstance(value, str) and "value_error" in kinds:
        # Text may stand here: that it is no list is not what is wrong with it.
        items = [item for item in items if item["type"] not in ("list_type", "dict_type")]
    messages = list(dict.fromkeys(_message(item, value) for item in items))
    allowed = [
        option.strip(" '")
        for item in items
        if item["type"] == "literal_error"
        for option in item["ctx"]["expected"].replace(" or ", ",").split(",")
    ]
    meant = nearest(value, allowed, 0.6) if isinstance(value, str) else ""
    plain = value is not _MISSING and not isinstance(value, dict | list)
    if isinstance(value, str) and (holds_secret(value) or is_secret_name(str(path[-1]))):
        # A secret is not repeated in messages, which end up in logs.
        plain = False
    prefix = f"{shortened(value)}: " if plain else ""
    if isinstance(value, list) and path in _AXES and messages[0].startswith("must be"):
        return RecipeProblem(
            f"is one; several are listed in [matrix]: {key} = [...]", key=key, line=line
        )
    plainer = (message.removeprefix("must be ") for message in messages[1:])
    expected = " or ".join(message.removeprefix("expected ") for message in plainer)
    text = prefix + ", or ".join(filter(None, (messages[0], expected)))
    return RecipeProblem(text, key=key, line=line, meant=meant)


def _message(item: dict[str, Any], value: Any) -> str:
    kind = item["type"]
    short = kind == "model_type" and item["ctx"]["class_name"] in _SHORT
    if kind == "string_type" or (short and not isinstance(value, list)):
        if isinstance(value, Written | int) and not isinstance(value, bool):
            return f"must be text: write it in quotes{_quoted(value)}"
        return f"must be text{' or a table' if short else ''}, not {_kind_of(value)}"
    if kind in ("model_type", "dict_type", "model_attributes_type"):
        return f"must be a table, not {_kind_of(value)}"
    if kind == "list_type" and isinstance(value, dict):
        return f"is a list: its header is written [[{dotted(item['loc'])}]]"
    if kind == "list_type":
        return f"must be a list, not {_kind_of(value)}"
    if kind == "int_type":
        kind_of = "one with a point" if isinstance(value, float) else _kind_of(value)
        return f"must be a whole number, not {kind_of}"
    if kind == "bool_type":
        return f"must be true or false, not {_kind_of(value)}"
    if kind == "literal_error":
        return f"must be {item['ctx']['expected']}"
    if kind == "value_error":
        return str(item["ctx"]["error"])
    text = str(item["msg"])
    return text[0].lower() + text[1:]


def _quoted(value: float) -> str:
    text = shortened(value)
    return "" if " " in text else f', "{text}"'


def _kind_of(value: Any) -> str:
    names = {
        dict: "a table",
        list: "a list",
        str: "text",
        bool: "true or false",
        int: "a number",
        Written: "a number",
    }
    return names.get(type(value), "a date or time")


def _models_in(annotation: Any) -> list[type[BaseModel]]:
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return [annotation]
    return [model for part in typing.get_args(annotation) for model in _models_in(part)]


def _fields(model: type[BaseModel]) -> dict[str, FieldInfo]:
    """The fields under the names they are written with."""
    return {field.alias or name: field for name, field in model.model_fields.items()}


def _keys_at(path: KeyPath) -> list[str]:
    model: type[BaseModel] = Recipe
    for part in path:
        if isinstance(part, int):
            continue
        field = _fields(model).get(part)
        inner = _models_in(field.annotation) if field else []
        if not inner:
            return []
        model = inner[0]
    return list(_fields(model))


def _homes(features: Iterable[str]) -> dict[str, list[str]]:
    """For every key the sections that have it, the top of the file first."""
    homes: dict[str, list[str]] = {}

    def collect(model: type[BaseModel], header: str) -> None:
        for name, field in _fields(model).items():
            homes.setdefault(name, []).append(
                f"[{header}]" if header else "the top of the file, above the first [section]"
            )
            if name != "matrix":
                for inner in _models_in(field.annotation):
                    collect(inner, f"{header}.{name}" if header else name)

    collect(Recipe, "")
    for feature in features:
        homes.setdefault(feature, []).append("[features]")
    return homes

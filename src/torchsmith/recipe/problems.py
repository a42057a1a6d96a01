"""Turning a validation error into problems a person can act on."""

from __future__ import annotations

import difflib
import typing
from collections import defaultdict
from typing import Any

from pydantic import BaseModel, ValidationError

from torchsmith.errors import RecipeProblem
from torchsmith.recipe.models import Recipe
from torchsmith.recipe.positions import Path, line_of

_MISSING = object()


def problems_of(error: ValidationError, table: Any, lines: dict[Path, int]) -> list[RecipeProblem]:
    """One problem for each place in the file, in the order of the file."""
    grouped: dict[Path, list[dict[str, Any]]] = defaultdict(list)
    for item in error.errors(include_url=False, include_context=True):
        path = _written_part(item["loc"], table)
        if item["type"] == "missing":
            path = (*path, item["loc"][-1])
        grouped[path].append(dict(item))
    problems = [_problem(path, items, table, lines) for path, items in grouped.items()]
    return sorted(problems, key=lambda problem: (problem.line or 0, problem.key))


def _written_part(loc: Path, table: Any) -> Path:
    """The part of an error's location that is in the file: unions and shorthands add more."""
    path: Path = ()
    for part in loc:
        if isinstance(table, dict) and part in table:
            table = table[part]
        elif isinstance(table, list) and isinstance(part, int) and part < len(table):
            table = table[part]
        else:
            break
        path = (*path, part)
    return path


def _value_at(path: Path, table: Any) -> Any:
    for part in path:
        try:
            table = table[part]
        except (KeyError, IndexError, TypeError):
            return _MISSING
    return table


def _shown(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 60 else f"{text[:57]}..."


def _problem(
    path: Path, items: list[dict[str, Any]], table: Any, lines: dict[Path, int]
) -> RecipeProblem:
    key = ".".join(str(part) for part in path)
    line = line_of(lines, path)
    value = _value_at(path, table)
    kinds = {item["type"] for item in items}

    if "extra_forbidden" in kinds:
        name = str(path[-1])
        siblings = _keys_at(path[:-1])
        meant = _nearest(name, siblings)
        home = _home_of(name)
        message = "is not a key of a recipe"
        if not meant and home:
            message = f"does not belong here; it is a key of [{home}]"
        elif not meant and siblings:
            message += f"; here it may be one of {', '.join(siblings)}"
        return RecipeProblem(message, key=key, line=line, meant=meant)
    if "missing" in kinds:
        return RecipeProblem("is missing", key=key, line=line)

    messages = list(dict.fromkeys(_message(item, value) for item in items))
    allowed = [
        option
        for item in items
        if item["type"] == "literal_error"
        for option in _literals(item["ctx"]["expected"])
    ]
    meant = _nearest(value, allowed) if isinstance(value, str) else ""
    said = "" if value is _MISSING or isinstance(value, dict | list) else f"{_shown(value)}: "
    return RecipeProblem(said + ", or ".join(messages), key=key, line=line, meant=meant)


def _message(item: dict[str, Any], value: Any) -> str:
    kind = item["type"]
    if kind == "string_type":
        if isinstance(value, float | int) and not isinstance(value, bool):
            return f'must be text: write it in quotes, "{value}"'
        return f"must be text, not {_kind_of(value)}"
    if kind in ("model_type", "dict_type", "model_attributes_type"):
        return f"must be a table, not {_kind_of(value)}"
    if kind == "list_type":
        return f"must be a list, not {_kind_of(value)}"
    if kind == "int_type":
        return f"must be a whole number, not {_kind_of(value)}"
    if kind == "bool_type":
        return f"must be true or false, not {_kind_of(value)}"
    if kind == "literal_error":
        return f"must be {item['ctx']['expected']}"
    if kind == "value_error":
        return str(item["ctx"]["error"])
    if kind == "string_pattern_mismatch":
        return f"does not have the form {item['ctx']['pattern']}"
    text = str(item["msg"])
    return text[0].lower() + text[1:]


def _kind_of(value: Any) -> str:
    names = {
        dict: "a table",
        list: "a list",
        str: "text",
        bool: "true or false",
        int: "a number",
        float: "a number",
    }
    return names.get(type(value), "a date or time")


def _literals(expected: str) -> list[str]:
    return [part.strip(" '") for part in expected.replace(" or ", ",").split(",")]


def _nearest(word: Any, words: typing.Iterable[str]) -> str:
    by_lower = {option.lower(): option for option in words}
    close = difflib.get_close_matches(str(word).lower(), by_lower, n=1, cutoff=0.6)
    return by_lower[close[0]] if close else ""


def _models_in(annotation: Any) -> list[type[BaseModel]]:
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return [annotation]
    return [model for part in typing.get_args(annotation) for model in _models_in(part)]


def _model_at(path: Path) -> type[BaseModel] | None:
    model: type[BaseModel] = Recipe
    for part in path:
        if isinstance(part, int):
            continue
        field = model.model_fields.get(part)
        inner = _models_in(field.annotation) if field else []
        if not inner:
            return None
        model = inner[0]
    return model


def _keys_at(path: Path) -> list[str]:
    model = _model_at(path)
    return list(model.model_fields) if model else []


def _home_of(name: str) -> str:
    """The one section that has a key of this name, if exactly one has."""
    homes: list[str] = []
    for section, field in Recipe.model_fields.items():
        homes += [
            section
            for model in _models_in(field.annotation)
            if name in model.model_fields and section != "matrix"
        ]
    if name in Recipe.model_fields:
        return ""
    return homes[0] if len(homes) == 1 else ""

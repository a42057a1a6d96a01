"""YAML: the one place that reads and writes it."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

import yaml
from pydantic import JsonValue

# A file of a few hundred bytes can stand for billions of values through its aliases.
_MOST_VALUES = 100_000


class _Reader(yaml.SafeLoader):
    """Plain values of YAML 1.2: no dates, and `yes` and `on` are words, as in OpenPAI's js-yaml."""

    def construct_mapping(self, node: Any, deep: bool = False) -> dict[Any, Any]:
        seen: set[str] = set()
        for key, _ in node.value:
            if not isinstance(key, yaml.ScalarNode):
                what = "a key is not text; a value that begins with { needs quotes"
                raise yaml.constructor.ConstructorError(None, None, what, key.start_mark)
            if key.value in seen:
                what = f"{key.value!r} is written twice"
                raise yaml.constructor.ConstructorError(None, None, what, key.start_mark)
            seen.add(key.value)
        return {str(key): value for key, value in super().construct_mapping(node, deep).items()}


_Reader.yaml_implicit_resolvers = {
    first: [(tag, pattern) for tag, pattern in items if not tag.endswith((":timestamp", ":bool"))]
    for first, items in yaml.SafeLoader.yaml_implicit_resolvers.items()
}
_Reader.add_implicit_resolver(
    "tag:yaml.org,2002:bool", re.compile(r"^(?:true|True|TRUE|false|False|FALSE)$"), list("tTfF")
)
# 1e-3 is a number for everybody but YAML 1.1, which wants a dot and a sign.
_Reader.add_implicit_resolver(
    "tag:yaml.org,2002:float",
    re.compile(r"^[-+]?(?:0|[1-9][0-9_]*)(?:\.[0-9_]*)?[eE][-+]?[0-9]+$"),
    list("-+0123456789"),
)


class _Writer(yaml.SafeDumper):
    """Blocks for text of several lines, no aliases, quotes around what only sounds like a value."""

    def ignore_aliases(self, data: Any) -> bool:
        return True

    def increase_indent(self, flow: bool = False, indentless: bool = False) -> None:
        super().increase_indent(flow, False)


def _text(writer: yaml.SafeDumper, text: str) -> yaml.ScalarNode:
    style = "|" if "\n" in text else None
    return writer.represent_scalar("tag:yaml.org,2002:str", text, style=style)


_Writer.add_representer(str, _text)
# Text that is a number or a truth for Kubernetes' reader: 08 is eight there, y is true.
_Writer.add_implicit_resolver(
    "tag:yaml.org,2002:float",
    re.compile(
        r"^[-+]?(?:0o[0-7_]+|(?:\.[0-9_]+|[0-9][0-9_]*(?:\.[0-9_]*)?)(?:[eE][-+]?[0-9]+)?)$"
    ),
    list("-+.0123456789"),
)
_Writer.add_implicit_resolver("tag:yaml.org,2002:bool", re.compile(r"^[yYnN]$"), list("yYnN"))


def read(text: str) -> JsonValue:
    """The value a text holds; `ValueError` says what is wrong with it."""
    documents = read_all(text)
    if len(documents) > 1:
        raise ValueError("is not valid YAML: it holds several documents")
    return documents[0] if documents else None


def read_all(text: str) -> list[JsonValue]:
    """The values of all documents of a text."""
    try:
        value = list(yaml.load_all(text, _Reader))
        _count(value, [0])
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        where = f"line {mark.line + 1}: " if mark else ""
        problem = getattr(error, "problem", None) or "cannot be read"
        raise ValueError(f"is not valid YAML: {where}{problem}") from None
    except RecursionError:
        raise ValueError("is not valid YAML: nested too deeply") from None
    return value


def _count(value: object, count: list[int]) -> None:
    count[0] += 1
    if count[0] > _MOST_VALUES:
        raise ValueError(f"holds more than {_MOST_VALUES:,} values")
    if value is not None and not isinstance(value, str | int | float | list | dict):
        raise ValueError(f"is not valid YAML: it holds a {type(value).__name__}, not plain values")
    parts = value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()
    for part in parts:
        _count(part, count)


def write(*documents: Mapping[str, object]) -> str:
    """Documents, each in the order of its keys."""
    return yaml.dump_all(
        documents,
        Dumper=_Writer,
        sort_keys=False,
        allow_unicode=True,
        width=10_000,
        explicit_start=len(documents) > 1,
    )

"""The page on environment variables has every variable that the source reads, and no other."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest
from tools.reference_pages import variables

pytestmark = pytest.mark.unit

SOURCE = Path(__file__).parents[2] / "src/torchsmith"
# Run inside somebody else's Python: what they read is set by torchsmith.
_WORKERS = ("verify/probe", "bench/worker")


def _name(node: ast.AST) -> str:
    return getattr(node, "attr", "") or getattr(node, "id", "")


def _read(tree: ast.Module) -> Iterator[ast.expr]:
    """Whatever is looked up in `os.environ`, in a mapping of that name, or by an option."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Subscript) and _name(node.value) == "environ":
            yield node.slice
        elif isinstance(node, ast.Call) and node.args and isinstance(node.func, ast.Attribute):
            if node.func.attr == "get" and _name(node.func.value) == "environ":
                yield node.args[0]
        elif isinstance(node, ast.Compare) and _name(node.comparators[0]) == "environ":
            yield node.left
        elif isinstance(node, ast.keyword) and node.arg == "envvar":
            yield node.value


@cache
def _found() -> frozenset[str]:
    """Every variable that a module reads by a name written in it."""
    names: set[str] = set()
    for path in SOURCE.rglob("*.py"):
        if any(part in path.as_posix() for part in _WORKERS):
            continue
        text = path.read_text(encoding="utf-8")
        names |= set(re.findall(r"""["'](_?TORCHSMITH_[A-Z_]*[A-Z])["']""", text))
        tree = ast.parse(text)
        constants = {
            _name(node.targets[0]): node.value
            for node in tree.body
            if isinstance(node, ast.Assign) and isinstance(node.value, ast.Constant)
        }
        for key in _read(tree):
            value = constants.get(_name(key), key)
            if isinstance(value, ast.Constant) and isinstance(value.value, str):
                names.add(value.value)
    return frozenset(names)


def _documented() -> set[str]:
    return {
        name
        for group in variables()["group"]
        for variable in group["variable"]
        for name in variable["names"]
    }


def test_every_variable_that_is_read_is_documented_or_internal() -> None:
    assert len(_found()) > 40
    assert _found() - _documented() - set(variables()["internal"]) == set()


def test_every_variable_on_the_page_is_known_to_the_source() -> None:
    files = [path for path in SOURCE.rglob("*") if path.suffix in (".py", ".sh", ".c", ".toml")]
    texts = [path.read_text(encoding="utf-8") for path in (*files, SOURCE.parents[1] / "dev")]
    whole = "\n".join(texts)
    for name in _documented() | set(variables()["internal"]):
        known = re.search(rf"\b{name}\b", whole) or name.lower() in whole
        assert known, name
    assert not _documented() & set(variables()["internal"])

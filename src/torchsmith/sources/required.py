"""What a source says its project requires once it is installed; nothing of it is run."""

from __future__ import annotations

import ast
import contextlib
from collections.abc import Iterator
from email.parser import HeaderParser
from pathlib import Path

from packaging.requirements import InvalidRequirement, Requirement
from packaging.utils import canonicalize_name


def required(tree: Path) -> list[str]:
    """What is required besides torch: by an sdist's metadata, else by what setup.py spells out."""
    found: list[str] = []
    for line in _from_metadata(tree) or _from_setup(tree):
        with contextlib.suppress(InvalidRequirement):
            wanted = Requirement(line)
            if canonicalize_name(wanted.name) != "torch" and "extra" not in str(wanted.marker):
                found.append(line)
    return found


def _from_metadata(tree: Path) -> list[str]:
    try:
        text = (tree / "PKG-INFO").read_text("utf-8", "replace")
    except OSError:
        return []
    lines: list[str] = HeaderParser().parsestr(text).get_all("Requires-Dist", [])
    return lines


def _from_setup(tree: Path) -> list[str]:
    """The texts in lists called install_requires: PyTorch's own has most of its there."""
    try:
        module = ast.parse((tree / "setup.py").read_bytes())
    except (OSError, SyntaxError, ValueError):
        return []
    return [
        item.value
        for value in _given_as(module, "install_requires")
        if isinstance(value, ast.List | ast.Tuple)
        for item in value.elts
        if isinstance(item, ast.Constant) and isinstance(item.value, str)
    ]


def _given_as(module: ast.Module, name: str) -> Iterator[ast.expr]:
    for node in ast.walk(module):
        match node:
            case ast.Assign(targets=[ast.Name(id=found)], value=value) if found == name:
                yield value
            case ast.keyword(arg=found, value=value) if found == name:
                yield value
            case _:
                pass

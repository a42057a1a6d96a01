"""What every Python of a build imports when it starts, old ones too."""

from __future__ import annotations

import ast

import pytest

from torchsmith.toolchain import preload

pytestmark = pytest.mark.unit


def test_python_3_5_reads_what_is_imported_at_its_start() -> None:
    path = preload._HERE / "setuptools_hook/sitecustomize.py"
    tree = ast.parse(path.read_text(encoding="utf-8"), feature_version=(3, 5))
    imported = [node.module for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)]
    # It is of 3.7, and a Python that does not know it says so before each line of a build.
    assert "__future__" not in imported

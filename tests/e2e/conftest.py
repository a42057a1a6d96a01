"""What real builds share: running torchsmith in a project, and a small extension to build."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Protocol

import pytest

SETUP = """
from setuptools import setup
from torch.utils.cpp_extension import BuildExtension, CppExtension

setup(
    name="tiny",
    version="1.0",
    packages=["tiny"],
    ext_modules=[CppExtension("tiny._C", ["tiny.cpp"])],
    cmdclass={"build_ext": BuildExtension},
)
"""
# Only what the operator needs: all of torch/extension.h takes a minute to read, each time.
CODE = """
#include <torch/csrc/utils/pybind.h>
#include <ATen/core/Tensor.h>
at::Tensor twice(const at::Tensor& x) { return x.mul(2); }
PYBIND11_MODULE(TORCH_EXTENSION_NAME, m) { m.def("twice", &twice); }
"""


class Torchsmith(Protocol):
    """Runs the command in a project, `before` other words: a program that starts it."""

    def __call__(
        self,
        project: Path,
        *arguments: str,
        store: str = "store",
        before: Sequence[str] = (),
        env: Mapping[str, str] = ...,
        timeout: float = 1800,
    ) -> subprocess.CompletedProcess[str]: ...


@pytest.fixture(scope="session")
def torchsmith() -> Torchsmith:
    """Run the command in a project; its store lies beside it."""

    def run(
        project: Path,
        *arguments: str,
        store: str = "store",
        before: Sequence[str] = (),
        env: Mapping[str, str] | None = None,
        timeout: float = 1800,
    ) -> subprocess.CompletedProcess[str]:
        stored = {"TORCHSMITH_STORE": str(project.parent / store)}
        return subprocess.run(
            [*before, sys.executable, "-m", "torchsmith", *arguments],
            cwd=project,
            env={**os.environ, **stored, **(env or {})},
            capture_output=True,
            text=True,
            check=False,
            timeout=timeout,
        )

    return run


@pytest.fixture
def tiny(tmp_path: Path) -> Path:
    """A project folder with a C++ extension in it; the recipe is the test's own."""
    folder = tmp_path / "project"
    package = folder / "tiny" / "tiny"
    package.mkdir(parents=True)
    (folder / "tiny" / "setup.py").write_text(SETUP, encoding="utf-8")
    (folder / "tiny" / "tiny.cpp").write_text(CODE, encoding="utf-8")
    text = "import torch\nfrom tiny._C import twice\n"
    (package / "__init__.py").write_text(text, encoding="utf-8")
    return folder

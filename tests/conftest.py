"""The published torch that tests with real tools share."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

# The CPU build on every platform: PyPI's own wheel for x86_64 brings gigabytes of CUDA.
PUBLISHED = "2.13.0+cpu"
_CPU_INDEX = "https://download.pytorch.org/whl/cpu"


def pip(python: Path | str, *arguments: str) -> None:
    """Run pip; PyTorch's own index is asked where the configured ones do not have it."""
    command = [str(python), "-m", "pip", *arguments]
    first = subprocess.run(command, capture_output=True, text=True, check=False)
    if first.returncode:
        more = [*command, "--extra-index-url", _CPU_INDEX]
        again = subprocess.run(more, capture_output=True, text=True, check=False)
        assert again.returncode == 0, first.stderr + again.stderr


@pytest.fixture(scope="session")
def published_wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The wheel of the published torch."""
    folder = tmp_path_factory.mktemp("published-wheel")
    pip(
        sys.executable,
        *("download", "--quiet", "--no-deps", "--dest", str(folder), f"torch=={PUBLISHED}"),
    )
    (wheel,) = folder.glob("torch-*.whl")
    return wheel


@pytest.fixture(scope="session")
def published_torch(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An environment with the published torch and what extensions are built with."""
    folder = tmp_path_factory.mktemp("published-torch") / "env"
    subprocess.run([sys.executable, "-m", "venv", str(folder)], check=True)
    tools = ("numpy", "setuptools", "wheel", "ninja")
    pip(folder / "bin/python", "install", "--quiet", f"torch=={PUBLISHED}", *tools)
    return folder

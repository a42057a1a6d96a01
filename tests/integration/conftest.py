"""What the tests with real tools share."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest


@pytest.fixture(scope="session")
def build_tools() -> Iterator[None]:
    """CMake and a Ninja that knows jobservers, from the environment the tests run in."""
    programs = Path(sys.executable).parent
    if not (programs / "ninja").exists() or not (programs / "cmake").exists():
        wanted = ["ninja>=1.13", "cmake>=3.21"]
        subprocess.run([sys.executable, "-m", "pip", "install", "-q", *wanted], check=True)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PATH", f"{programs}{os.pathsep}{os.environ['PATH']}")
        yield

"""What tests of every kind share: the published torch, installed once for all of them."""

from __future__ import annotations

import platform
import subprocess
import sys
from pathlib import Path

import pytest

# Small and without CUDA on AArch64; on x86-64 PyPI's wheel has CUDA 12.4 in it, and runs without.
PUBLISHED_TORCH = "2.6.0"


@pytest.fixture(scope="session")
def published_torch(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An environment with the published torch, as pip brings it here. Nobody writes into it."""
    folder = tmp_path_factory.mktemp("published") / "env"
    subprocess.run([sys.executable, "-m", "venv", folder], check=True)
    install = [str(folder / "bin/python"), "-m", "pip", "install", "--quiet"]
    subprocess.run([*install, f"torch=={PUBLISHED_TORCH}", "numpy"], check=True)
    return folder


@pytest.fixture(scope="session")
def published_wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The published torch as a file."""
    folder = tmp_path_factory.mktemp("wheel")
    download = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps"]
    subprocess.run([*download, f"torch=={PUBLISHED_TORCH}"], check=True, cwd=folder)
    (path,) = folder.glob("torch-*.whl")
    return path


@pytest.fixture(scope="session")
def published_is_small() -> bool:
    """Whether the published wheel comes without CUDA here."""
    return platform.machine() == "aarch64"

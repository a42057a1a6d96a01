"""A stack of real packages: source archives of PyPI, one torch, and a lock that installs them."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from tests.conftest import PUBLISHED_TORCH
from tests.e2e.conftest import Torchsmith

RECIPE = """
name = "graphs"
torch = {{ release = "{release}", use = "installed", environment = "{environment}" }}
python = "host"

[stack]
"""
SMALL = ("torch-spline-conv",)
# torch-sparse brings torch-scatter along: four packages, some forty files, half an hour.
LARGE = ("torch-spline-conv", "torch-cluster", "torch-sparse")


@pytest.mark.parametrize(
    "names",
    [
        pytest.param(SMALL, marks=[pytest.mark.e2e, pytest.mark.long], id="small"),
        pytest.param(LARGE, marks=[pytest.mark.e2e, pytest.mark.long], id="large"),
    ],
)
def test_a_stack_is_built_from_pypi_and_installed_from_its_lock(
    tmp_path: Path, torchsmith: Torchsmith, published_torch: Path, names: tuple[str, ...]
) -> None:
    project = tmp_path / "project"
    project.mkdir()
    text = RECIPE.format(release=PUBLISHED_TORCH, environment=published_torch)
    text += "".join(f'{name} = "match"\n' for name in names)
    (project / "recipe.toml").write_text(text, encoding="utf-8")
    built = torchsmith(project, "build", timeout=7200)
    assert built.returncode == 0, built.stderr
    lock = project / "dist/pylock.toml"
    assert str(lock) in built.stdout.splitlines()

    # Into an environment of somebody's own, on top of the torch they have.
    target = tmp_path / "installed"
    subprocess.run(
        [sys.executable, "-m", "uv", "pip", "install", "--target", target, "-r", lock], check=True
    )
    modules = [name.replace("-", "_") for name in names]
    used = f"import sys; sys.path.insert(0, {str(target)!r}); import torch, {', '.join(modules)}"
    subprocess.run([published_torch / "bin/python", "-c", used], check=True)

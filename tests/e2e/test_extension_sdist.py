"""An extension from PyPI's source archive is built against exactly the torch it is used with."""

from __future__ import annotations

import json
import zipfile
from pathlib import Path

import pytest
from tests.conftest import PUBLISHED_TORCH
from tests.e2e.conftest import Torchsmith

# Five minutes and more: four extension modules, one file after the other, 2.6 GiB for one of them.
pytestmark = [pytest.mark.e2e, pytest.mark.long]

RECIPE = """
name = "scatter"
torch = {{ release = "{release}", use = "installed", environment = "{environment}" }}
python = "host"

[[companions.extension]]
name = "torch-scatter"
sdist = "torch-scatter==2.1.2"
sha256 = "69b3aa435f2424ac6a1bfb6ff702da6eb73b33ca0db38fb26989c74159258e47"
check = "{check}"
"""
CHECK = (
    "from torch_scatter import scatter_max; "
    "found = scatter_max(torch.tensor([1., 5., 3.]), torch.tensor([0, 1, 1])); "
    "assert [part.tolist() for part in found] == [[1., 5.], [0, 1]], found"
)


def test_torch_scatter_is_built_from_its_sdist_and_works(
    tmp_path: Path, torchsmith: Torchsmith, published_torch: Path
) -> None:
    project = tmp_path / "project"
    project.mkdir()
    text = RECIPE.format(release=PUBLISHED_TORCH, environment=published_torch, check=CHECK)
    (project / "recipe.toml").write_text(text, encoding="utf-8")
    built = torchsmith(project, "build", timeout=3600)
    assert built.returncode == 0, built.stderr
    wheel = Path(built.stdout.strip())
    assert wheel.name.startswith("torch_scatter-2.1.2-cp3")
    with zipfile.ZipFile(wheel) as archive:
        assert any(name.startswith("torch_scatter/_scatter_cpu") for name in archive.namelist())

    def keys(recipe: str) -> dict[str, str]:
        (project / "recipe.toml").write_text(recipe, encoding="utf-8")
        plan = json.loads(torchsmith(project, "plan", "--json").stdout)
        return {step["kind"]: step["key"] for step in plan["steps"]}

    mine = keys(text)
    other = keys(text.replace("2.1.2", "2.1.1"))
    # The same source against another torch is another build; another source needs no other torch.
    assert mine["environment"] == other["environment"]
    wheel_torch = f'{{ release = "{PUBLISHED_TORCH}", use = "wheel" }}'
    lines = [
        f"torch = {wheel_torch}" if line.startswith("torch =") else line
        for line in text.splitlines()
    ]
    published = keys("\n".join(lines))
    assert published["fetch"] == mine["fetch"]
    assert published["compile"] != mine["compile"]

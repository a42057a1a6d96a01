"""torchvision is built from source, reads what it must, and is refused otherwise."""

from __future__ import annotations

import json
import os
import shutil
import zipfile
from pathlib import Path

import pytest
from tests.conftest import PUBLISHED_TORCH
from tests.e2e.conftest import Torchsmith

pytestmark = pytest.mark.e2e

PRESET = ("--preset", "vision-quickstart")


# Where GitHub cannot be reached, Debian's 0.21.0 is the newest source there is; it goes with newer
# releases of torch, too. The preset itself brings the torch that belongs to it, with CUDA in it
# where PyPI's wheel has that: gigabytes, which would show nothing more.
RECIPE = f"""
name = "vision"
torch = {{ release = "{PUBLISHED_TORCH}", use = "installed", environment = "ENVIRONMENT" }}
python = "host"
cuda = "none"

[companions]
vision = "0.21.0"
vision_formats = ["jpeg", "png"]
unmatched = true
"""


def test_torchvision_is_built_and_reads_jpeg_and_png(
    tmp_path: Path, torchsmith: Torchsmith, published_torch: Path
) -> None:
    project = tmp_path / "project"
    project.mkdir()
    (project / "recipe.toml").write_text(RECIPE.replace("ENVIRONMENT", str(published_torch)))
    built = torchsmith(project, "build", timeout=3600)
    assert built.returncode == 0, built.stderr
    assert "ok Verify" in built.stderr
    wheel = next(Path(line) for line in built.stdout.split() if line.endswith(".whl"))
    assert wheel.name.startswith("torchvision-0.21.0-cp3")
    with zipfile.ZipFile(wheel) as archive:
        (name,) = (item for item in archive.namelist() if item.endswith("/METADATA"))
        assert f"Requires-Dist: torch=={PUBLISHED_TORCH}" in archive.read(name).decode()
        code = archive.read("torchvision/image.so")
    assert b"jpeg_CreateDecompress" in code
    assert b"png_create_read_struct" in code
    proven = json.loads(wheel.with_name(f"{wheel.name}.verify.json").read_bytes())
    passed = {check["name"] for check in proven["checks"] if check["status"] == "pass"}
    for check in ("nms", "decode jpeg", "decode png"):
        assert any(name.endswith(check) for name in passed), (check, passed)

    again = torchsmith(project, "build")
    assert again.stdout == built.stdout
    assert again.stderr.count("(in the store)") == 5


def test_png_that_cannot_be_built_is_refused_before_anything_is_begun(
    tmp_path: Path, torchsmith: Torchsmith
) -> None:
    """The search path has every program of this machine but the one libpng's headers come with."""
    programs = tmp_path / "bin"
    programs.mkdir()
    folders = [Path(name) for name in os.environ["PATH"].split(os.pathsep)]
    for path in (path for folder in folders if folder.is_dir() for path in folder.iterdir()):
        place = programs / path.name
        if path.name != "libpng-config" and not place.exists():
            place.symlink_to(path)
    assert shutil.which("gcc", path=str(programs))
    project = tmp_path / "project"
    project.mkdir()
    refused = torchsmith(project, "build", *PRESET, env={"PATH": str(programs)}, timeout=60)
    assert refused.returncode == 4
    assert "libpng-config is missing" in refused.stderr or "libpng-dev" in refused.stderr
    assert not (tmp_path / "store" / "logs").exists()

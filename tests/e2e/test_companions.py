"""torchvision is built from source by the preset, reads what it must, and is refused otherwise."""

from __future__ import annotations

import os
import shutil
import zipfile
from pathlib import Path

import pytest
from tests.e2e.conftest import Torchsmith

pytestmark = pytest.mark.e2e

PRESET = ("--preset", "vision-quickstart")


def test_the_preset_builds_torchvision_that_reads_jpeg_and_png(
    tmp_path: Path, torchsmith: Torchsmith
) -> None:
    project = tmp_path / "project"
    project.mkdir()
    built = torchsmith(project, "build", *PRESET, timeout=3600)
    assert built.returncode == 0, built.stderr
    assert "ok Verify vision" in built.stderr
    wheel = Path(built.stdout.strip())
    assert wheel.name.startswith("torchvision-0.21.0-cp3")
    with zipfile.ZipFile(wheel) as archive:
        (name,) = (item for item in archive.namelist() if item.endswith("/METADATA"))
        assert "Requires-Dist: torch==2.6.0" in archive.read(name).decode()
        code = archive.read("torchvision/image.so")
    assert b"jpeg_CreateDecompress" in code
    assert b"png_create_read_struct" in code

    again = torchsmith(project, "build", *PRESET)
    assert again.stdout == built.stdout
    assert again.stderr.count("(in the store)") == 4


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

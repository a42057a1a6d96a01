"""rattler-build packs a wheel with the plan's own recipe: names, files, RPATHs.

No conda channel can be reached from a test machine: a channel made here stands in for it, whose
python and patchelf are this machine's own and whose torch is a wheel of a few bytes.
"""

from __future__ import annotations

import hashlib
import json
import shutil
import subprocess
import sys
import tarfile
import zipfile
from collections.abc import Callable
from pathlib import Path

import pytest

from torchsmith.plan.conda import conda_subdir
from torchsmith.plan.models import Plan
from torchsmith.plan.packages import LIBRARY_RPATH, MODULE_RPATH
from torchsmith.plan.render.twins import twin
from torchsmith.recipe.models import Recipe

pytestmark = [pytest.mark.integration, pytest.mark.usefixtures("rendering_tools")]

RECIPE = """\
name = "cpu"
torch = "2.6.0"
python = "3.11"
packages = { conda = true, conda_format = "tar.bz2" }
"""


def shim(folder: Path, name: str, text: str) -> None:
    (folder / "bin").mkdir(parents=True, exist_ok=True)
    program = folder / "bin" / name
    program.write_text(f"#!/bin/sh\n{text}\n")
    program.chmod(0o755)


def make_channel(folder: Path, subdir: str) -> Path:
    """A channel with what the recipe asks for."""
    from rattler_build import assemble_package

    python = folder / "files-python"
    # pip installs for this interpreter: it is told where the prefix keeps its modules.
    shim(python, "python", f'PIP_TARGET="$SP_DIR" exec {sys.executable} "$@"')
    patchelf = folder / "files-patchelf"
    found = shutil.which("patchelf")
    assert found
    shim(patchelf, "patchelf", f'exec {found} "$@"')
    channel = folder / "channel"
    packages = {
        "python": ("3.11.9", python),
        "patchelf": ("0.18.0", patchelf),
        "pip": ("24.0", None),
        "setuptools": ("70.0.0", None),
        "numpy": ("1.26.4", None),
    }
    table: dict[str, object] = {}
    for name, (version, files) in packages.items():
        made = assemble_package(
            name, version, subdir, "0", channel / subdir, files_dir=files, license="MIT"
        )
        content = Path(made.path).read_bytes()
        table[Path(made.path).name] = {
            "name": name,
            "version": version,
            "build": "0",
            "build_number": 0,
            "depends": [],
            "subdir": subdir,
            "size": len(content),
            "sha256": hashlib.sha256(content).hexdigest(),
        }
    for place, listed in ((subdir, table), ("noarch", {})):
        (channel / place).mkdir(exist_ok=True)
        repodata = {"info": {"subdir": place}, "packages": {}, "packages.conda": listed}
        (channel / place / "repodata.json").write_text(json.dumps(repodata))
    return channel


def make_wheel(path: Path, folder: Path, version: str) -> None:
    """A wheel named like torch's, with a module and a library as torch has them."""
    path.parent.mkdir(parents=True)
    (folder / "empty.c").write_text("int answer(void) { return 42; }\n")
    shared = folder / "empty.so"
    subprocess.run(["gcc", "-shared", "-fPIC", "-o", shared, folder / "empty.c"], check=True)
    info = f"torch-{version}.dist-info"
    with zipfile.ZipFile(path, "w") as wheel:
        wheel.writestr("torch/__init__.py", "")
        wheel.write(shared, "torch/_C.cpython-311.so")
        wheel.write(shared, "torch/lib/libtorch.so")
        wheel.writestr(
            f"{info}/METADATA", f"Metadata-Version: 2.1\nName: torch\nVersion: {version}\n"
        )
        wheel.writestr(f"{info}/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: false\n")
        wheel.writestr(f"{info}/RECORD", "")


def rpath(file: Path) -> str:
    said = subprocess.run(
        ["patchelf", "--print-rpath", file], capture_output=True, text=True, check=True
    )
    return said.stdout.strip()


def test_the_plans_own_recipe_packs_the_wheel(
    planned: Callable[[str | Path], tuple[Plan, Recipe]],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    from rattler_build import Stage0Recipe, VariantConfig

    plan, _ = planned(RECIPE)
    (resolution,) = plan.variants
    step = next(step for step in plan.steps if step.id == "package-conda-cpu")
    work = tmp_path / "work"
    files = twin(step, resolution).files
    for name, content in files.items():
        (work / name).parent.mkdir(parents=True, exist_ok=True)
        (work / name).write_bytes(content)
    compiled = next(item for item in plan.steps if item.id == step.needs[0])
    make_wheel(work / compiled.outputs[0], tmp_path, resolution.version)
    subdir = conda_subdir(resolution.platform)
    channel = make_channel(tmp_path, subdir)
    monkeypatch.setenv("RATTLER_CACHE_DIR", str(tmp_path / "cache"))
    recipe = Stage0Recipe.from_file(work / next(iter(files)))
    recipe.run_build(
        VariantConfig(),
        output_dir=work / "channel/cpu",
        channels=[channel.as_uri()],
        no_build_id=True,
        package_format="tar.bz2",
    )
    package = work / step.outputs[0]
    assert package.exists(), [str(path) for path in (work / "channel").rglob("*.bz2")]
    with tarfile.open(package) as archive:
        archive.extractall(tmp_path / "out")
    index = json.loads((tmp_path / "out/info/index.json").read_text())
    assert (index["name"], index["version"]) == ("pytorch", "2.6.0")
    assert (index["build"], index["subdir"]) == (resolution.conda_build, subdir)
    assert "python 3.11.*" in index["depends"]
    torch = next((tmp_path / "out").glob("lib/python3.11/site-packages/torch"))
    assert rpath(torch / "_C.cpython-311.so") == MODULE_RPATH
    assert rpath(torch / "lib/libtorch.so") == LIBRARY_RPATH
    assert (torch.parent / f"torch-{resolution.version}.dist-info").is_dir()

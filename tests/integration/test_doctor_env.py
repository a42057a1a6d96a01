"""The doctor looks at real environments: one that is well, and ones with a real mismatch."""

from __future__ import annotations

import json
import os
import platform
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path
from typing import NamedTuple

import pytest
from tests.conftest import PUBLISHED_TORCH

pytestmark = pytest.mark.integration

SITE = f"lib/python{sys.version_info.major}.{sys.version_info.minor}/site-packages"
# torchCheckFail as it was called without the C++11 ABI: no torch since 2.6 has it.
OLD_ABI = "_ZN3c106detail14torchCheckFailEPKcS2_jRKSs"


class Said(NamedTuple):
    """What the doctor said of an environment."""

    code: int
    checks: dict[str, dict[str, str]]
    error: str

    def status(self, subject: str) -> str:
        return self.checks[subject]["status"]


def doctor(*arguments: str | Path, env: dict[str, str] | None = None) -> Said:
    done = subprocess.run(
        [sys.executable, "-m", "torchsmith", "doctor", "--env", "--json", *map(str, arguments)],
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, **(env or {})},
        timeout=120,
    )
    assert "Traceback" not in done.stderr, done.stderr
    found = json.loads(done.stdout).get("checks", [])
    return Said(done.returncode, {item["name"]: item for item in found}, done.stderr)


def layered(folder: Path, below: Path) -> Path:
    """An environment of its own on top of another, which stays as it is."""
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", folder], check=True)
    line = f"import site; site.addsitedir({str(below / SITE)!r})\n"
    (folder / SITE / "below.pth").write_text(line)
    return folder


def downloaded(requirement: str, folder: Path) -> Path:
    """The one wheel of a requirement, without what it needs."""
    folder.mkdir()
    command = ["pip", "download", "--quiet", "--no-deps", "--dest", str(folder), requirement]
    done = subprocess.run([sys.executable, "-m", *command], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    (path,) = folder.glob("*.whl")
    return path


def library(path: Path, source: str, *flags: str) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    command = ["gcc", "-shared", "-fPIC", "-x", "c", "-", "-o", str(path), *flags]
    subprocess.run(command, input=source, text=True, check=True)
    return path


def extension_of_another_torch(environment: Path, torch: Path) -> None:
    """A package linked with torch's library that asks for a symbol this torch does not have."""
    site = environment / SITE
    source = f"void {OLD_ABI}(void);\nvoid *needs(void) {{ return (void *){OLD_ABI}; }}\n"
    path = site / "oldops/_C.so"
    library(path, source, "-Wl,--no-as-needed", f"-L{torch / SITE}/torch/lib", "-lc10")
    (site / "oldops/__init__.py").write_text(
        "import ctypes, os\nimport torch\nctypes.CDLL(os.path.join(__path__[0], '_C.so'))\n"
    )
    notes = site / "oldops-1.0.dist-info"
    notes.mkdir()
    (notes / "METADATA").write_text("Metadata-Version: 2.1\nName: oldops\nVersion: 1.0\n")
    (notes / "RECORD").write_text("oldops/__init__.py,,\noldops/_C.so,,\n")


def second_openmp(folder: Path) -> Path:
    """Intel's OpenMP; where there is none for the processor, a library of LLVM's name."""
    if platform.machine() != "x86_64":
        return library(folder / "libomp.so.5", "int omp_stand_in;\n")
    with zipfile.ZipFile(downloaded("intel-openmp==2020.0.133", folder)) as wheel:
        (name,) = [item for item in wheel.namelist() if item.endswith("/libiomp5.so")]
        return Path(wheel.extract(name, folder))


def test_a_published_torch_is_well(published_torch: Path) -> None:
    said = doctor(published_torch)
    assert said.code == 0, said
    assert said.status("import torch") == "pass"
    assert PUBLISHED_TORCH in said.checks["import torch"]["found"]
    for subject in ("one torch", "NumPy", "OpenMP", "BLAS", "threads"):
        assert said.status(subject) == "pass", said.checks[subject]


def test_every_mismatch_of_an_environment_is_named(published_torch: Path, tmp_path: Path) -> None:
    environment = layered(tmp_path / "env", published_torch)
    with zipfile.ZipFile(downloaded("torchvision==0.21.0", tmp_path / "vision")) as wheel:
        wheel.extractall(environment / SITE)
    extension_of_another_torch(environment, published_torch)
    own = tmp_path / "own"
    own.mkdir()
    # Torch's own, elsewhere: any libgomp would do.
    shutil.copy(next((published_torch / SITE / "torch/lib").glob("libgomp*.so*")), own)
    openmp = second_openmp(tmp_path / "openmp")
    said = doctor(environment, env={"LD_PRELOAD": str(openmp), "LD_LIBRARY_PATH": str(own)})
    assert said.code == 4
    assert "cannot work as it is" in said.error
    vision = said.checks["torchvision"]
    assert vision["status"] == "fail"
    assert f"0.21.0 for torch==2.6.0; {PUBLISHED_TORCH}" in vision["found"]
    assert f"which belongs to torch {PUBLISHED_TORCH}" in vision["cure"]
    ops = said.checks["oldops"]
    assert ops["status"] == "fail"
    assert OLD_ABI in ops["why"]
    assert "without the C++11 ABI" in ops["why"]
    assert said.status("OpenMP") == "warn"
    assert openmp.name in said.checks["OpenMP"]["found"]
    assert "LD_PRELOAD" in said.checks["OpenMP"]["cure"]
    assert f"{own}/" in said.checks["LD_LIBRARY_PATH"]["found"]
    assert said.status("LD_LIBRARY_PATH") == "warn"


@pytest.mark.parametrize(
    ("source", "found"),
    [
        ("import time; time.sleep(60)", "did not end within 2 s"),
        ("import os; os.abort()", "SIGABRT"),
        ("raise ImportError('libcudnn.so.9: cannot open shared object file')", "libcudnn.so.9"),
    ],
)
def test_a_torch_that_cannot_be_imported_fails(source: str, found: str, tmp_path: Path) -> None:
    environment = layered(tmp_path / "env", tmp_path)
    module = environment / SITE / "torch"
    module.mkdir()
    (module / "__init__.py").write_text(f"{source}\n")
    (module / "version.py").write_text("__version__ = '2.6.0'\n")
    said = doctor(environment, "--timeout", "2")
    assert said.code == 4
    assert said.status("import torch") == "fail"
    assert found in said.checks["import torch"]["found"]


def test_what_is_no_torch_is_told(tmp_path: Path) -> None:
    assert "does not exist" in doctor(tmp_path / "nowhere").error
    assert doctor(tmp_path).code == 2
    assert "no bin/python" in doctor(tmp_path).error
    empty = layered(tmp_path / "empty", tmp_path)
    said = doctor(env={"VIRTUAL_ENV": str(empty)})
    assert said.code == 4
    assert f"{empty}/bin/python has no torch" in said.error
    broken = tmp_path / "python"
    broken.write_text("#!/bin/sh\nexit 1\n")
    broken.chmod(0o755)
    assert "is not a Python 3 that runs here" in doctor(broken).error
    old = tmp_path / "python2"
    old.write_text('#!/bin/sh\necho \'["2.7.18", "/usr", [], ""]\'\n')
    old.chmod(0o755)
    assert "Python 2.7.18 is too old" in doctor(old).error

"""What a compiler leaves open is what `fits` looks for in a torch that is there."""

from __future__ import annotations

import base64
import hashlib
import io
import json
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from torchsmith.host.system import read_platform
from torchsmith.verify.binary import read_symbols

pytestmark = pytest.mark.integration

MACHINE = read_platform().partition("-")[2]
PYTHON = f"cp{sys.version_info[0]}{sys.version_info[1]}"
TAG = f"{PYTHON}-{PYTHON}-linux_{MACHINE}"
EXTENSION = """
#include <string.h>
extern int _ZN3c104kindEv(void);
extern int _ZN2at4goneEv(void);
extern int perhaps(void) __attribute__((weak));
static int hidden(void) { return 1; }
int shown(char *to, const char *from, unsigned long many) {
  memcpy(to, from, many);
  return _ZN3c104kindEv() + hidden() + (perhaps ? perhaps() : 0) USE;
}
"""


def library(path: Path, source: str, *flags: str) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    command = ["gcc", "-shared", "-fPIC", "-O1", "-x", "c", "-", "-o", str(path), *flags]
    subprocess.run(command, input=source, text=True, check=True)
    return path


@pytest.fixture
def torch(tmp_path: Path) -> Path:
    """An environment with a torch of one function."""
    env = tmp_path / "env"
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(env)], check=True)
    site = next(env.glob("lib/python*/site-packages"))
    library(site / "torch/lib/libc10.so", "int _ZN3c104kindEv(void) { return 1; }")
    (site / "torch/__init__.py").write_text("", encoding="utf-8")
    (site / "torch/version.py").write_text("__version__ = '2.8.0+own'\n", encoding="utf-8")
    return env


def extension(folder: Path, torch: Path, use: str) -> bytes:
    lib = next(torch.glob("lib/python*/site-packages/torch/lib"))
    made = library(folder / "_C.so", EXTENSION.replace("USE", use), f"-L{lib}", "-lc10")
    return made.read_bytes()


def wheel(folder: Path, content: bytes, **more: bytes) -> Path:
    files = {
        "demo/__init__.py": b"",
        "demo/_C.so": content,
        **{f"demo/{name}": data for name, data in more.items()},
        "demo-1.0.dist-info/METADATA": b"Metadata-Version: 2.1\nName: demo\nVersion: 1.0\n",
        "demo-1.0.dist-info/WHEEL": f"Wheel-Version: 1.0\nTag: {TAG}\n".encode(),
    }
    rows = [
        f"{name},sha256={base64.urlsafe_b64encode(hashlib.sha256(data).digest()).decode()},"
        for name, data in files.items()
    ]
    files["demo-1.0.dist-info/RECORD"] = "\n".join(rows).encode()
    path = folder / f"demo-1.0-{TAG}.whl"
    with zipfile.ZipFile(path, "w") as archive:
        for name, data in files.items():
            archive.writestr(name, data)
    return path


def fits(*words: object) -> tuple[int, dict[str, object]]:
    command = [sys.executable, "-m", "torchsmith", "fits", *map(str, words), "--json"]
    done = subprocess.run(command, stdout=subprocess.PIPE, check=False)
    return done.returncode, json.loads(done.stdout)


def test_only_what_has_to_be_found_is_needed(tmp_path: Path, torch: Path) -> None:
    found = read_symbols(io.BytesIO(extension(tmp_path, torch, "+ _ZN2at4goneEv()")))
    # Not memcpy, which has glibc's version; not the weak one; not what compilers add.
    assert found.needed == {"_ZN3c104kindEv", "_ZN2at4goneEv"}
    assert "shown" in found.defined
    assert "hidden" not in found.defined


def test_an_installed_torch_is_read_itself(tmp_path: Path, torch: Path) -> None:
    code, told = fits(wheel(tmp_path, extension(tmp_path, torch, "")), "--env", torch)
    assert (code, told["fits"]) == (0, ["2.8.0+own"])
    code, told = fits(
        wheel(tmp_path, extension(tmp_path, torch, "+ _ZN2at4goneEv()")), "--env", torch
    )
    assert (code, told["fits"]) == (9, [])
    releases = told["releases"]
    assert isinstance(releases, list)
    assert releases[0]["symbol"] == "_ZN2at4goneEv"


def test_a_program_in_the_wheel_is_not_loaded_with_it(tmp_path: Path, torch: Path) -> None:
    other = library(tmp_path / "other/libc10.so", "int _ZN2at4goneEv(void) { return 1; }")
    source = "extern int _ZN2at4goneEv(void); int main(void) { return _ZN2at4goneEv(); }"
    command = ["gcc", "-x", "c", "-", "-x", "none", str(other), "-o", f"{tmp_path}/program"]
    subprocess.run(command, input=source, text=True, check=True)
    content = (tmp_path / "program").read_bytes()
    assert "_ZN2at4goneEv" in read_symbols(io.BytesIO(content)).needed
    made = wheel(tmp_path, extension(tmp_path, torch, ""), program=content)
    code, told = fits(made, "--env", torch)
    assert (code, told["fits"]) == (0, ["2.8.0+own"])


def test_a_library_cut_short_is_refused(tmp_path: Path, torch: Path) -> None:
    content = extension(tmp_path, torch, "")
    code, told = fits(wheel(tmp_path, content[: len(content) // 2]))
    error = told["error"]
    assert isinstance(error, dict)
    assert (code, "is damaged" in error["message"]) == (9, True)

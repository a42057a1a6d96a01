"""Wheel variants, as their draft has them: named, described and listed by GPU."""

from __future__ import annotations

import base64
import hashlib
import json
import re
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest
from tests.integration.test_fatbin import SOURCE
from tests.integration.test_finish_wheel import compile_library, pack

pytestmark = pytest.mark.integration

# https://peps.python.org/pep-0825/#variant-label
LABEL = re.compile(r"[0-9a-z_.]{1,16}")


def gpu_wheel(nvcc: Path, folder: Path, version: str, *codes: str) -> Path:
    tree = folder / "tree"
    (tree / "demo").mkdir(parents=True)
    (folder / "a.cu").write_text(SOURCE)
    words = [nvcc, "-ccbin", "g++", "-Xcompiler", "-fPIC", "-shared", "-cudart", "none"]
    for code in codes:
        words += ["-gencode", f"arch=compute_{code.partition('_')[2]},code={code}"]
    command = [*map(str, words), "-o", str(tree / "demo/a.so"), "a.cu"]
    subprocess.run(command, cwd=folder, check=True)
    return pack(tree, folder / "wheels", "demo", version)


def finished(wheel: Path, output: Path) -> subprocess.CompletedProcess[str]:
    words = [sys.executable, "-m", "torchsmith", "finish", str(wheel), "--libraries", "system"]
    return subprocess.run(
        [*words, "--experimental", "--output", str(output)],
        capture_output=True,
        text=True,
        check=False,
    )


def described(folder: Path, name: str) -> dict[str, object]:
    """What the variant says of itself, its RECORD held against its files."""
    (path,) = folder.glob(f"demo-*-{name}.whl")
    assert LABEL.fullmatch(name)
    with zipfile.ZipFile(path) as archive:
        record = archive.read(next(n for n in archive.namelist() if n.endswith("/RECORD")))
        for line in filter(None, record.decode().splitlines()):
            file, digest, _ = line.rsplit(",", 2)
            made = base64.urlsafe_b64encode(hashlib.sha256(archive.read(file)).digest())
            assert digest in ("", "sha256=" + made.rstrip(b"=").decode()), file
        (inside,) = (n for n in archive.namelist() if n.endswith(".dist-info/variant.json"))
        read: dict[str, object] = json.loads(archive.read(inside))
    return read


def test_gpu_code_and_cuda_are_properties_and_the_list_names_every_variant(
    nvcc: Path, tmp_path: Path
) -> None:
    out = tmp_path / "out"
    made = finished(gpu_wheel(nvcc, tmp_path, "1.0+cu130", "sm_90", "compute_100", "sm_100"), out)
    assert made.returncode == 0, made.stderr
    wanted = {
        "nvidia": {
            "sm_arch": ["90_real", "100_virtual", "100_real"],
            "cuda_version_lower_bound": ["13.0"],
        }
    }
    inside = described(out, "cu130_90_100")
    assert inside["variants"] == {"cu130_90_100": wanted}
    assert inside["default-priorities"] == {"namespace": ["nvidia"]}
    assert json.loads((out / "demo-1.0+cu130-variants.json").read_text()) == inside
    # The wheel itself is there too, for installers of today.
    assert len(list(out.glob("*.whl"))) == 2


def test_one_without_gpu_code_is_the_variant_for_anybody(tmp_path: Path) -> None:
    tree = tmp_path / "tree"
    compile_library(tree / "demo/a.so", "int one(void) { return 1; }")
    out = tmp_path / "out"
    made = finished(pack(tree, tmp_path / "wheels", "demo", "1.0"), out)
    assert made.returncode == 0, made.stderr
    assert described(out, "null")["variants"] == {"null": {}}


def test_a_label_never_stands_for_two_sets_of_gpus(nvcc: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    first = gpu_wheel(nvcc, tmp_path / "a", "1.0+cu130", "sm_90")
    made = finished(first, out)
    assert made.returncode == 0, made.stderr
    listed = out / "demo-1.0+cu130-variants.json"
    before = listed.read_bytes()
    second = gpu_wheel(nvcc, tmp_path / "b", "1.0+cu130", "compute_90", "sm_90")
    shutil.rmtree(tmp_path / "a")
    refused = finished(second, out)
    assert refused.returncode
    assert "has cu130_90 already, for other GPUs" in refused.stderr
    assert listed.read_bytes() == before

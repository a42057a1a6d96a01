"""The document behind `jetson-tx2`: its script, from the clone to the patched sources; its errors.

The board, its CUDA 9.0 and a Python 3.5 are not here, so nothing is compiled. The header that the
published torch 1.1.0 was installed with is the real one; the other files are as the patches say.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

import pytest
from tests.integration.test_patches_apply import PATCHES, header
from tests.integration.test_patches_apply import wheels as wheels
from tests.lab import git_repository

pytestmark = [pytest.mark.integration, pytest.mark.usefixtures("rendering_tools")]

KERNELS = "aten/src/ATen/cuda/detail/KernelUtils.h"
LOGS = {
    "nvlink error   : entry function '_Z32ncclAllReduceRingLLKernel_sum_f168ncclColl' with max "
    "regcount of 80 calls function '_Z25ncclReduceScatter_max_u64P14CollectiveArgs' with regcount "
    "of 96": 'features.nccl = "off"',
    "cuda runtime error (7) : too many resources requested for lanch a /xxxxx/pytorch/THCUNN/"
    "generic/SpatialUpSamplingBilinear.cu 67": 'board = "jetson-tx2"',
    "RuntimeError: inverse: MAGMA library not found in compilation. Please rebuild with MAGMA.": (
        "On a Jetson, and for small matrices, take the CPU"
    ),
    "ImportError: No module named 'torch._C'": "torch._C",
}


def unpatched(patch: Path) -> dict[str, str]:
    """Files that a patch can be applied to: its own lines, where it says they are."""
    files: dict[str, list[str]] = {}
    for part in re.split(r"^--- a/", patch.read_text(), flags=re.MULTILINE)[1:]:
        name, _, body = part.partition("\n")
        lines = files.setdefault(name, [])
        for hunk in re.split(r"^@@ ", body, flags=re.MULTILINE)[1:]:
            head, _, text = hunk.partition("\n")
            first = int(head.split(",")[0].removeprefix("-"))
            lines += ["//"] * (first - 1 - len(lines))
            lines += [line[1:] for line in text.splitlines() if line[:1] in (" ", "-")]
    return {name: "\n".join([*lines, ""]) for name, lines in files.items()}


def torchsmith(folder: Path, *words: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "torchsmith", *words]
    env = {**os.environ, "TORCHSMITH_STORE": str(folder / "store")}
    return subprocess.run(command, cwd=folder, env=env, capture_output=True, text=True, check=False)


def test_the_script_brings_and_patches_the_sources_of_the_board(
    wheels: Mapping[str, str], tmp_path: Path
) -> None:
    threads, nccl = (PATCHES / f"torch-1.1-{name}.patch" for name in ("threads-512", "nccl-off"))
    files = unpatched(threads) | unpatched(nccl)
    files[KERNELS] = header(wheels, "1.1.0", KERNELS.removeprefix("aten/src/"))
    repository = tmp_path / "pytorch.git"
    commit = git_repository(repository, files)
    subprocess.run(["git", "tag", "v1.1.0", commit], cwd=repository, check=True)

    assert torchsmith(tmp_path, "init", "board.toml", "--preset", "jetson-tx2").returncode == 0
    recipe = tmp_path / "board.toml"
    mine = f'torch = {{ release = "1.1.0", ref = "v1.1.0", commit = "{commit}" }}'
    text = recipe.read_text().replace('torch = "1.1.0"', mine)
    recipe.write_text(f'{text}\n[source]\nkind = "git"\nurl = "file://{repository}"\n')
    shown = torchsmith(tmp_path, "plan", "board.toml")
    assert shown.returncode == 0, shown.stderr
    for caution in ("the Jetson TX2 has no nccl", "the Jetson TX2 has no magma", "on the CPU"):
        assert caution in " ".join(shown.stdout.split())
    assert "torch-1.1.0-cp35-cp35m-linux_aarch64.whl" in shown.stdout

    written = torchsmith(tmp_path, "plan", "board.toml", "--as", "script", "-o", "build.sh")
    assert written.returncode == 0, written.stderr
    env = {**os.environ, "WORK": str(tmp_path / "a disk that is plugged in")}

    def script(*words: str) -> str:
        done = subprocess.run(
            ["bash", "build.sh", *words],
            cwd=tmp_path,
            env=env,
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    fetch, patch, *rest = script("--list").split()
    assert [name.partition("-")[0] for name in rest] == [
        *("environment", "compile", "verify", "attest")
    ]
    script(fetch, patch)
    made = Path(env["WORK"]) / "sources"
    (tree,) = (folder for folder in made.iterdir() if folder.name.endswith(patch[-9:]))
    for name in (KERNELS, "aten/src/THCUNN/common.h"):
        assert "int CUDA_NUM_THREADS = 512;" in (tree / name).read_text()
    bilinear = (tree / "aten/src/THCUNN/generic/SpatialUpSamplingBilinear.cu").read_text()
    assert bilinear.count("const int num_threads = 512;") == 2
    flags = (tree / "tools/setup_helpers/nccl.py").read_text().splitlines()
    assert flags[-2:] == ["USE_NCCL = False", "USE_SYSTEM_NCCL = False"]


@pytest.mark.parametrize("log", LOGS, ids=["nvlink", "threads", "magma", "name-of-_C"])
def test_what_the_author_met_is_explained(log: str, tmp_path: Path) -> None:
    (tmp_path / "build.log").write_text(f"{log}\n")
    told = torchsmith(tmp_path, "diagnose", "build.log")
    assert told.returncode == 0, told.stdout + told.stderr
    assert LOGS[log] in " ".join(told.stdout.split())


def test_the_dockerfile_says_what_the_board_lends_it(tmp_path: Path) -> None:
    words = ("plan", "--preset", "jetson-tx2", "--as", "dockerfile", "-o", "image")
    done = torchsmith(tmp_path, *words)
    assert done.returncode == 0, done.stderr
    text = (tmp_path / "image/Dockerfile").read_text()
    head = " ".join(text.partition("FROM ")[0].replace("\n#", " ").split())
    assert "has no CUDA 9.0: JetPack 3.3 installs it on the board" in head
    assert "FROM docker.io/library/ubuntu:16.04 AS toolchain" in text
    for package in ("cmake", "g++", "git", "patch", "python3-dev", "python3-venv", "libatlas-dev"):
        assert re.search(rf"^ +{re.escape(package)}[; \\]", text, re.MULTILINE), package

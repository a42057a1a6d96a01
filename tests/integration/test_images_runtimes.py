"""Files for other runtimes are taken by those runtimes."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from tests.apptainer import Apptainer
from tests.containers import BASE, EngineHere
from tests.registries import RegistryHere
from tests.tiny_packages import wheel

from torchsmith.images.render import render
from torchsmith.plan.models import Plan
from torchsmith.recipe.models import Recipe

pytestmark = [pytest.mark.integration, pytest.mark.usefixtures("rendering_tools")]

Planner = Callable[[str | Path], tuple[Plan, Recipe]]

RECIPE = """
name = "other"
torch = { release = "2.13.0", use = "wheel" }
python = "3.11"
system = "debian-12"
[image]
name = "other"
shm_size = "96M"
[[image.train]]
name = "ann"
uid = 1234
gid = 1235
timezone = "Asia/Seoul"
workdir = "/workspace"
"""
CUDA = """
name = "gpu"
torch = { release = "2.6.0", use = "wheel" }
python = "3.12"
platform = "linux-x86_64"
cuda = "12.6"
[image]
name = "gpu"
"""


def written(planned: Planner, text: str, runtime: str, folder: Path, start: str = "") -> Path:
    for name, content in render(*planned(text), runtime, "test", start).items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)
    return folder


@pytest.mark.parametrize("text", [RECIPE, CUDA], ids=["cpu", "gpu"])
def test_a_compose_file_obeys_the_specification(
    text: str, planned: Planner, tmp_path: Path
) -> None:
    file = written(planned, text, "compose", tmp_path) / "docker-compose.yaml"
    check = [sys.executable, "-m", "check_jsonschema", "--builtin-schema", "vendor.compose-spec"]
    done = subprocess.run([*check, file], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


def test_podman_compose_runs_the_image_as_the_file_says(
    podman: EngineHere, planned: Planner, tmp_path: Path
) -> None:
    folder = written(planned, RECIPE, "compose", tmp_path)
    folder.chmod(0o755)
    (folder / "mine").write_text("mine\n")
    podman("tag", BASE, "other:ann")
    seen = 'df --output=size -B1 /dev/shm | tail -n 1; echo "$TZ"; cat /workspace/mine'
    done = subprocess.run(
        [
            *(sys.executable, "-m", "podman_compose", "--file", "docker-compose.yaml"),
            *("run", "--rm", "-T", "ann", "sh", "-c", seen),
        ],
        cwd=folder,
        env=podman.env,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    # It says first what it has made for this.
    assert done.stdout.split()[-3:] == [str(96 << 20), "Asia/Seoul", "mine"]
    podman("rmi", "other:ann")


def test_apptainer_builds_the_pushed_image_and_runs_it(
    apptainer: Apptainer,
    podman: EngineHere,
    registry: RegistryHere,
    planned: Planner,
    tmp_path: Path,
) -> None:
    # Debian's base with a program named python: the file is what is tried here, not torch.
    (tmp_path / "Dockerfile").write_text(
        f"FROM {BASE}\n"
        'RUN printf \'#!/bin/sh\\necho ran "$TZ" "$@"\\n\' > /usr/local/bin/python '
        "&& chmod +x /usr/local/bin/python\n"
    )
    name = f"{registry.address}/hpc/other:ann"
    podman("build", "--tag", name, tmp_path)
    podman("push", "--tls-verify=false", name)
    text = f'{RECIPE}[publish]\nregistry = "{registry.address}/hpc"\n'
    written(planned, text, "apptainer", apptainer.shared)
    # A folder is as good as a file to Apptainer, and quicker than packing one.
    apptainer("build", "--sandbox", "ann", "other-ann.def")
    assert apptainer("run", "ann", "train.py").split() == ["ran", "Asia/Seoul", "train.py"]
    assert "dev.torchsmith.torch: 2.13.0" in apptainer("inspect", "--labels", "ann")


def test_apptainer_builds_an_image_of_wheels(
    apptainer: Apptainer, podman: EngineHere, registry: RegistryHere, planned: Planner
) -> None:
    """apt, a virtual environment and pip are real; the wheel called torch is a small one."""
    name = f"{registry.address}/base/debian:12"
    podman("tag", BASE, name)
    podman("push", "--tls-verify=false", name)
    own = RECIPE.replace(', use = "wheel"', "").replace("[image]\n", f'[image]\nbase = "{name}"\n')
    folder = apptainer.shared
    written(planned, own, "apptainer", folder, "wheels")
    wheel(folder / "wheels", "torch", "2.13.0", content="__version__ = version\n")
    # %test imports it while the image is built.
    apptainer("build", "--sandbox", "made", "other-ann.def")
    said = apptainer("exec", "made", "sh", "-c", 'ls /opt; python -V; date +%Z; echo "$PATH"')
    left, python, version, zone, path = said.split()
    assert (left, python, zone) == ("venv", "Python", "KST")
    assert version.startswith("3.11")
    assert path.startswith("/opt/venv/bin:")

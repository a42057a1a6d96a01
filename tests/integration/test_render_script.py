"""The script does the work with no torchsmith: run for real, twice, broken and resumed."""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest

from torchsmith.plan.models import Plan
from torchsmith.plan.render.script import render_script
from torchsmith.recipe.models import Recipe

pytestmark = [pytest.mark.integration, pytest.mark.usefixtures("rendering_tools")]

RECIPE = """
name = "tiny"
torch = { release = "2.13.0", use = "wheel" }
python = "3.11"
[companions]
extension = [{ name = "tiny-op", folder = "ext/tiny-op" }]
"""

SETUP = """
from setuptools import setup
from torch.utils.cpp_extension import BuildExtension, CppExtension

setup(
    name="tiny-op",
    version="1.0",
    py_modules=["tiny_op"],
    ext_modules=[CppExtension("tiny_op_c", ["op.cpp"])],
    cmdclass={"build_ext": BuildExtension},
)
"""

MODULE = """
import torch
import tiny_op_c

assert tiny_op_c.twice(torch.ones(3)).sum().item() == 6
"""

# Only what the operator needs: all of torch/extension.h takes a minute to parse.
SOURCE = """
#include <torch/csrc/utils/pybind.h>
#include <ATen/core/Tensor.h>
at::Tensor twice(const at::Tensor& x) { return x.add(x); }
PYBIND11_MODULE(TORCH_EXTENSION_NAME, m) { m.def("twice", &twice); }
"""


@dataclass(frozen=True)
class Project:
    """A folder with a recipe's own files, and the script made of the recipe."""

    folder: Path
    script: Path
    work: Path

    def run(self, *steps: str, **env: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            ["bash", self.script, *steps],
            cwd=self.folder,
            env={**os.environ, "WORK": str(self.work), **env},
            capture_output=True,
            text=True,
            check=False,
        )


@pytest.fixture(scope="module")
def project(
    tmp_path_factory: pytest.TempPathFactory,
    planned: Callable[[str | Path], tuple[Plan, Recipe]],
) -> Project:
    folder = tmp_path_factory.mktemp("project")
    extension = folder / "ext/tiny-op"
    extension.mkdir(parents=True)
    (extension / "setup.py").write_text(SETUP)
    (extension / "tiny_op.py").write_text(MODULE)
    (extension / "op.cpp").write_text("#include <no/such/header.h>\n")
    script = folder / "plan.sh"
    script.write_text(render_script(planned(RECIPE)[0], "test"))
    # A space in the path: everything below has to be quoted.
    return Project(folder, script, folder / "the work")


def test_the_steps_are_named_without_touching_anything(project: Project) -> None:
    listed = project.run("--list").stdout.split()
    assert listed == [
        "environment-tiny",
        "fetch-extension-tiny-op",
        "compile-tiny-op-tiny",
        "verify-tiny-op-tiny",
        "attest-tiny",
    ]
    assert not project.work.exists()
    assert "DEBIAN_MIRROR" not in (usage := project.run("--help").stdout)
    assert "PROJECT" in usage


def test_a_step_or_option_that_does_not_exist_is_refused(project: Project) -> None:
    done = project.run("compile-everything")
    assert (done.returncode, "--list" in done.stderr) == (2, True)
    assert project.run("--lst").returncode == 2


def test_a_step_says_what_has_to_be_done_before_it(project: Project) -> None:
    done = project.run("compile-tiny-op-tiny")
    assert done.returncode == 1
    assert "needs fetch-extension-tiny-op, which is not done" in done.stderr


def test_a_missing_folder_is_said_in_a_sentence(project: Project, tmp_path: Path) -> None:
    done = project.run("fetch-extension-tiny-op", PROJECT=str(tmp_path))
    assert done.returncode != 0
    assert "PROJECT must be the folder the recipe lies in" in done.stderr


def test_a_single_step_can_be_run(project: Project) -> None:
    done = project.run("fetch-extension-tiny-op")
    assert done.returncode == 0, done.stderr
    assert (project.work / "sources/extension/tiny-op/op.cpp").exists()


def test_a_broken_build_stops_is_mended_and_resumes(project: Project) -> None:
    broken = project.run()
    assert broken.returncode != 0
    assert "== compile-tiny-op-tiny: Compile" in broken.stdout
    assert "verify" not in broken.stdout
    assert not (project.work / "done/compile-tiny-op-tiny").exists()

    (project.folder / "ext/tiny-op/op.cpp").write_text(SOURCE)
    mended = project.run()
    assert mended.returncode == 0, mended.stdout + mended.stderr
    assert "== environment-tiny: done before" in mended.stdout
    assert "== fetch-extension-tiny-op: Fetch" in mended.stdout, "its folder has changed"
    (wheel,) = (project.work / "dist/tiny").glob("tiny_op-1.0-cp311-*.whl")
    python = project.work / "verify/tiny/tiny-op/bin/python"
    there = subprocess.run(
        [python, "-c", "import torch, tiny_op, tiny_op_c; print(tiny_op_c.__file__)"],
        capture_output=True,
        text=True,
        check=True,
    )
    assert there.stdout.startswith(str(project.work / "verify")), "not the environment's"
    before = wheel.stat().st_mtime_ns

    again = project.run()
    assert again.returncode == 0
    assert again.stdout.count("done before") == 5
    kept = wheel.with_name(f"{wheel.name}.sha256").read_text(encoding="utf-8").split()[0]
    assert kept == hashlib.sha256(wheel.read_bytes()).hexdigest()
    assert "Compile" not in again.stdout
    assert wheel.stat().st_mtime_ns == before


def test_the_environment_torch_is_built_in_stays_as_it_was(project: Project) -> None:
    assert not list((project.work / "env").glob("tiny/lib/python3*/site-packages/tiny_op*"))


def test_another_work_folder_starts_from_nothing(project: Project, tmp_path: Path) -> None:
    done = project.run("fetch-extension-tiny-op", WORK=str(tmp_path / "elsewhere"))
    assert "done before" not in done.stdout
    assert (tmp_path / "elsewhere/sources/extension/tiny-op/setup.py").exists()
    shutil.rmtree(tmp_path / "elsewhere")

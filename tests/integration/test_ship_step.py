"""A plan's publish steps, run by the engine and, without torchsmith, by a shell."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from msgspec.structs import replace
from tests.integration.conftest import Planned
from tests.tiny_packages import conda, wheel

from torchsmith.engine.journal import Journal
from torchsmith.engine.runner import run_plan
from torchsmith.engine.store import Store
from torchsmith.plan.models import Plan, Step, step_key
from torchsmith.plan.render.twins import twin

pytestmark = pytest.mark.integration

RECIPE = """
name = "lab"
torch = "2.6.0"
python = "3.11"
packages = { conda = true }
publish = { index = "idx", channel = "ch" }
"""
NAME = "tiny_lib-1.0+cpu-py3-none-any.whl"


@pytest.fixture
def steps(planned: Callable[[str | Path], Planned], tmp_path: Path) -> list[Step]:
    """What makes a wheel and a package in no time, and the plan's own steps that publish them."""
    made = tmp_path / "made"
    files = {
        f"dist/lab/{NAME}": wheel(made, "tiny-lib", "1.0+cpu"),
        "channel/lab/noarch/tiny-1.0-0.conda": conda(made, "tiny", "1.0"),
    }
    build = Step(
        "build",
        "package",
        "Build",
        variant="lab",
        commands=tuple(
            f"mkdir -p {Path(name).parent}; cp {path} {name}" for name, path in files.items()
        ),
        outputs=tuple(files),
    )
    plan = planned(RECIPE)[0]
    published = [plan.step("publish-index-lab"), plan.step("publish-channel-lab")]
    return [build, *(replace(step, needs=("build",)) for step in published)]


def ran(steps: list[Step], folder: Path) -> dict[str, str]:
    keys: dict[str, str] = {}
    keyed = []
    for step in steps:
        keys[step.id] = step_key(step, keys, {})
        keyed.append(replace(step, key=keys[step.id]))
    journal = Journal(folder / "journal.db")
    environment = {**os.environ, "PROJECT": str(folder / "project")}
    try:
        result = run_plan(
            Plan("lab", (), tuple(keyed)),
            Store(folder / "store"),
            journal,
            work=folder / "work",
            environment=environment,
        )
    finally:
        journal.close()
    return dict(result.steps)


def test_a_build_publishes_into_the_recipes_folder_and_again_only_where_it_is_gone(
    steps: list[Step], tmp_path: Path
) -> None:
    project = tmp_path / "project"
    project.mkdir()
    assert ran(steps, tmp_path)["publish-index-lab"] == "done"
    page = json.loads((project / "idx/simple/tiny-lib/index.json").read_bytes())
    assert [file["filename"] for file in page["files"]] == [NAME]
    repodata = json.loads((project / "ch/noarch/repodata.json").read_bytes())
    assert list(repodata["packages.conda"]) == ["tiny-1.0-0.conda"]
    assert ran(steps, tmp_path)["publish-index-lab"] == "cached"
    (project / "idx").rename(project / "elsewhere")
    assert ran(steps, tmp_path)["publish-index-lab"] == "done"
    assert (project / "idx/simple/tiny-lib" / NAME).is_file()


def test_without_torchsmith_a_shell_makes_an_index_that_pip_installs_from(
    steps: list[Step], tmp_path: Path
) -> None:
    project = tmp_path / "project folder"
    project.mkdir()
    build, index, _ = steps
    script = "\n".join(["set -eu", *build.commands, *twin(index, None).commands])
    for _ in range(2):
        subprocess.run(
            ["bash", "-c", script],
            cwd=tmp_path,
            env={**os.environ, "PROJECT": str(project)},
            check=True,
        )
    command = [sys.executable, "-m", "pip", "--isolated", "install", "--no-cache-dir"]
    # pip reads a folder's own pages, as any web server gives them out.
    where = (project / "idx/simple").as_uri()
    subprocess.run(
        [*command, "--index-url", where, "--target", tmp_path / "site", "tiny-lib"], check=True
    )
    assert (tmp_path / "site/tiny_lib-1.0+cpu.dist-info").is_dir()
    (project / "idx/.torchsmith-index").touch()
    refused = subprocess.run(
        ["bash", "-c", script],
        cwd=tmp_path,
        env={**os.environ, "PROJECT": str(project)},
        check=False,
        capture_output=True,
        text=True,
    )
    assert refused.returncode == 1
    assert "idx is torchsmith's own" in refused.stderr

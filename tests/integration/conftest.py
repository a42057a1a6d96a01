"""What the tests with real tools share."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from tests.apptainer import apptainer as apptainer
from tests.containers import EngineHere
from tests.containers import base_archive as base_archive
from tests.containers import buildah as buildah
from tests.containers import docker as docker
from tests.containers import podman as podman
from tests.containers import second_podman as second_podman
from tests.registries import registry as registry

from torchsmith.facts.files import shipped
from torchsmith.host.models import Host
from torchsmith.host.read import read_host
from torchsmith.plan.build import make_plan
from torchsmith.plan.models import Plan
from torchsmith.plan.torch import assemble_toolkit
from torchsmith.recipe.load import load_recipe, parse_recipe
from torchsmith.recipe.matrix import expand
from torchsmith.recipe.models import Recipe
from torchsmith.resolve.models import Resolution
from torchsmith.resolve.resolve import resolve

ROOT = Path(__file__).resolve().parents[2]
Planned = tuple[Plan, Recipe]
# "engine" is one of the others, by a test's parameter.
ENGINES = {"podman", "second_podman", "docker", "engine"}


@pytest.fixture(autouse=True)
def containers_of_before(request: pytest.FixtureRequest) -> None:
    """A test answers for the containers it left, not for those that others left."""
    if not ENGINES.isdisjoint(request.fixturenames):
        for engine in EngineHere.all:
            engine.look()


@pytest.fixture(scope="session")
def build_tools() -> Iterator[None]:
    """CMake and a Ninja that knows jobservers, from the environment the tests run in."""
    programs = Path(sys.executable).parent
    assert (programs / "ninja").exists(), "pip install -e '.[dev]' brings it"
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PATH", f"{programs}{os.pathsep}{os.environ['PATH']}")
        yield


@pytest.fixture(scope="session")
def nvcc(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The compiler alone, from NVIDIA's wheels."""
    folder = tmp_path_factory.mktemp("nvcc")
    commands = assemble_toolkit("toolkit", ("cuda-toolkit[nvcc,cudart,cccl]==13.0.*",))
    done = subprocess.run(
        ["sh", "-c", "\n".join(["set -eu", *commands])],
        cwd=folder,
        env={**os.environ, "WORK": str(folder)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return folder / "toolkit/bin/nvcc"


@pytest.fixture(scope="session")
def rendering_tools() -> Iterator[None]:
    """Linters, podman and the rest; installed where they are missing, never skipped."""
    subprocess.run([ROOT / "tools/install_test_tools.sh"], check=True)
    programs = Path(sys.executable).parent
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PATH", f"{os.environ['PATH']}{os.pathsep}{programs}")
        yield


@pytest.fixture(scope="session")
def this_host() -> Host:
    return read_host(ROOT)


@pytest.fixture(scope="session")
def planned(this_host: Host) -> Callable[[str | Path], Planned]:
    """Plan a recipe, given as text or as a file, for this machine."""

    def plan(wish: str | Path) -> Planned:
        loaded = load_recipe(wish) if isinstance(wish, Path) else parse_recipe(wish, "test", None)
        facts = shipped()
        outcomes = [
            resolve(variant, facts, this_host, loaded.files) for variant in expand(loaded.recipe)
        ]
        resolved = [outcome for outcome in outcomes if isinstance(outcome, Resolution)]
        assert len(resolved) == len(outcomes), outcomes
        return make_plan(loaded.recipe, resolved, facts, "test"), loaded.recipe

    return plan

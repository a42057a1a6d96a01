"""What tests of every kind share: the published torch, installed once for all of them."""

from __future__ import annotations

import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import settings
from tests.side_by_side import made_once
from tests.side_by_side import pytest_collection_modifyitems as pytest_collection_modifyitems
from tests.side_by_side import pytest_runtest_protocol as pytest_runtest_protocol
from tests.side_by_side import pytest_xdist_make_scheduler as pytest_xdist_make_scheduler
from tests.slurm_cluster import Cluster, running_cluster

# A busy machine is slow, and no test is about time. The same examples in every run: what is found
# by chance would stop a change that has nothing to do with it.
settings.register_profile("any-machine", deadline=None, derandomize=True, database=None)
settings.load_profile("any-machine")

# A shell starts what it puts into the background with Ctrl-C ignored, and programs pass that on:
# tests that interrupt one would wait for ever.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

PUBLISHED_TORCH = "2.13.0"
# The CPU build on every platform: PyPI's own wheel brings gigabytes of CUDA on most.
_REQUIREMENT = f"torch=={PUBLISHED_TORCH}+cpu"
_CPU_INDEX = "https://download.pytorch.org/whl/cpu"


def _pip(python: Path | str, *arguments: str) -> bool:
    """Run pip; whether the indexes it is set up with have what was asked for.

    Where they do not, PyTorch's own index is asked.
    """
    command = [str(python), "-m", "pip", *arguments, "--quiet"]
    first = subprocess.run(command, capture_output=True, text=True, check=False)
    if first.returncode == 0:
        return True
    more = [*command, "--extra-index-url", _CPU_INDEX]
    second = subprocess.run(more, capture_output=True, text=True, check=False)
    assert second.returncode == 0, first.stderr + second.stderr
    return False


@pytest.fixture(scope="session", autouse=True)
def _keys_of_the_tests(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Builds sign what they make: never with the key of the person who runs the tests."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_DATA_HOME", str(tmp_path_factory.mktemp("data")))
        yield


@pytest.fixture(scope="session")
def published_torch(published_wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An environment with the published torch. Nobody writes into it."""

    def make(folder: Path) -> None:
        subprocess.run([sys.executable, "-m", "venv", folder / "env"], check=True)
        python = folder / "env/bin/python"
        found = ("--find-links", str(published_wheel.parent), _REQUIREMENT)
        _pip(python, "install", *found, "numpy", "setuptools<82", "wheel", "ninja")

    return made_once(tmp_path_factory, "published", make) / "env"


@pytest.fixture(scope="session")
def _downloaded(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, bool]:
    def make(folder: Path) -> None:
        dest = folder / "wheel"
        if _pip(sys.executable, "download", "--no-deps", "--dest", str(dest), _REQUIREMENT):
            (folder / "configured").touch()

    folder = made_once(tmp_path_factory, "wheel", make)
    (path,) = (folder / "wheel").glob("torch-*.whl")
    return path, (folder / "configured").exists()


@pytest.fixture(scope="session")
def published_wheel(_downloaded: tuple[Path, bool]) -> Path:
    """The published torch as a file."""
    return _downloaded[0]


@pytest.fixture(scope="session")
def published_is_small(_downloaded: tuple[Path, bool]) -> bool:
    """Whether pip, as it is set up here, brings the published torch without CUDA."""
    return _downloaded[1]


@pytest.fixture(scope="module")
def slurm(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """A Slurm of two nodes, and the environment its programs find it by."""
    with running_cluster(tmp_path_factory.mktemp("slurm")) as cluster:
        yield cluster

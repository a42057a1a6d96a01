"""Tests that run side by side: what they make once for all, and who has the machine alone."""

from __future__ import annotations

import contextlib
import fcntl
import os
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from xdist.scheduler import LoadScopeScheduling  # type: ignore[import-untyped]

# Where several run, a worker is told its name by this.
_WORKER = "PYTEST_XDIST_WORKER"
# Files whose tests share more than a file does: engines and a registry, or the nodes of a cluster.
_TOGETHER = {
    "containers": (
        *("test_images_registry", "test_images_run", "test_images_runtimes", "test_images_vision"),
        *("test_diagnose_containers_and_jobs", "test_jobs_containers", "test_render_image"),
    ),
    "slurm": ("test_farm", "test_jobs_slurm"),
}
_GROUP_OF = {file: group for group, files in _TOGETHER.items() for file in files}
# What takes minutes is begun first, so that nobody waits for it in the end.
_FIRST = ("test_images_build", "containers", "slurm")


def _group(file: str) -> str:
    stem = Path(file).stem
    return _GROUP_OF.get(stem, stem)


def _turn(item: pytest.Item) -> int:
    group = _group(item.path.name)
    if group in _FIRST:
        return _FIRST.index(group)
    if item.get_closest_marker("alone") is not None:
        # While the others are at short ones, which it has to wait for.
        return len(_FIRST) + 1
    return len(_FIRST) + (2 if item.get_closest_marker("unit") else 0)


class Scheduling(LoadScopeScheduling):  # type: ignore[misc]
    """One worker runs all tests of a file, or of a group of files: they share what fixtures make.

    pytest-xdist's own `loadgroup` does this by marks, which pytest 9.2 keeps from it.
    """

    def _split_scope(self, nodeid: str) -> str:
        return _group(nodeid.partition("::")[0])


@contextlib.contextmanager
def locked(path: Path, kind: int = fcntl.LOCK_EX) -> Iterator[None]:
    """Wait for a lock that other workers may hold."""
    with path.open("a") as file:
        fcntl.flock(file, kind)
        # Closed, it is given back.
        yield


def made_once(factory: pytest.TempPathFactory, name: str, make: Callable[[Path], None]) -> Path:
    """A folder that one worker fills and all of them read."""
    own = factory.getbasetemp()
    root = own.parent if _WORKER in os.environ else own
    folder, done = root / name, root / f"{name}.done"
    with locked(root / f"{name}.lock"):
        if not done.exists():
            # What another worker failed at.
            shutil.rmtree(folder, ignore_errors=True)
            folder.mkdir()
            make(folder)
            done.touch()
    return folder


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Where several workers run them, tests are begun in another order."""
    if _WORKER in os.environ:
        items.sort(key=_turn)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item: pytest.Item) -> Iterator[None]:
    """A test runs beside others; one marked `alone`, with what it sets up, while no other does."""
    if _WORKER not in os.environ:
        return (yield)
    assert item.config.cache is not None
    folder = item.config.cache.mkdir("side-by-side")
    alone = item.get_closest_marker("alone") is not None
    with contextlib.ExitStack() as held:
        # Who waits to be alone stands in the door: nobody begins another test before.
        with locked(folder / "door"):
            held.enter_context(locked(folder / "room", fcntl.LOCK_EX if alone else fcntl.LOCK_SH))
        return (yield)


def pytest_xdist_make_scheduler(config: pytest.Config, log: object) -> Scheduling:
    """Who runs which tests, where several workers do; in the order they are collected in."""
    config.option.loadscopereorder = False
    return Scheduling(config, log)

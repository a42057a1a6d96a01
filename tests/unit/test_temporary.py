"""Temporary folders are private, and what a killed process left is removed."""

from __future__ import annotations

import os
import signal
import stat
import subprocess
import sys
import time
from pathlib import Path

import pytest

from torchsmith.temporary import make_temporary, remove_temporary, temporary_folder

pytestmark = pytest.mark.unit

LEAVE = (
    "import os, sys, time; from pathlib import Path;"
    "from torchsmith.temporary import make_temporary;"
    "folder = make_temporary('test', Path(sys.argv[1])); (folder / 'x').touch();"
    "print(folder, flush=True); time.sleep(600)"
)


def age(folder: Path) -> None:
    then = time.time() - 3600
    os.utime(folder, (then, then))


def test_what_a_killed_process_left_is_removed_and_what_a_living_one_has_stays(
    tmp_path: Path,
) -> None:
    started = [
        subprocess.Popen(
            [sys.executable, "-c", LEAVE, str(tmp_path)], stdout=subprocess.PIPE, text=True
        )
        for _ in range(2)
    ]
    try:
        killed, living = (
            Path(process.stdout.readline().strip())  # type: ignore[union-attr]
            for process in started
        )
        started[0].send_signal(signal.SIGKILL)
        started[0].wait()
        age(killed)
        age(living)
        remove_temporary(make_temporary("other", tmp_path))
        assert not killed.exists()
        assert (living / "x").exists()
    finally:
        for process in started:
            process.kill()
            process.communicate()


def test_what_is_young_a_link_or_another_users_is_left_alone(tmp_path: Path) -> None:
    young = tmp_path / "torchsmith-tmp-young"
    young.mkdir()
    target = tmp_path / "target"
    target.mkdir()
    link = tmp_path / "torchsmith-tmp-link"
    link.symlink_to(target)
    foreign = tmp_path / "torchsmith-tmp-foreign"
    foreign.mkdir()
    age(target)
    age(foreign)
    if os.getuid() == 0:
        os.chown(foreign, 12345, -1)
    remove_temporary(make_temporary("test", tmp_path))
    assert young.exists()
    assert target.exists()
    assert link.is_symlink()
    assert foreign.exists() == (os.getuid() == 0)


def test_a_folder_is_private_and_gone_at_the_end() -> None:
    before = os.umask(0)
    try:
        with temporary_folder("test") as folder:
            assert stat.S_IMODE(folder.stat().st_mode) == 0o700
            (folder / "a/b").mkdir(parents=True)
    finally:
        os.umask(before)
    assert not folder.exists()

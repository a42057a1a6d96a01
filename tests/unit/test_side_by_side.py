"""Tests run side by side, share what is made once, and leave who must be alone in peace."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.unit

ROOT = Path(__file__).resolve().parents[2]
HOOKS = """
from tests.side_by_side import (
    pytest_collection_modifyitems, pytest_runtest_protocol, pytest_xdist_make_scheduler
)
"""
SHARING = """
import os, time, pytest
from pathlib import Path
from tests.side_by_side import made_once

LOG = Path(__file__).with_name("log")

def say(text):
    with LOG.open("a") as log:
        log.write(f"{os.environ['PYTEST_XDIST_WORKER']} {text}\\n")

@pytest.mark.parametrize("number", range(8))
def test_share(number, tmp_path_factory):
    say("begins")
    folder = made_once(tmp_path_factory, "shared", lambda place: say(f"makes {place.name}"))
    assert folder.is_dir()
    time.sleep(0.1)
    say("ends")
"""
ALONE = """
import time, pytest
from test_one import say

pytestmark = pytest.mark.alone

@pytest.mark.parametrize("number", range(2))
def test_alone(number):
    say("alone")
    time.sleep(0.4)
    say("alone no more")
"""


def test_what_is_shared_is_made_once_and_nobody_is_beside_one_that_is_alone(tmp_path: Path) -> None:
    (tmp_path / "conftest.py").write_text(HOOKS)
    (tmp_path / "test_one.py").write_text(SHARING)
    (tmp_path / "test_two.py").write_text(SHARING)
    (tmp_path / "test_zalone.py").write_text(ALONE)
    # Nobody's worker: this is a run of its own.
    env = {name: text for name, text in os.environ.items() if not name.startswith("PYTEST")}
    env["PYTHONPATH"] = os.pathsep.join([str(ROOT), *sys.path])
    env["PYTEST_DISABLE_PLUGIN_AUTOLOAD"] = "1"
    words = ["-p", "xdist", "-n", "3", "-q"]
    done = subprocess.run(
        [sys.executable, "-m", "pytest", *words, "--basetemp", tmp_path / "made", "."],
        cwd=tmp_path,
        env=env,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    lines = [line.split(" ", 1) for line in (tmp_path / "log").read_text().splitlines()]
    said = [text for _, text in lines]
    assert said.count("makes shared") == 1
    # A file's tests have one worker, and the files several.
    assert len({worker for worker, _ in lines}) == 3
    assert len({worker for worker, text in lines if text.startswith("alone")}) == 1
    running = 0
    for text in said:
        running += {"begins": 1, "ends": -1}.get(text, 0)
        if text == "alone":
            assert running == 0, said
    begun = [number for number, text in enumerate(said) if text == "alone"]
    assert [said[number + 1] for number in begun] == ["alone no more"] * 2

"""The script of docs/follow.md says what a new release of torch changes in a plan."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.integration

PAGE = Path(__file__).parents[2] / "docs/follow.md"
RECIPE = 'name = "lab"\nplatform = "linux-x86_64"\ntorch = "{torch}"\npython = "{python}"\n'


def newest() -> str:
    words = [sys.executable, "-m", "torchsmith", "facts", "torch", "--json"]
    releases = json.loads(subprocess.check_output(words))["lines"]
    return str(releases[0]["subject"])


def follow(folder: Path, recipe: str) -> subprocess.CompletedProcess[str]:
    found = re.search(r"```sh\n(.*?)```", PAGE.read_text("utf-8"), re.DOTALL)
    assert found is not None
    (folder / "follow.sh").write_text(found[1])
    (folder / "lab.toml").write_text(recipe)
    program = folder / "bin/torchsmith"
    program.parent.mkdir()
    program.write_text(f'#!/bin/sh\nexec {sys.executable} -m torchsmith "$@"\n')
    program.chmod(0o755)
    return subprocess.run(
        ["sh", "follow.sh", "lab.toml"],
        cwd=folder,
        env={**os.environ, "PATH": f"{program.parent}{os.pathsep}{os.environ['PATH']}"},
        capture_output=True,
        text=True,
        check=False,
    )


def test_a_newer_release_is_shown_by_what_it_changes(tmp_path: Path) -> None:
    done = follow(tmp_path, RECIPE.format(torch="2.9.1", python="3.12"))
    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    assert "-lab: torch 2.9.1" in done.stdout
    assert f"+lab: torch {newest()}" in done.stdout
    assert lines[-1] == f"build it: torchsmith build lab.toml --torch {newest()}"


def test_the_newest_release_has_no_news(tmp_path: Path) -> None:
    done = follow(tmp_path, RECIPE.format(torch=newest(), python="3.12"))
    assert (done.returncode, done.stdout) == (0, "")


def test_a_release_that_does_not_go_with_the_rest_is_refused_with_the_reason(
    tmp_path: Path,
) -> None:
    done = follow(tmp_path, RECIPE.format(torch="2.6.0", python="3.9"))
    assert done.returncode == 3
    assert f"Python 3.9 and torch {newest()} do not go together" in done.stdout

"""The page on following upstream: its script does what it says, its CI files are ones."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

pytestmark = pytest.mark.unit

PAGE = (Path(__file__).resolve().parents[2] / "docs/follow.md").read_text(encoding="utf-8")
RECIPE = """name = "lab"
torch = "{torch}"
python = "{python}"
cuda = "none"
platform = "linux-x86_64"
"""


def follow(folder: Path, *, torch: str, python: str) -> subprocess.CompletedProcess[str]:
    (script,) = re.findall(r"```sh\n(.*?)```", PAGE, re.S)
    (folder / "follow.sh").write_text(script)
    (folder / "lab.toml").write_text(RECIPE.format(torch=torch, python=python))
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    return subprocess.run(
        ["sh", "follow.sh", "lab.toml"],
        cwd=folder,
        env={**os.environ, "PATH": path},
        capture_output=True,
        text=True,
        check=False,
    )


def test_the_script_shows_what_a_newer_release_changes(tmp_path: Path) -> None:
    done = follow(tmp_path, torch="2.13.0", python="3.12")
    newest = (tmp_path / "newest.txt").read_text().strip()
    assert done.returncode == 0, done.stderr
    assert f"+lab: torch {newest}+cpu" in done.stdout
    assert f"torchsmith build lab.toml --torch {newest}" in done.stdout
    again = follow(tmp_path, torch=newest, python="3.12")
    assert (again.returncode, again.stdout) == (0, "")


def test_the_script_says_why_a_newer_release_does_not_go(tmp_path: Path) -> None:
    done = follow(tmp_path, torch="2.6.0", python="3.9")
    assert done.returncode == 3
    assert "3.9" in done.stdout


def test_the_ci_files_are_yaml_with_the_jobs_they_need() -> None:
    files = re.findall(r"^```yaml\n(.*?)^```$", PAGE, re.S | re.M)
    github, gitlab = map(yaml.safe_load, files)
    assert set(github["jobs"]) == {"plan", "build"}
    assert github["jobs"]["build"]["needs"] == "plan"
    assert github["jobs"]["build"]["environment"] == "release"
    assert set(gitlab["stages"]) <= set(gitlab)
    assert gitlab["build"]["rules"][0]["when"] == "manual"


@pytest.mark.parametrize("system", ["github", "gitlab"])
def test_what_was_built_is_what_is_published(system: str, tmp_path: Path) -> None:
    """A build writes the paths of its results, one a line: below dist/, or a folder for each."""
    files = dict(
        zip(
            ("github", "gitlab"),
            map(yaml.safe_load, re.findall(r"^```yaml\n(.*?)^```$", PAGE, re.S | re.M)),
            strict=True,
        )
    )
    build = files[system]["jobs" if system == "github" else "build"]
    lines = (
        build["build"]["steps"][-1]["run"].splitlines() if system == "github" else build["script"]
    )
    (tmp_path / "torchsmith").write_text(
        "#!/bin/sh\n"
        'if [ "$1" = build ]; then printf "%s\\n" "/a b/dist/torch.whl" /dist/pylock.toml\n'
        'else printf "%s\\n" "$@" > published.txt; fi\n'
    )
    (tmp_path / "torchsmith").chmod(0o755)
    (tmp_path / "newest.txt").write_text("2.15.0\n")
    wanted = [line for line in lines if "torchsmith " in line and "pip" not in line]
    subprocess.run(
        ["sh", "-eu", "-c", "\n".join(wanted)],
        cwd=tmp_path,
        env={**os.environ, "PATH": f"{tmp_path}:{os.environ['PATH']}", "NEWEST": "2.15.0"},
        check=True,
    )
    told = (tmp_path / "published.txt").read_text().splitlines()
    assert told == ["publish", "--index", "/srv/wheels", "/a b/dist/torch.whl"]

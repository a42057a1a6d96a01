"""A bundle made where there is a network builds where there is none."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tarfile
from pathlib import Path

import pytest
from packaging.utils import parse_wheel_filename

from torchsmith.host.system import read_platform

pytestmark = pytest.mark.integration

RECIPE = """
name = "away"
torch = {{ release = "2.6.0", ref = "main" }}
python = "host"
# On x86-64 FBGEMM asks for another gcc than Debian 12 has, and nothing here is linked with a BLAS.
features = {{ fbgemm = "off", mkl = "off" }}

[source]
kind = "git"
url = "file://{repository}"
"""


def git(folder: Path, *words: str) -> None:
    identity = ["-c", "user.name=Nobody", "-c", "user.email=nobody@example.invalid"]
    subprocess.run(["git", "-C", str(folder), *identity, *words], check=True)


def torchsmith(folder: Path, store: str, *words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "torchsmith", *words],
        cwd=folder,
        env={**os.environ, "TORCHSMITH_STORE": str(folder / store)},
        capture_output=True,
        text=True,
        check=False,
        timeout=300,
    )


@pytest.fixture
def project(tmp_path: Path) -> Path:
    repository = tmp_path / "repository"
    repository.mkdir()
    git(repository, "init", "--quiet", "--initial-branch=main")
    (repository / "setup.py").write_text("# torch\n", encoding="utf-8")
    git(repository, "add", ".")
    git(repository, "commit", "--quiet", "--message=torch")
    text = RECIPE.format(repository=repository)
    (tmp_path / "recipe.toml").write_text(text, encoding="utf-8")
    return tmp_path


def test_a_source_comes_out_of_the_bundle_when_its_home_is_gone(project: Path) -> None:
    written = torchsmith(project, "here", "bundle", "--output", "all.bundle")
    assert written.returncode == 0, written.stderr
    assert "torch-main" in written.stdout
    shutil.rmtree(project / "repository")

    gone = torchsmith(project, "there", "build", "--step", "fetch-torch-main")
    assert gone.returncode == 6

    fetched = torchsmith(
        project, "there", "build", "--step", "fetch-torch-main", "--bundle", "all.bundle"
    )
    assert fetched.returncode == 0, fetched.stderr
    tree = Path(fetched.stdout.strip())
    assert (tree / "setup.py").read_text(encoding="utf-8") == "# torch\n"


def test_a_bundle_without_the_source_says_what_it_holds(project: Path) -> None:
    assert torchsmith(project, "here", "bundle", "--output", "all.bundle").returncode == 0
    text = (project / "recipe.toml").read_text(encoding="utf-8").replace('"main"', '"other"')
    (project / "recipe.toml").write_text(text, encoding="utf-8")
    refused = torchsmith(project, "there", "build", "--dry-run", "--bundle", "all.bundle")
    assert refused.returncode == 2
    assert "torch-main" in refused.stderr


@pytest.mark.parametrize("said", ["by its name", "by what it is"])
def test_for_another_platform_it_holds_that_platforms_packages(project: Path, said: str) -> None:
    (other,) = {"linux-x86_64", "linux-aarch64"} - {read_platform()}
    words = ["--platform", other]
    if said == "by what it is":
        there = torchsmith(project, "here", "doctor", "--json").stdout
        (project / "there.json").write_text(there.replace(read_platform(), other))
        words = ["--host", "there.json"]
    written = torchsmith(project, "here", "bundle", *words, "--output", "all.bundle")
    assert written.returncode == 0, written.stderr
    with tarfile.open(project / "all.bundle") as bundle:
        names = [name.rpartition("/")[2] for name in bundle.getnames() if name.endswith(".whl")]
    wheels = [parse_wheel_filename(name) for name in names]
    machines = {tag.platform for *_, tags in wheels for tag in tags} - {"any"}
    assert machines
    assert {name for name in machines if not name.endswith(other.removeprefix("linux-"))} == set()


def test_a_dry_run_shows_the_steps_asked_for_and_what_they_need(project: Path) -> None:
    shown = torchsmith(project, "here", "build", "--dry-run", "--step", "fetch-torch-main")
    assert shown.returncode == 0, shown.stderr
    assert "Fetch torch" in shown.stdout
    assert "Compile" not in shown.stdout
    refused = torchsmith(project, "here", "build", "--dry-run", "--step", "fetch-torch-man")
    assert refused.returncode == 2
    assert "fetch-torch-main" in refused.stderr


def test_a_damaged_bundle_is_refused(project: Path) -> None:
    assert torchsmith(project, "here", "bundle", "--output", "all.bundle").returncode == 0
    content = bytearray((project / "all.bundle").read_bytes())
    content[len(content) // 2] ^= 0xFF
    (project / "all.bundle").write_bytes(content)
    refused = torchsmith(
        project, "there", "build", "--step", "fetch-torch-main", "--bundle", "all.bundle"
    )
    assert refused.returncode in (6, 8)
    assert "Traceback" not in refused.stderr

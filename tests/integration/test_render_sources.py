"""Fetching and patching as the script does it: Debian's archive and git, for real."""

from __future__ import annotations

import hashlib
import os
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from torchsmith.plan.models import Plan
from torchsmith.plan.render.script import render_script
from torchsmith.recipe.models import Recipe

pytestmark = [pytest.mark.integration, pytest.mark.usefixtures("rendering_tools")]

Planner = Callable[[str | Path], tuple[Plan, Recipe]]


def run(script: str, folder: Path, *steps: str, **env: str) -> subprocess.CompletedProcess[str]:
    file = folder / "plan.sh"
    file.write_text(script)
    return subprocess.run(
        ["bash", file, *steps],
        cwd=folder,
        env={**os.environ, "WORK": str(folder / "work"), **env},
        capture_output=True,
        text=True,
        check=False,
    )


def debian_mirror() -> str:
    """Where this machine's own apt gets Debian from."""
    sites = subprocess.run(
        ["apt-get", "indextargets", "--format", "$(SITE)"],
        capture_output=True,
        text=True,
        check=True,
    ).stdout.split()
    return next(site for site in sites if site.rstrip("/").endswith("/debian"))


@pytest.fixture(scope="module")
def debian(planned: Planner) -> Plan:
    return planned('torch = "2.6.0"\nsource = { kind = "debian", suite = "trixie" }')[0]


def test_debian_gives_torch_with_its_patches_and_ours(debian: Plan, tmp_path: Path) -> None:
    steps = [step for step in debian.steps if step.kind in ("fetch", "patch")]
    names = [step.id for step in steps]
    done = run(render_script(debian, "test"), tmp_path, *names, DEBIAN_MIRROR=debian_mirror())
    assert done.returncode == 0, done.stdout + done.stderr
    tree = tmp_path / "work/sources/torch-2.6.0"
    series = [
        line
        for line in (tree / "debian/patches/series").read_text().splitlines()
        if line and not line.startswith("#")
    ]
    assert (tree / ".pc/applied-patches").read_text().splitlines() == series
    assert (tree / "version.txt").read_text().startswith("2.6.0")
    for step in steps:
        lent = step.id.startswith("fetch-lent-")
        assert lent or (tmp_path / "work" / step.outputs[0] / "setup.py").exists()
    patched = tmp_path / "work" / steps[-1].outputs[0] / "third_party/ideep"
    assert (patched / "mkl-dnn/include/oneapi/dnnl/dnnl.hpp").is_file()
    assert (patched / "include/ideep.hpp").is_file()
    assert not (tmp_path / "work/apt/pytorch/unpack").exists()


def test_debian_gives_1_13_whole_or_upstreams_part_with_what_stands_in_for_the_rest(
    planned: Planner, tmp_path: Path
) -> None:
    plan, _ = planned('torch = "1.13.1"\nsource = { kind = "debian", suite = "bookworm" }')
    steps = [step for step in plan.steps if step.kind in ("fetch", "patch")]
    names = [step.id for step in steps]
    done = run(render_script(plan, "test"), tmp_path, *names, DEBIAN_MIRROR=debian_mirror())
    assert done.returncode == 0, done.stdout + done.stderr
    tree = tmp_path / "work" / steps[-1].outputs[0]
    whole = (tree / "debian/patches/series").exists()
    assert ("upstream's is taken alone" in done.stderr) != whole
    assert ("torch-1.13-system-libraries.patch is left out" in done.stdout) == whole
    if not whole:
        assert "find_program" in (tree / "cmake/FlatBuffers.cmake").read_text()
    (resolution,) = plan.variants
    assert resolution.vendored
    for item in resolution.vendored:
        assert hashlib.sha256((tree / item.path).read_bytes()).hexdigest() == item.sha256
    lent = [path for path in (tmp_path / "work" / steps[1].outputs[0]).rglob("*") if path.is_file()]
    assert len(lent) == len(resolution.vendored)


def test_an_archive_signed_by_nobody_we_know_is_refused(debian: Plan, tmp_path: Path) -> None:
    mirror = tmp_path / "mirror/dists/trixie"
    mirror.mkdir(parents=True)
    (mirror / "Release").write_text("Origin: Debian\nSuite: trixie\nCodename: trixie\n")
    # Even on a machine that is told to trust everything.
    loose = tmp_path / "loose.conf"
    loose.write_text('Acquire::AllowInsecureRepositories "true";')
    done = run(
        render_script(debian, "test"),
        tmp_path,
        "fetch-torch-2.6.0",
        DEBIAN_MIRROR=f"file://{tmp_path}/mirror",
        APT_CONFIG=str(loose),
    )
    assert done.returncode != 0
    assert "is not signed" in done.stderr


def git(folder: Path, *words: str) -> str:
    author = ["-c", "user.name=t", "-c", "user.email=t@example.org"]
    return subprocess.run(
        ["git", "-C", folder, *author, "-c", "protocol.file.allow=always", *words],
        capture_output=True,
        text=True,
        check=True,
    ).stdout.strip()


@pytest.fixture(scope="module")
def repository(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, str]:
    """A repository with a submodule that is not at the tip of its own history, and its commit."""
    folder = tmp_path_factory.mktemp("git")
    for name in ("part", "torch"):
        (folder / name).mkdir()
        git(folder / name, "init", "--quiet", "--initial-branch", "main")
    (folder / "part/part.txt").write_text("one\n")
    git(folder / "part", "add", ".")
    git(folder / "part", "commit", "--quiet", "-m", "one")
    git(
        folder / "torch", "submodule", "--quiet", "add", f"file://{folder}/part", "third_party/part"
    )
    (folder / "torch/setup.py").write_text("print('torch')\n")
    git(folder / "torch", "add", ".")
    git(folder / "torch", "commit", "--quiet", "-m", "torch")
    git(folder / "torch", "tag", "-a", "v9", "-m", "annotated")
    (folder / "part/part.txt").write_text("two\n")
    git(folder / "part", "commit", "--quiet", "-a", "-m", "two")
    return folder / "torch", git(folder / "torch", "rev-parse", "HEAD")


# git refuses submodules from this machine's own disk unless it is told otherwise.
ALLOW = {
    "GIT_CONFIG_COUNT": "1",
    "GIT_CONFIG_KEY_0": "protocol.file.allow",
    "GIT_CONFIG_VALUE_0": "always",
}


def git_script(planned: Planner, url: str, commit: str, mirrors: str = "[]") -> str:
    torch = f'{{ release = "2.6.0", ref = "v9", commit = "{commit}" }}'
    source = f'{{ kind = "git", url = "{url}", mirrors = {mirrors} }}'
    return render_script(planned(f"torch = {torch}\nsource = {source}")[0], "test")


def test_git_brings_the_tag_and_the_submodule_it_names(
    planned: Planner, repository: tuple[Path, str], tmp_path: Path
) -> None:
    folder, commit = repository
    script = git_script(planned, f"file://{folder}", commit)
    done = run(script, tmp_path, "fetch-torch-v9", **ALLOW)
    assert done.returncode == 0, done.stdout + done.stderr
    tree = tmp_path / "work/sources/torch-9"
    assert (tree / "setup.py").exists()
    assert (tree / "third_party/part/part.txt").read_text() == "one\n"
    assert "done before" in run(script, tmp_path, "fetch-torch-v9", **ALLOW).stdout


def test_a_mirror_serves_where_the_first_address_does_not(
    planned: Planner, repository: tuple[Path, str], tmp_path: Path
) -> None:
    folder, commit = repository
    mirrors = f'["file://{folder}"]'
    script = git_script(planned, f"file://{tmp_path}/nothing", commit, mirrors)
    done = run(script, tmp_path, "fetch-torch-v9", **ALLOW)
    assert done.returncode == 0, done.stdout + done.stderr


def test_a_tag_that_was_moved_is_refused_in_a_sentence(
    planned: Planner, repository: tuple[Path, str], tmp_path: Path
) -> None:
    script = git_script(planned, f"file://{repository[0]}", "0" * 40)
    done = run(script, tmp_path, "fetch-torch-v9", **ALLOW)
    assert done.returncode == 1
    assert f"v9 does not point to {'0' * 40}" in done.stderr
    assert not (tmp_path / "work/done/fetch-torch-v9").exists()


def test_an_archive_with_another_hash_is_not_unpacked(planned: Planner, tmp_path: Path) -> None:
    (tmp_path / "torch.tar.gz").write_bytes(b"not what was promised")
    source = f'{{ kind = "archive", path = "torch.tar.gz", sha256 = "{"0" * 64}" }}'
    plan, _ = planned(f'torch = "2.6.0"\nsource = {source}')
    done = run(render_script(plan, "test"), tmp_path, "fetch-torch-2.6.0")
    assert done.returncode == 1
    assert "does not have the hash the recipe says" in done.stderr
    assert not (tmp_path / "work/sources").exists()


def test_patches_of_the_same_name_are_applied_in_order(planned: Planner, tmp_path: Path) -> None:
    (tmp_path / "torch").mkdir()
    (tmp_path / "torch/a.txt").write_text("zero\n")
    for folder, old, new in (("one", "zero", "first"), ("two", "first", "second")):
        (tmp_path / folder).mkdir()
        text = f"--- a/a.txt\n+++ b/a.txt\n@@ -1 +1 @@\n-{old}\n+{new}\n"
        (tmp_path / folder / "fix=it,now.patch").write_text(text)
    recipe = tmp_path / "recipe.toml"
    recipe.write_text(
        'torch = "2.9.0"\nsource = { kind = "folder", path = "torch" }\n'
        'patches = ["one/fix=it,now.patch", "two/fix=it,now.patch"]\n'
    )
    plan, _ = planned(recipe)
    steps = [step for step in plan.steps if step.kind in ("fetch", "patch")]
    assert [step.kind for step in steps] == ["fetch", "patch"]
    assert len(set(steps[1].inputs)) == 2
    done = run(render_script(plan, "test"), tmp_path, *(step.id for step in steps))
    assert done.returncode == 0, done.stdout + done.stderr
    assert (tmp_path / "work" / steps[0].outputs[0] / "a.txt").read_text() == "zero\n"
    assert (tmp_path / "work" / steps[1].outputs[0] / "a.txt").read_text() == "second\n"

"""The commands between a source as it came and the tree that is built, run in a real shell."""

from __future__ import annotations

import hashlib
import subprocess
from pathlib import Path

import pytest

from torchsmith.plan.models import Step
from torchsmith.plan.sources import lender_folder, patch_source
from torchsmith.resolve.models import PatchChoice, SourceChoice, VendoredChoice

pytestmark = pytest.mark.unit

FETCH = Step(
    id="fetch-torch-9", kind="fetch", title="", project="torch", outputs=("sources/torch-9",)
)
PATCH = b"--- a/a.txt\n+++ b/a.txt\n@@ -1 +1 @@\n-old\n+new\n"
LENDER = SourceChoice(
    "debian", suite="demo", package="other", ref="2.0", files=("debian/kept/part.h",)
)
LENT = b"int lent;\n"
HEADER = VendoredChoice(
    "third_party/part/part.h",
    LENDER,
    "debian/kept/part.h",
    hashlib.sha256(LENT).hexdigest(),
)


@pytest.fixture
def work(tmp_path: Path) -> Path:
    """A work folder with a source, and a file that another one lends."""
    for name, content in {
        "sources/torch-9/a.txt": b"old\n",
        f"{lender_folder(LENDER)}/debian/kept/part.h": LENT,
    }.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_bytes(content)
    return tmp_path


def run(
    work: Path,
    patches: tuple[PatchChoice, ...] = (),
    vendored: tuple[VendoredChoice, ...] = (),
) -> tuple[Path, subprocess.CompletedProcess[str]]:
    """Do the step; the tree it makes and what it said."""
    files: dict[str, bytes] = {}
    step = patch_source(FETCH, patches, files, vendored)
    for name, content in files.items():
        (work / name).parent.mkdir(parents=True, exist_ok=True)
        (work / name).write_bytes(content)
    done = subprocess.run(
        ["sh", "-euc", "\n".join(step.commands)],
        cwd=work,
        env={"PATH": "/usr/bin:/bin", "WORK": str(work)},
        capture_output=True,
        text=True,
        check=False,
    )
    return work / step.outputs[0], done


def patch(unless: str = "", only_with: str = "") -> PatchChoice:
    return PatchChoice("first.patch", "torch", 1, PATCH, "", unless, only_with)


@pytest.mark.parametrize(
    ("choice", "has_series", "result"),
    [
        (patch(), False, "new\n"),
        (patch(unless="debian/patches/series"), False, "new\n"),
        (patch(unless="debian/patches/series"), True, "old\n"),
        (patch(only_with="debian/patches/series"), False, "old\n"),
        (patch(only_with="debian/patches/series"), True, "new\n"),
    ],
)
def test_a_patch_is_applied_to_the_trees_it_is_for(
    work: Path, choice: PatchChoice, has_series: bool, result: str
) -> None:
    if has_series:
        (work / "sources/torch-9/debian/patches").mkdir(parents=True)
        (work / "sources/torch-9/debian/patches/series").touch()
    tree, done = run(work, (choice,))
    assert done.returncode == 0, done.stderr
    assert (tree / "a.txt").read_text() == result
    assert (work / "sources/torch-9/a.txt").read_text() == "old\n"
    left_out = f"first.patch is left out: the source {'has' if has_series else 'has no'} debian"
    assert (left_out in done.stdout) == (result == "old\n")


def test_a_patch_for_this_tree_that_does_not_fit_ends_the_step(work: Path) -> None:
    (work / "sources/torch-9/a.txt").write_text("another\n")
    _, done = run(work, (patch(unless="debian"),))
    assert done.returncode != 0
    assert "first.patch does not apply to sources/torch-9" in done.stderr


def test_a_lent_file_lies_where_the_build_looks_for_it(work: Path) -> None:
    tree, done = run(work, (), (HEADER,))
    assert done.returncode == 0, done.stderr
    assert (tree / "third_party/part/part.h").read_bytes() == LENT
    assert not (work / "sources/torch-9/third_party").exists()


def test_a_lent_folder_lies_where_the_build_looks_for_it(work: Path) -> None:
    wheel = SourceChoice("wheel", package="parts", ref="3.5", sha256="0" * 64, files=("inside",))
    lent = work / lender_folder(wheel) / "inside/part/deep.h"
    lent.parent.mkdir(parents=True)
    lent.write_bytes(LENT)
    folder = VendoredChoice("third_party/parts/include", wheel, "inside", wheel.sha256)
    tree, done = run(work, (), (folder,))
    assert done.returncode == 0, done.stderr
    assert (tree / "third_party/parts/include/part/deep.h").read_bytes() == LENT


def test_the_sources_own_file_is_kept(work: Path) -> None:
    (work / "sources/torch-9/third_party/part").mkdir(parents=True)
    (work / "sources/torch-9/third_party/part/part.h").write_text("int own;\n")
    tree, done = run(work, (), (HEADER,))
    assert done.returncode == 0, done.stderr
    assert (tree / "third_party/part/part.h").read_text() == "int own;\n"


def test_a_lent_file_that_is_not_the_one_known_ends_the_step(work: Path) -> None:
    (work / lender_folder(LENDER) / "debian/kept/part.h").write_text("int other;\n")
    _, done = run(work, (), (HEADER,))
    assert done.returncode != 0
    assert "part.h of other 2.0 does not have the hash the facts say" in done.stderr


def test_conditions_and_lent_files_make_another_tree() -> None:
    made = [
        patch_source(FETCH, (choice,), {}, vendored).outputs[0]
        for choice in (patch(), patch(unless="x"), patch(only_with="x"))
        for vendored in ((), (HEADER,))
    ]
    assert len(set(made)) == len(made)

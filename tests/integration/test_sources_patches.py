"""Patches apply with the real `patch`: all of them, or none."""

from __future__ import annotations

from pathlib import Path

import pytest

from torchsmith.errors import SourceError
from torchsmith.resolve.models import PatchChoice
from torchsmith.sources.patches import apply_patches
from torchsmith.sources.tree import tree_hash

pytestmark = pytest.mark.integration

LINES = [f"line {number}\n" for number in range(1, 41)]


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    folder = tmp_path / "tree"
    (folder / "src").mkdir(parents=True)
    (folder / "src" / "a.txt").write_text("".join(LINES))
    (folder / "only").write_text("here\n")
    return folder


def patch(name: str, text: str, strip: int = 1) -> PatchChoice:
    return PatchChoice(name, "torch", strip, text.encode())


def change(
    number: int, old: str, new: str, *, file: str = "src/a.txt", context: str = "line"
) -> str:
    return (
        f"--- a/{file}\n+++ b/{file}\n@@ -{number - 1},3 +{number - 1},3 @@\n"
        f" {context} {number - 1}\n-{old}\n+{new}\n {context} {number + 1}\n"
    )


def test_patches_are_applied_in_order_each_seeing_the_one_before(tree: Path) -> None:
    first = patch("1.patch", change(5, "line 5", "five"))
    second = patch("2.patch", change(5, "five", "FIVE"))
    assert apply_patches(tree, [first, second]) == ()
    assert (tree / "src/a.txt").read_text().splitlines()[4] == "FIVE"
    assert sorted(path.name for path in tree.rglob("*")) == ["a.txt", "only", "src"]


def test_files_are_made_moved_and_removed(tree: Path) -> None:
    text = (
        "diff --git a/new/b.txt b/new/b.txt\nnew file mode 100644\n--- /dev/null\n+++ b/new/b.txt\n"
        "@@ -0,0 +1 @@\n+fresh\n"
        "diff --git a/only b/only\ndeleted file mode 100644\n--- a/only\n+++ /dev/null\n"
        "@@ -1 +0,0 @@\n-here\n"
        "diff --git a/src/a.txt b/src/c.txt\nsimilarity index 100%\n"
        "rename from src/a.txt\nrename to src/c.txt\n"
    )
    apply_patches(tree, [patch("git.patch", text)])
    assert (tree / "new/b.txt").read_text() == "fresh\n"
    assert not (tree / "only").exists()
    assert (tree / "src/c.txt").read_text() == "".join(LINES)


def test_a_failing_patch_shows_its_hunk_and_changes_nothing(tree: Path) -> None:
    before = tree_hash(tree)
    good = patch("1.patch", change(5, "line 5", "five"))
    bad = patch("2.patch", change(20, "line twenty", "x"))
    with pytest.raises(SourceError) as caught:
        apply_patches(tree, [good, bad])
    assert "2.patch does not apply" in caught.value.message
    assert "src/a.txt: hunk 1 does not fit at line 19" in caught.value.message
    assert "-line twenty" in caught.value.message
    assert tree_hash(tree) == before


def test_a_patch_that_is_already_in_says_so(tree: Path) -> None:
    once = patch("1.patch", change(5, "line 5", "five"))
    apply_patches(tree, [once])
    before = tree_hash(tree)
    with pytest.raises(SourceError, match=r"already in src/a\.txt"):
        apply_patches(tree, [once])
    assert tree_hash(tree) == before


def test_a_loose_fit_is_remarked_on(tree: Path) -> None:
    text = (
        "--- a/src/a.txt\n+++ b/src/a.txt\n@@ -8,7 +8,7 @@\n another 8\n line 9\n line 10\n"
        "-line 11\n+eleven\n line 12\n line 13\n another 14\n"
    )
    remarks = apply_patches(tree, [patch("loose.patch", text)])
    assert remarks == ("loose.patch: hunk 1 of src/a.txt fits line 8 only loosely (fuzz 1)",)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (change(5, "line 5", "x", file="../../etc/passwd"), "reaches out"),
        (change(5, "line 5", "x", file="src/../../x"), "reaches out"),
        ("--- /etc/passwd\n+++ /etc/passwd\n@@ -1 +1 @@\n-a\n+b\n", "reaches out"),
        ('--- "a/\\056\\056/x"\n+++ "b/\\056\\056/x"\n@@ -1 +1 @@\n-a\n+b\n', "reaches out"),
        ("Index: ../x\n--- a/only\n+++ b/only\n@@ -1 +1 @@\n-here\n+b\n", "reaches out"),
        ("diff --git a/x b/x\nrename from only\nrename to ../x\n", "reaches out"),
        (
            "diff --git a/l b/l\nnew file mode 120000\n--- /dev/null\n+++ b/l\n"
            "@@ -0,0 +1 @@\n+/etc\n\\ No newline at end of file\n",
            "link or a submodule",
        ),
        ("diff --git a/only b/only\nGIT binary patch\nliteral 1\nIcmZQz00000\n", "binary"),
        (change(2, "line 2", "x", file="way/a.txt"), "through the link"),
        ("this is no patch\n", "cannot be applied"),
        ("", "cannot be applied"),
        ("--- a/only\n+++ b/only\n@@ -1,5 +1,5 @@\n-here\n", "cannot be applied|does not apply"),
    ],
)
def test_a_patch_that_must_not_be_applied_changes_nothing(
    tree: Path, tmp_path: Path, text: str, message: str
) -> None:
    (tmp_path / "outside").mkdir()
    (tmp_path / "outside" / "a.txt").write_text("".join(LINES))
    (tree / "way").symlink_to(tmp_path / "outside")
    before = tree_hash(tree)
    with pytest.raises(SourceError, match=message):
        apply_patches(tree, [patch("bad.patch", text)])
    assert tree_hash(tree) == before
    assert (tmp_path / "outside" / "a.txt").read_text() == "".join(LINES)


def test_an_ed_script_in_a_patch_is_not_run(tree: Path, tmp_path: Path) -> None:
    text = f"--- a/only\n+++ b/only\n1c\nx\n.\n!touch {tmp_path}/ran\nw\n"
    with pytest.raises(SourceError):
        apply_patches(tree, [patch("ed.patch", text)])
    assert not (tmp_path / "ran").exists()


def test_a_removed_line_that_looks_like_a_header_is_none(tree: Path) -> None:
    (tree / "q.lua").write_text("-- /etc/x\nkeep\n")
    text = "--- a/q.lua\n+++ b/q.lua\n@@ -1,2 +1 @@\n--- /etc/x\n keep\n"
    apply_patches(tree, [patch("lua.patch", text)])
    assert (tree / "q.lua").read_text() == "keep\n"


def test_leading_folders_are_stripped_as_asked(tree: Path) -> None:
    text = change(5, "line 5", "five").replace("a/src", "x/y/src").replace("b/src", "x/y/src")
    apply_patches(tree, [patch("deep.patch", text, strip=2)])
    assert "five" in (tree / "src/a.txt").read_text()

"""Which addresses git may be given, and which trees may stand."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from torchsmith.errors import SourceError
from torchsmith.resolve.models import SourceChoice
from torchsmith.sources.addresses import check_git_address, joined, shown
from torchsmith.sources.fetch import fetch
from torchsmith.sources.git import check_path, check_place
from torchsmith.sources.tree import tree_hash

pytestmark = pytest.mark.unit


@pytest.mark.parametrize(
    "url",
    [
        "https://example.org/a/b.git",
        "http://example.org:8080/b",
        "ssh://git@example.org/b.git",
        "git://example.org/b",
        "git@example.org:a/b.git",
        "example.org:a/b.git",
    ],
)
def test_ordinary_addresses_are_allowed(url: str) -> None:
    check_git_address(url, local=False, what="submodule")


@pytest.mark.parametrize(
    "url",
    [
        "",
        "-uupload-pack",
        "--upload-pack=touch /tmp/x",
        "ext::sh -c touch% /tmp/x",
        "ext::sh",
        "fd::17",
        "ftp://example.org/b",
        "file:///etc",
        "/etc",
        "relative/folder",
        "ssh://-oProxyCommand=touch/b",
        "-oProxyCommand=touch:b",
        "https://example.org/a\nb",
        "https://example.org/a b",
        "https://example.org/\x1b[2J",
        "https:///no-host",
        "https://[broken/b",
        "transport::https://example.org/b",
    ],
)
def test_hostile_addresses_are_refused(url: str) -> None:
    with pytest.raises(SourceError) as caught:
        check_git_address(url, local=False, what="submodule")
    assert caught.value.exit_code == 8
    assert caught.value.hint


def test_a_local_repository_may_be_named_by_the_recipe_only() -> None:
    check_git_address("file:///srv/a", local=True, what="source")
    check_git_address("/srv/a", local=True, what="source")


@pytest.mark.parametrize(
    ("base", "relative", "expected"),
    [
        ("https://example.org/a/b.git", "../c.git", "https://example.org/a/c.git"),
        ("https://example.org/a/b.git", "../../x/c", "https://example.org/x/c"),
        ("https://example.org/a/b/", "./c", "https://example.org/a/b/c"),
        ("git@example.org:a/b.git", "../c.git", "git@example.org:a/c.git"),
        ("/srv/a/b", "../c", "/srv/a/c"),
        ("file:///srv/a/b", "../c", "file:///srv/a/c"),
    ],
)
def test_a_relative_address_is_beside_its_parent(base: str, relative: str, expected: str) -> None:
    assert joined(base, relative) == expected


def test_a_relative_address_cannot_leave_its_server() -> None:
    with pytest.raises(SourceError):
        joined("https://example.org/a/b.git", "../../../other.example/c")


def test_passwords_are_not_shown() -> None:
    assert shown("https://me:secret@example.org/a") == "https://example.org/a"


@pytest.mark.parametrize(
    "path",
    [
        "",
        "/etc",
        "../x",
        "a/../../x",
        "a//b",
        "./a",
        ".git/hooks",
        "a/.GIT/x",
        "-a",
        "a\nb",
        "a\\b",
    ],
)
def test_a_submodule_path_outside_the_tree_is_refused(path: str) -> None:
    with pytest.raises(SourceError):
        check_path(path)


def test_a_submodule_is_not_put_behind_a_link(tmp_path: Path) -> None:
    tree, outside = tmp_path / "tree", tmp_path / "outside"
    tree.mkdir()
    outside.mkdir()
    (tree / "third_party").symlink_to(outside)
    with pytest.raises(SourceError, match="third_party"):
        check_place(tree, check_path("third_party/fmt"))
    assert not any(outside.iterdir())


def folder_choice(path: Path) -> SourceChoice:
    return SourceChoice("folder", path=str(path))


def make_tree(folder: Path) -> Path:
    (folder / "src").mkdir(parents=True)
    (folder / "src" / "a.cpp").write_text("int a;\n")
    (folder / "run.sh").write_text("#!/bin/sh\n")
    (folder / "run.sh").chmod(0o755)
    (folder / "link").symlink_to("src/a.cpp")
    return folder


def test_a_folder_is_copied_without_git_and_build(tmp_path: Path) -> None:
    source = make_tree(tmp_path / "source")
    expected = tree_hash(source)
    (source / ".git" / "objects").mkdir(parents=True)
    (source / "src" / ".git").write_text("gitdir: elsewhere\n")
    (source / "build").mkdir()
    (source / "build" / "CMakeCache.txt").write_text("")
    brought = fetch(folder_choice(source), tmp_path / "tree", cache=tmp_path / "cache")
    assert sorted(path.name for path in (tmp_path / "tree").iterdir()) == ["link", "run.sh", "src"]
    assert brought.evidence == {"tree": expected}
    assert (tmp_path / "tree/run.sh").stat().st_ino != (source / "run.sh").stat().st_ino
    assert any("build folder" in note for note in brought.notes)


def test_a_build_folder_that_is_source_is_kept(tmp_path: Path) -> None:
    source = make_tree(tmp_path / "source")
    (source / "build").mkdir()
    (source / "build" / "defs.bzl").write_text("")
    fetch(folder_choice(source), tmp_path / "tree", cache=tmp_path / "cache")
    assert (tmp_path / "tree/build/defs.bzl").exists()


@pytest.mark.parametrize("target", ["/etc/passwd", "../../outside"])
def test_a_folder_with_a_link_out_of_it_is_refused(tmp_path: Path, target: str) -> None:
    source = make_tree(tmp_path / "source")
    (source / "src" / "out").symlink_to(target)
    with pytest.raises(SourceError, match="src/out"):
        fetch(folder_choice(source), tmp_path / "tree", cache=tmp_path / "cache")
    assert not any((tmp_path / "tree").iterdir())


def test_a_pipe_is_no_source_and_leaves_nothing_behind(tmp_path: Path) -> None:
    source = make_tree(tmp_path / "source")
    os.mkfifo(source / "src" / "pipe")
    with pytest.raises(SourceError, match="pipe"):
        fetch(folder_choice(source), tmp_path / "tree", cache=tmp_path / "cache")
    assert not any((tmp_path / "tree").iterdir())


def test_a_folder_is_not_copied_into_itself(tmp_path: Path) -> None:
    source = make_tree(tmp_path / "source")
    with pytest.raises(SourceError, match="into itself"):
        fetch(folder_choice(source), source / "work" / "tree", cache=tmp_path / "cache")


def test_a_destination_must_be_empty(tmp_path: Path) -> None:
    source = make_tree(tmp_path / "source")
    (tmp_path / "tree").mkdir()
    (tmp_path / "tree" / "mine").write_text("")
    with pytest.raises(SourceError, match="not empty"):
        fetch(folder_choice(source), tmp_path / "tree", cache=tmp_path / "cache")
    assert (tmp_path / "tree" / "mine").exists()


def test_the_tree_hash_sees_content_names_and_the_executable_bit_only(tmp_path: Path) -> None:
    first, second = make_tree(tmp_path / "a"), make_tree(tmp_path / "b")
    os.utime(second / "run.sh", (0, 0))
    (second / "run.sh").chmod(0o700)
    assert tree_hash(first) == tree_hash(second)
    seen = {tree_hash(first)}
    (second / "run.sh").chmod(0o644)
    seen.add(tree_hash(second))
    (second / "src" / "a.cpp").rename(second / "src" / "b.cpp")
    seen.add(tree_hash(second))
    (second / "src" / "b.cpp").write_text("int b;\n")
    seen.add(tree_hash(second))
    (second / "link").unlink()
    (second / "link").symlink_to("src/b.cpp")
    seen.add(tree_hash(second))
    assert len(seen) == 5


def test_an_unknown_kind_is_refused(tmp_path: Path) -> None:
    with pytest.raises(SourceError, match="svn"):
        fetch(SourceChoice("svn"), tmp_path / "tree", cache=tmp_path / "cache")

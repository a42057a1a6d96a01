"""A tree that was built in becomes what its source is, and keeps what was built of the rest."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from torchsmith.sources import update
from torchsmith.sources.update import bring, configured

pytestmark = pytest.mark.unit

MARK = "0123abcd"


class Bench:
    """A source, and the tree that is built in."""

    def __init__(self, folder: Path) -> None:
        self.source = folder / "source"
        self.tree = folder / "build" / "tree"
        (self.source / "src").mkdir(parents=True)
        for name in ("src/a.cpp", "src/b.cpp", "src/b.h", "CMakeLists.txt"):
            (self.source / name).write_text(f"// {name}\n")
        (self.source / "run.sh").write_text("#!/bin/sh\n")
        (self.source / "run.sh").chmod(0o755)
        (self.source / "link.h").symlink_to("src/b.h")
        for path in self.source.rglob("*"):
            os.utime(path, (1_000_000, 1_000_000), follow_symlinks=False)

    def build(self) -> None:
        """As a configuration and a compilation leave it."""
        bring(self.source, self.tree, MARK)
        made = self.tree / "build"
        made.mkdir(exist_ok=True)
        for name in ("CMakeCache.txt", "build.ninja", "a.o"):
            (made / name).touch()
        (self.tree / "generated.cpp").write_text("made")
        configured(self.tree, MARK)

    def again(self, mark: str = MARK, *, fresh: bool = False) -> bool:
        """Bring it up to date; whether what was built is still there."""
        bring(self.source, self.tree, mark, fresh=fresh)
        for path in self.source.rglob("*"):
            here = self.tree / path.relative_to(self.source)
            assert here.is_dir() if path.is_dir() else here.read_bytes() == path.read_bytes()
        return (self.tree / "generated.cpp").exists()

    def date(self, name: str) -> float:
        return (self.tree / name).lstat().st_mtime


@pytest.fixture
def bench(tmp_path: Path) -> Bench:
    made = Bench(tmp_path)
    made.build()
    return made


def test_only_what_changed_gets_another_date(bench: Bench) -> None:
    (bench.source / "src/a.cpp").write_text("// edited\n")
    (bench.source / "src/b.cpp").touch()
    assert bench.again()
    assert bench.date("src/a.cpp") > 1_000_000
    assert bench.date("src/b.cpp") == bench.date("src/b.h") == 1_000_000
    assert (bench.tree / "build/a.o").exists()
    assert (bench.tree / "build/build.ninja").exists()


def test_an_edit_may_come_with_the_date_of_long_ago(bench: Bench) -> None:
    (bench.source / "src/a.cpp").write_text("// older\n")
    os.utime(bench.source / "src/a.cpp", (500_000, 500_000))
    assert bench.again()
    assert bench.date("src/a.cpp") > 1_000_000


def test_what_is_gone_from_the_source_goes_and_what_the_build_made_stays(bench: Bench) -> None:
    (bench.source / "src/a.cpp").unlink()
    (bench.source / "more").mkdir()
    (bench.source / "more/new.cpp").write_text("// new\n")
    assert bench.again()
    assert not (bench.tree / "src/a.cpp").exists()
    assert (bench.tree / "more/new.cpp").exists()
    # CMake lists the folders again, and keeps its answers.
    assert not (bench.tree / "build/build.ninja").exists()
    assert (bench.tree / "build/CMakeCache.txt").exists()
    bench.build()
    (bench.source / "more/new.cpp").unlink()
    (bench.source / "more").rmdir()
    assert bench.again()
    assert not (bench.tree / "more").exists()


def test_a_folder_with_something_built_in_it_stays(bench: Bench) -> None:
    (bench.tree / "src/made.inc").touch()
    for path in (bench.source / "src").iterdir():
        path.unlink()
    (bench.source / "src").rmdir()
    (bench.source / "link.h").unlink()
    (bench.source / "link.h").symlink_to("src/b.h")
    bring(bench.source, bench.tree, MARK)
    assert [path.name for path in (bench.tree / "src").iterdir()] == ["made.inc"]


def test_what_a_build_installed_goes_with_a_file_and_comes_again(bench: Bench) -> None:
    installed = bench.tree / "include"
    installed.mkdir()
    (installed / "b.h").touch()
    (bench.tree.parent / "outside").touch()
    listed = [installed / "b.h", bench.tree / "src/b.cpp", bench.tree / "../outside"]
    (bench.tree / "build/install_manifest.txt").write_text("\n".join(map(str, listed)))
    (bench.source / "src/a.cpp").unlink()
    assert bench.again()
    assert not (installed / "b.h").exists()
    assert (bench.tree.parent / "outside").exists()


def test_cmake_asks_everything_again_when_its_own_files_change(bench: Bench) -> None:
    (bench.source / "CMakeLists.txt").write_text("option(X OFF)\n")
    assert bench.again()
    assert not (bench.tree / "build/CMakeCache.txt").exists()
    assert (bench.tree / "build/a.o").exists()


def test_what_was_gathered_for_a_wheel_is_gathered_again(bench: Bench) -> None:
    (bench.tree / "build/lib.linux-x86_64-cpython-311/torch").mkdir(parents=True)
    assert bench.again()
    assert not list((bench.tree / "build").glob("lib.*"))


def _retarget(bench: Bench) -> None:
    (bench.source / "link.h").unlink()
    (bench.source / "link.h").symlink_to("src/b.cpp")


def _folder_for_file(bench: Bench) -> None:
    (bench.source / "src/a.cpp").unlink()
    (bench.source / "src/a.cpp").mkdir()


def _built_over(bench: Bench) -> None:
    (bench.tree / "src/a.cpp").write_text("// by the build\n")
    (bench.source / "src/a.cpp").write_text("// edited\n")


def _built_before(bench: Bench) -> None:
    (bench.source / "generated.cpp").write_text("// now of the source\n")


def _list_cut_off(bench: Bench) -> None:
    (bench.tree / ".torchsmith-tree/files.json").write_text('{"src')


def _never_configured(bench: Bench) -> None:
    (bench.tree / ".torchsmith-tree/configured").unlink()


@pytest.mark.parametrize(
    "change",
    [
        _retarget,
        _folder_for_file,
        _built_over,
        _built_before,
        _list_cut_off,
        _never_configured,
    ],
)
def test_where_it_would_not_be_sure_the_tree_is_copied_anew(
    bench: Bench, change: Callable[[Bench], None]
) -> None:
    change(bench)
    bench.again()
    assert not (bench.tree / "build").exists()


def test_other_settings_or_a_wish_for_it_make_a_new_tree(bench: Bench) -> None:
    assert bench.again()
    assert not bench.again("another")
    bench.build()
    assert not bench.again(fresh=True)


def test_what_python_caches_beside_its_modules_is_no_change(bench: Bench) -> None:
    for place in (bench.source, bench.tree):
        (place / "src/__pycache__").mkdir()
        (place / "src/__pycache__/m.pyc").write_text(str(place))
    bring(bench.source, bench.tree, MARK)
    assert (bench.tree / "generated.cpp").exists()


# The list is written, three files are brought, and the list is written again.
@pytest.mark.parametrize("moment", range(1, 6))
def test_an_update_cut_short_is_finished_by_the_next(
    bench: Bench, moment: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    (bench.source / "src/a.cpp").write_text("// edited\n")
    (bench.source / "src/b.cpp").unlink()
    for name in ("new.cpp", "newer.cpp"):
        (bench.source / name).write_text("// new\n")
    whole = update._replace
    left = moment

    def cut(incoming: Path, path: Path) -> None:
        nonlocal left
        left -= 1
        if left == 0:
            raise KeyboardInterrupt
        whole(incoming, path)

    monkeypatch.setattr(update, "_replace", cut)
    with pytest.raises(KeyboardInterrupt):
        bring(bench.source, bench.tree, MARK)
    monkeypatch.undo()
    # Meanwhile one of the new files is gone again, and the edit is taken back.
    (bench.source / "newer.cpp").unlink()
    (bench.source / "src/a.cpp").write_text("// src/a.cpp\n")
    assert bench.again()
    assert not (bench.tree / "newer.cpp").exists()
    assert not (bench.tree / "src/b.cpp").exists()
    assert not (bench.tree / "build/build.ninja").exists()


def test_a_copy_cut_short_is_not_gone_on_from(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    def cut(incoming: Path, path: Path) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(update, "_replace", cut)
    with pytest.raises(KeyboardInterrupt):
        bring(bench.source, bench.tree, "another")
    assert not bench.tree.exists()
    monkeypatch.undo()
    bench.again("another")
    assert not (bench.tree.parent / "tree.part").exists()

"""What is compiled again in a build in batches, with the real CMake, ninja and compiler."""

from __future__ import annotations

import os
import signal
import subprocess
import time
from pathlib import Path

import pytest
from tests.integration.accel_project import COMMON, COUNT, EXPECTED, Project, text_of

from torchsmith.toolchain.cache import CompilerCache

pytestmark = pytest.mark.integration


class Watched(Project):
    """A project whose compiles are counted, and can be held or cut short.

    A file `kill` has the batch killed that compiles several files as one; `hold` has it wait;
    `save` becomes common.h as soon as a compile has ended, as if saved while it ran.
    """

    def __init__(self, folder: Path) -> None:
        launcher = folder / "launcher.sh"
        launcher.write_text(
            f"""#!/bin/sh
cd_to={folder}
echo "$*" >> $cd_to/log
case "$*" in *"-c "*torchsmith-batches/*)
  [ -e $cd_to/kill ] && kill -KILL $PPID
  while [ -e $cd_to/hold ]; do echo held >> $cd_to/holding; sleep 0.1; done ;;
esac
"$@"
status=$?
# Of two that end together, one has it.
mv $cd_to/save $cd_to/saved.$$ 2>/dev/null && cat $cd_to/saved.$$ > $cd_to/source/common.h
exit $status
"""
        )
        launcher.chmod(0o755)
        super().__init__(folder, CompilerCache((str(launcher),)))
        self.folder = folder

    def made(self) -> list[str]:
        """Build; what was compiled for it, a unit of several files by the name `unit`."""
        log = self.folder / "log"
        log.unlink(missing_ok=True)
        self.make()
        lines = log.read_text().splitlines() if log.exists() else []
        sources = [line.rpartition("-c ")[2].split()[0] for line in lines if " -c " in line]
        return sorted(
            "unit" if "torchsmith-batches" in source else Path(source).name for source in sources
        )

    def edit(self, number: int, more: int) -> None:
        """Have a file's function return so much more."""
        self.file(number).write_text(text_of(number).replace("+ LOCAL", f"+ LOCAL + {more}"))


@pytest.fixture
def watched(tmp_path: Path) -> Watched:
    made = Watched(tmp_path)
    made.configure()
    made.make()
    return made


def test_a_second_edit_compiles_one_file(watched: Watched) -> None:
    watched.edit(5, 100)
    assert watched.made() == ["f05.cpp", "unit"]
    for more in (200, 300):
        watched.edit(5, more)
        assert watched.made() == ["f05.cpp"]
        assert watched.result() == str(int(EXPECTED) + more)
    assert watched.made() == []


def test_a_header_has_every_part_compiled_and_none_divided(watched: Watched) -> None:
    watched.edit(5, 100)
    watched.make()
    before = sorted(watched.compiles())
    (watched.source / "common.h").write_text(COMMON.replace("0", "1"))
    # A file edited with it changes nothing about that.
    watched.edit(6, 10)
    readers = [part for part in before if part != ["main.cpp"]]
    assert len(watched.made()) == len(readers)
    assert sorted(watched.compiles()) == before
    assert watched.result() == str(int(EXPECTED) + 110 + COUNT)


def test_many_files_that_change_at_once_stay_together(watched: Watched) -> None:
    before = sorted(watched.compiles())
    part = max(before, key=len)
    assert len(part) > 2
    for name in part:
        watched.edit(int(name[1:3]), 10)
    assert watched.made() == ["unit"]
    assert sorted(watched.compiles()) == before
    assert watched.result() == str(int(EXPECTED) + 10 * len(part))


def test_a_kill_between_an_edited_file_and_the_rest_loses_neither(watched: Watched) -> None:
    watched.edit(5, 100)
    (watched.folder / "kill").touch()
    with pytest.raises(RuntimeError):
        watched.made()
    (watched.folder / "kill").unlink()
    assert watched.made() == ["unit"]
    assert watched.result() == str(int(EXPECTED) + 100)
    watched.edit(5, 200)
    assert watched.made() == ["f05.cpp"]


def test_a_file_put_back_with_its_date_after_a_kill_is_compiled_again(watched: Watched) -> None:
    date = watched.file(5).stat()
    watched.edit(5, 100)
    (watched.folder / "kill").touch()
    with pytest.raises(RuntimeError):
        watched.made()
    (watched.folder / "kill").unlink()
    watched.file(5).write_text(text_of(5))
    os.utime(watched.file(5), ns=(date.st_atime_ns, date.st_mtime_ns))
    assert watched.made() == ["f05.cpp", "unit"]
    assert watched.result() == EXPECTED


def test_what_was_compiled_is_there_after_ninja_was_interrupted(watched: Watched) -> None:
    watched.edit(5, 100)
    (watched.folder / "hold").touch()
    building = subprocess.Popen(
        ["ninja"],
        cwd=watched.build,
        env=watched.environment(),
        stdout=subprocess.DEVNULL,
        start_new_session=True,
    )
    deadline = time.monotonic() + 60
    while not (watched.folder / "holding").exists():
        assert time.monotonic() < deadline
        time.sleep(0.05)
    os.killpg(building.pid, signal.SIGINT)
    assert building.wait(60) != 0
    # Ninja takes away what it was making.
    assert not (watched.build / "CMakeFiles/program.dir/f05.cpp.o").exists()
    (watched.folder / "hold").unlink()
    assert watched.made() == ["unit"]
    assert watched.result() == str(int(EXPECTED) + 100)


def test_a_header_saved_while_files_are_compiled_is_compiled_next(tmp_path: Path) -> None:
    project = Watched(tmp_path)
    project.configure()
    (tmp_path / "save").write_text(COMMON.replace("0", "1"))
    project.make()
    project.make()
    assert project.result() == str(int(EXPECTED) + COUNT)

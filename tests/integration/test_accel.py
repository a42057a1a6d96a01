"""Compiling in batches with the real CMake, ninja and compiler."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from benchmarks.edit_one_file import Bench, BenchmarkError, run
from tests.integration.accel_project import COUNT, EXPECTED, Project, text_of

from torchsmith.toolchain.accel import acceleration
from torchsmith.toolchain.accel.lessons import Lessons, read_lessons
from torchsmith.toolchain.cache import CompilerCache, compiler_cache
from torchsmith.toolchain.governor import launcher

pytestmark = pytest.mark.integration


@pytest.fixture
def project(tmp_path: Path) -> Project:
    made = Project(tmp_path)
    made.configure()
    return made


def test_a_project_built_in_batches_is_the_same_program(project: Project) -> None:
    said = project.make()
    assert "files as one" in said
    assert project.result() == EXPECTED
    assert len(project.compiles()) < COUNT
    objects = list((project.build / "CMakeFiles/program.dir").glob("*.o"))
    assert len(objects) == COUNT + 1


def test_clashing_files_are_told_apart_and_remembered(project: Project) -> None:
    project.make()
    learned = read_lessons(project.lessons)
    assert learned != Lessons()
    pairs = [sorted(Path(name).name for name in pair) for pair in learned.apart]
    assert all(int(name[1:3]) % 2 == 0 for pair in pairs for name in pair)
    assert {Path(name).name for name in learned.alone} <= {"f01.cpp", "f03.cpp"}
    before = project.lessons.read_text()
    project.build = project.source.parent / "again"
    project.configure()
    project.make()
    assert project.result() == EXPECTED
    assert project.lessons.read_text() == before


def test_a_header_that_does_not_say_so_is_read_once(tmp_path: Path) -> None:
    project = Project(tmp_path)
    header = project.source / "include/walk/walk.h"
    header.parent.mkdir(parents=True)
    header.write_text("struct Walk { int steps = 1; };\n")
    with (project.source / "CMakeLists.txt").open("a") as file:
        file.write("target_include_directories(program PRIVATE include)\n")
    for number in (4, 5, 6, 7):
        text = f"#include <walk/walk.h>\nint f{number}() {{ return Walk().steps + {number}; }}\n"
        project.file(number).write_text(text)
    project.configure()
    project.make()
    assert project.result() == EXPECTED
    assert read_lessons(project.lessons).once == {"../source/include/walk/walk.h"}
    readers = {"f04.cpp", "f05.cpp", "f06.cpp", "f07.cpp"}
    assert max(len(readers & set(names)) for names in project.compiles()) > 1
    # It is still the header itself that is read: who changes it has its readers compiled again.
    header.write_text("struct Walk { int steps = 2; };\n")
    project.make()
    assert project.result() == str(int(EXPECTED) + 4)


def test_the_first_file_leaves_where_it_is_at_fault(project: Project) -> None:
    (project.source / "named.h").write_text(
        "#pragma once\nnamespace n { struct X {}; inline int pick(const X&) { return 1; } }\n"
    )
    # Templates are looked at last: by then the second file has a better answer, or as good a one.
    project.file(0).write_text(
        '#include "named.h"\n'
        "template <class T> int chosen(T value) { return pick(value); }\n"
        "int f0() { return chosen(n::X{}); }\n"
    )
    project.file(2).write_text(
        '#include "named.h"\nnamespace n { static int pick(X) { return 2; } }\n'
        "int f2() { return 3; }\n"
    )
    project.make()
    assert project.result() == EXPECTED
    assert ["f00.cpp"] in project.compiles()
    first, second = ("../source/f00.cpp", "../source/f02.cpp")
    assert read_lessons(project.lessons).clash(first, second)


def test_a_second_build_has_nothing_to_do(project: Project) -> None:
    project.make()
    assert "no work to do" in project.make()
    # Batches stay as they were formed, whatever a build of today would form.
    project.cores = 8
    assert "no work to do" in project.make()


def test_a_touched_file_is_neither_compiled_nor_linked_again(project: Project) -> None:
    project.make()
    made = (project.build / "program").stat().st_mtime_ns
    project.file(5).touch()
    project.make()
    assert (project.build / "program").stat().st_mtime_ns == made


def test_an_edited_file_leaves_its_batch_once(project: Project) -> None:
    project.make()
    text = project.file(5).read_text()
    for more in (100, 200):
        project.file(5).write_text(text.replace("OWN 5", f"OWN {5 + more}"))
        project.make()
        assert project.result() == str(int(EXPECTED) + more)
        assert ["f05.cpp"] in project.compiles()
    others = {
        name: (project.build / "CMakeFiles/program.dir" / f"{name}.o").stat().st_mtime_ns
        for name in ("f06.cpp", "f07.cpp")
    }
    project.file(5).write_text(text)
    project.make()
    assert project.result() == EXPECTED
    for name, before in others.items():
        now = (project.build / "CMakeFiles/program.dir" / f"{name}.o").stat().st_mtime_ns
        assert now == before, f"{name} was compiled again"


def test_a_changed_header_has_its_users_compiled_again(project: Project) -> None:
    project.make()
    header = project.source / "unguarded.h"
    header.write_text(header.read_text() + "#undef OWN\n#define OWN 1000\n")
    project.make()
    assert project.result() == str(int(EXPECTED) - 4 + 2000)


def test_a_real_error_is_shown_once_with_its_file(project: Project) -> None:
    project.file(7).write_text("int f7() { return missing; }\n")
    with pytest.raises(RuntimeError, match=r"f07\.cpp:1:\d+: error: .missing. was not declared"):
        project.make()
    assert not any("f07" in line for line in _lines(project.lessons))
    project.file(7).write_text(text_of(7))
    project.make()
    assert project.result() == EXPECTED


def _lines(path: Path) -> list[str]:
    return path.read_text().splitlines() if path.exists() else []


def test_without_acceleration_every_file_is_compiled_by_itself(project: Project) -> None:
    said = project.make(accel="off")
    assert "files as one" not in said
    assert not (project.build / "torchsmith.ninja").exists()
    assert project.result() == EXPECTED


def test_a_killed_build_goes_on_with_what_it_had(project: Project) -> None:
    project.make()
    state = next((project.build / "torchsmith-batches").glob("*.state"))
    parts = json.loads(state.read_text())["parts"]
    batch = json.loads(state.with_suffix(".json").read_text())
    # As a kill leaves it: objects and state are there, and ninja knows nothing of them.
    (project.build / ".ninja_log").unlink()
    (project.build / ".ninja_deps").unlink()
    carrier = {item["name"]: item["output"] for item in batch["members"]}[parts[0]["names"][0]]
    before = (project.build / carrier).stat().st_mtime_ns
    project.make()
    assert (project.build / carrier).stat().st_mtime_ns == before
    assert project.result() == EXPECTED


@pytest.mark.usefixtures("build_tools")
def test_a_batch_compiled_in_one_folder_is_found_from_another(tmp_path: Path) -> None:
    used = []
    for name in ("one", "two", "three"):
        cache = compiler_cache(tmp_path / "store", tmp_path / name)
        project = Project(tmp_path / name, cache)
        # As the store has them for all.
        project.lessons = tmp_path / "lessons" / "others.jsonl"
        project.configure()
        project.make()
        assert project.result() == EXPECTED
        used.append(cache.used())
    # The first learned which files clash, so the second had other batches; the third has its.
    assert used[0][1] > 0
    hits, misses = used[2]
    assert hits > 0
    assert misses == 0


def test_the_benchmark_of_an_edit_leaves_the_folder_as_it_was(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    project = Project(tmp_path / "one/two", CompilerCache(launcher()))
    project.configure()
    project.make()
    file, date = project.file(5), project.file(5).stat().st_mtime_ns
    run(Bench(project.build, "all", 1, tmp_path), file)
    table = {
        line[:26].strip(): line.split("compiled")[0]
        for line in capsys.readouterr().out.splitlines()
    }
    counts = {what: int(words.split()[-1]) for what, words in table.items()}
    assert counts["nothing changed"] == counts["touched"] == 0
    assert counts["edited"] == 2
    assert counts["edited again"] == counts["edited a third time"] == counts["put back"] == 1
    assert file.stat().st_mtime_ns == date
    assert project.result() == EXPECTED
    # A file that compiles, and does not with the line that the benchmark adds.
    text = text_of(5) + "#define torchsmith_edit 1 +\n"
    file.write_text(text)
    with pytest.raises(BenchmarkError, match="the build failed"):
        run(Bench(project.build, "all", 1, tmp_path), file)
    assert file.read_text() == text
    project.make()
    assert project.result() == EXPECTED


def test_a_file_calls_its_own_function_and_no_other_that_fits_better(tmp_path: Path) -> None:
    project = Project(tmp_path)
    (project.source / "others.h").write_text(
        "#pragma once\nstruct Box { int value; };\nnamespace lab { int pick(Box& box); }\n"
    )
    project.file(6).write_text(
        '#include "others.h"\n'
        "namespace lab { int pick(Box& box) { return 1000 + box.value; } }\n"
        "int f6() { return 7; }\n"
    )
    # It knows the box, and not that others pick from it.
    project.file(7).write_text(
        "struct Box;\nnamespace lab { namespace {\n"
        "int pick(const Box&) { return 8; }\n"
        "} int entry(Box& box) { return pick(box); } }\n"
        "alignas(8) static char room[8];\n"
        "int f7() { return lab::entry(reinterpret_cast<Box&>(room)); }\n"
    )
    project.configure()
    project.make()
    assert project.result() == EXPECTED
    assert "f07.cpp" in {Path(name).name for name in read_lessons(project.lessons).alone}
    assert ["f07.cpp"] in project.compiles()


@pytest.mark.parametrize(
    ("word", "gib", "largest"), [("on", 8, 32), ("on", 2, 16), ("same", 2, 10)]
)
def test_batches_are_as_large_as_memory_allows(
    tmp_path: Path, build_tools: None, word: str, gib: int, largest: int
) -> None:
    lines = ["rule cc", "  command = c++ -MD -MF $out.d -o $out -c $in", "  depfile = $out.d"]
    for number in range(300):
        (tmp_path / f"{number}.cpp").touch()
        lines.append(f"build {number}.o: cc {number}.cpp")
    (tmp_path / "build.ninja").write_text("\n".join([*lines, ""]))
    ninja = shutil.which("ninja")
    assert ninja is not None
    environment = {
        **os.environ,
        **acceleration(tmp_path / "lessons", cores=1, memory=gib << 30),
        "TORCHSMITH_ACCEL": word,
    }
    program = [sys.executable, "-P", "-m", "torchsmith.toolchain.accel", ninja, "-n"]
    subprocess.run(program, cwd=tmp_path, env=environment, check=True, stdout=subprocess.DEVNULL)
    batches = (tmp_path / "torchsmith-batches").glob("*.json")
    counts = [len(json.loads(path.read_text()).get("members", ())) for path in batches]
    assert max(counts) <= largest < 2 * max(counts)

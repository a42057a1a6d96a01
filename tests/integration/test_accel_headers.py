"""Headers that are compiled once for many files, with the real gcc, ccache and ninja."""

from __future__ import annotations

import fcntl
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from tests.integration.accel_project import COUNT, EXPECTED, Project, text_of

from torchsmith.toolchain.accel.batches import LARGE
from torchsmith.toolchain.accel.files import read_dependencies
from torchsmith.toolchain.accel.gcc_command import find_compile
from torchsmith.toolchain.cache import CompilerCache, compiler_cache, without_a_cache

pytestmark = [pytest.mark.integration, pytest.mark.usefixtures("build_tools")]

COMMON = """\
#pragma once
#include <map>
#include <string>
#ifdef LOUD
inline int volume() { return 2; }
#else
inline int volume() { return 1; }
#endif
#ifdef NO_COMMON
#error this file must not
#endif
"""
# Headers of the same text: gcc takes one for the other where the first was compiled.
TWIN = "#pragma once\nstruct Twin;\n"


class Sources:
    """Files that begin with the same header, as a build lists them."""

    def __init__(self, folder: Path) -> None:
        self.build = folder / "build folder"
        self.headers = folder / "headers"
        self.include = folder / "include"
        (self.build / "torchsmith-batches").mkdir(parents=True)
        self.include.mkdir()
        (self.include / "common.h").write_text(f"{COMMON}#include <twin.h>\n")
        for when, name in enumerate(("twin", "copy")):
            (self.include / f"{name}.h").write_text(TWIN)
            os.utime(self.include / f"{name}.h", (when, when))
        for number in range(8):
            self.write(f"f{number}", f"int f{number}() {{ return volume(); }}")
        self.enlist()

    def write(self, name: str, text: str, before: str = "") -> None:
        lines = (before, "#include <common.h>", "#include <copy.h>", text, "")
        (self.build / f"{name}.cpp").write_text("\n".join(lines))

    def enlist(self) -> None:
        found = find_compile(self.command("f0"))
        assert found is not None
        here = Path.cwd()
        os.chdir(self.build)
        try:
            kind = found.kind
        finally:
            os.chdir(here)
        units = [[str(path)] for path in sorted(self.build.glob("*.cpp"))]
        listed = self.build / "torchsmith-batches/headers.json"
        listed.write_text(json.dumps({kind: units}))

    def command(self, name: str) -> list[str]:
        made = ("-o", f"{name}.o", "-MD", "-MT", f"{name}.o", "-MF", f"{name}.d")
        return ["g++", f"-I{self.include}", "-H", *made, "-c", f"{name}.cpp"]

    def program(self, name: str) -> tuple[list[str], dict[str, str]]:
        module = "torchsmith.toolchain.accel.with_headers"
        command = [sys.executable, "-P", "-m", module, *self.command(name)]
        return command, {**os.environ, "TORCHSMITH_HEADERS": str(self.headers)}

    def compile(self, name: str) -> subprocess.CompletedProcess[str]:
        command, variables = self.program(name)
        return subprocess.run(
            command, cwd=self.build, env=variables, capture_output=True, text=True, check=False
        )

    def plain(self, name: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            self.command(name), cwd=self.build, capture_output=True, text=True, check=False
        )


def begins_with_headers(done: subprocess.CompletedProcess[str]) -> bool:
    """Whether gcc says that it used a header which was compiled."""
    return any(line.startswith("! ") and ".hpp.gch" in line for line in done.stderr.splitlines())


@pytest.fixture
def sources(tmp_path: Path) -> Sources:
    return Sources(tmp_path)


def test_files_begin_with_headers_that_were_compiled_once(sources: Sources) -> None:
    for number in range(8):
        done = sources.compile(f"f{number}")
        assert done.returncode == 0, done.stderr
        assert begins_with_headers(done)
    assert len(list(sources.headers.rglob("*.gch"))) == 1


def test_what_is_compiled_and_what_was_read_is_the_same(sources: Sources) -> None:
    sources.plain("f0")
    plain = (sources.build / "f0.o").read_bytes()
    read = {os.path.realpath(name) for name in read_dependencies(sources.build / "f0.d")}
    assert str((sources.include / "copy.h").resolve()) in read
    assert begins_with_headers(sources.compile("f0"))
    assert (sources.build / "f0.o").read_bytes() == plain
    ours = {os.path.realpath(name) for name in read_dependencies(sources.build / "f0.d")}
    assert ours == read


def test_a_file_that_sets_a_macro_first_which_headers_ask_for_reads_them_itself(
    sources: Sources,
) -> None:
    sources.write("f1", "int f1() { return volume(); }", before="#define LOUD")
    sources.enlist()
    assert begins_with_headers(sources.compile("f0"))
    done = sources.compile("f1")
    assert done.returncode == 0
    assert not begins_with_headers(done)


def test_a_macro_that_headers_only_refuse_is_no_hindrance(sources: Sources) -> None:
    sources.write("f1", "int f1() { return 1; }", before="#define UNKNOWN_TO_THEM")
    (sources.include / "common.h").write_text(COMMON.replace("NO_COMMON", "UNKNOWN_TO_US"))
    sources.enlist()
    assert begins_with_headers(sources.compile("f1"))


@pytest.mark.parametrize("what", ['GCC optimize("O3")', "pack(1)", "GCC visibility push(hidden)"])
def test_a_file_that_sets_options_for_its_headers_reads_them_itself(
    sources: Sources, what: str
) -> None:
    sources.write("f1", "int f1() { return volume(); }", before=f"#pragma {what}")
    sources.enlist()
    assert begins_with_headers(sources.compile("f0"))
    assert not begins_with_headers(sources.compile("f1"))


def test_a_file_with_a_macro_nobody_knew_of_reads_them_itself(sources: Sources) -> None:
    assert begins_with_headers(sources.compile("f0"))
    sources.write("f1", "int f1() { return volume(); }", before="#define LOUD")
    assert not begins_with_headers(sources.compile("f1"))


def test_a_file_that_does_not_read_them_is_not_given_them(sources: Sources) -> None:
    (sources.build / "other.cpp").write_text("int volume; int other() { return volume; }\n")
    done = sources.compile("other")
    assert done.returncode == 0
    assert not begins_with_headers(done)


def test_a_header_that_changed_is_read_again(sources: Sources) -> None:
    assert begins_with_headers(sources.compile("f0"))
    (sources.include / "common.h").write_text(COMMON.replace("return 1", "return 3"))
    done = sources.compile("f0")
    assert done.returncode == 0
    assert not begins_with_headers(done)
    ours = (sources.build / "f0.o").read_bytes()
    sources.plain("f0")
    assert (sources.build / "f0.o").read_bytes() == ours


def test_an_error_is_told_as_the_compiler_tells_it(sources: Sources) -> None:
    sources.write("f0", "int f0() { return nothing; }")
    done, plain = sources.compile("f0"), sources.plain("f0")
    assert done.returncode == plain.returncode == 1
    assert done.stderr == plain.stderr
    assert "nothing" in done.stderr


@pytest.mark.parametrize("another", [False, True])
def test_headers_that_do_not_compile_are_done_without(sources: Sources, *, another: bool) -> None:
    # Fine where it stands, after what the files say first, and nowhere else.
    (sources.include / "common.h").write_text("#pragma once\nusing Given = First;\n")
    if not another:
        (sources.include / "copy.h").write_text("#pragma once\nusing Other = First;\n")
    for number in range(8):
        sources.write(f"f{number}", f"Given f{number}() {{ return {{}}; }}", "struct First {};")
    sources.enlist()
    for name in ("f0", "f1"):
        done = sources.compile(name)
        assert done.returncode == 0, done.stderr
        assert begins_with_headers(done) == another


@pytest.mark.parametrize("ready", [True, False])
def test_who_is_told_to_end_ends_the_compiler(sources: Sources, *, ready: bool) -> None:
    slow = sources.build.parent / "slow"
    slow.mkdir()
    pid = slow / "pid"
    (slow / "g++").write_text(f"#!/bin/sh\necho $$ > '{pid}'\nexec sleep 60\n")
    (slow / "g++").chmod(0o755)
    if ready:
        assert begins_with_headers(sources.compile("f0"))
    command, variables = sources.program("f0")
    variables["PATH"] = f"{slow}:{variables['PATH']}"
    with subprocess.Popen(command, cwd=sources.build, env=variables) as process:
        until = time.monotonic() + 60
        while not (pid.exists() and pid.read_text().strip()):
            assert time.monotonic() < until
            time.sleep(0.02)
        process.send_signal(signal.SIGTERM)
        assert process.wait(timeout=30) == -signal.SIGTERM
    assert not Path(f"/proc/{pid.read_text().strip()}").exists()
    # What was not finished is not there for the next.
    assert begins_with_headers(sources.compile("f1"))


def test_a_signal_that_is_to_be_ignored_is_ignored(sources: Sources) -> None:
    assert begins_with_headers(sources.compile("f0"))
    (sources.build / "f0.o").unlink()
    slow = sources.build.parent / "slow"
    slow.mkdir()
    (slow / "g++").write_text(f"#!/bin/sh\n: > '{slow}/began'\nsleep 1\nexec /usr/bin/g++ \"$@\"\n")
    (slow / "g++").chmod(0o755)
    command, variables = sources.program("f0")
    variables["PATH"] = f"{slow}:{variables['PATH']}"
    held = ["env", "--ignore-signal=HUP", *command]
    with subprocess.Popen(held, cwd=sources.build, env=variables) as process:
        until = time.monotonic() + 60
        while not (slow / "began").exists() and time.monotonic() < until:
            time.sleep(0.02)
        process.send_signal(signal.SIGHUP)
        assert process.wait(timeout=60) == 0
    assert (sources.build / "f0.o").exists()


def test_who_would_wait_for_headers_makes_others(sources: Sources) -> None:
    (sources.include / "more.h").write_text("#pragma once\n" + "// and more\n" * 20_000)
    for number in range(8):
        sources.write(f"g{number}", f"int g{number}() {{ return volume(); }}", "#include <more.h>")
    sources.enlist()
    # Two are chosen, and one of them made, by the first.
    assert begins_with_headers(sources.compile("f0"))
    (made,) = sources.headers.rglob("*.gch")
    ready = made.with_suffix("").with_suffix(".json")
    ready.unlink()
    made.unlink()
    with ready.with_suffix(".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        command, variables = sources.program("f0")
        with subprocess.Popen(
            command, cwd=sources.build, env=variables, stderr=subprocess.PIPE, text=True
        ) as process:
            until = time.monotonic() + 60
            while not (others := list(sources.headers.rglob("[0-9].json"))):
                if time.monotonic() > until:
                    break
                time.sleep(0.02)
            # It is still to wait for its own.
            waits = process.poll() is None
            fcntl.flock(lock, fcntl.LOCK_UN)
            said = process.communicate(timeout=60)[1]
    assert waits
    assert others
    assert others != [ready]
    done = subprocess.CompletedProcess(command, process.returncode, stderr=said)
    assert done.returncode == 0
    assert begins_with_headers(done)
    assert len(list(sources.headers.rglob("*.gch"))) == 2


def large_project(folder: Path, store: Path, cache: CompilerCache | None = None) -> Project:
    """A program whose files are each large enough to be compiled by themselves."""
    project = Project(folder, cache or compiler_cache(store, folder))
    project.headers = folder / "headers"
    for number in range(COUNT):
        project.file(number).write_text(text_of(number) + "/*" + "x" * LARGE + "*/\n")
    project.cores = 2
    with (project.source / "CMakeLists.txt").open("a") as file:
        file.write("target_include_directories(program PRIVATE .)\n")
    # Two small ones, or there would be nothing for batches to do.
    for name in ("small", "smaller"):
        (project.source / f"{name}.cpp").write_text(f"int {name} = 0;\n")
    project.configure()
    return project


def test_a_build_uses_them_and_a_build_elsewhere_finds_everything_in_the_cache(
    tmp_path: Path,
) -> None:
    one = large_project(tmp_path / "one", tmp_path / "store")
    one.make()
    assert one.result() == EXPECTED
    assert len(list((tmp_path / "one/headers").rglob("*.gch"))) == 1
    compiled = one.cache.used()[1]
    assert compiled > COUNT
    two = large_project(tmp_path / "two", tmp_path / "store")
    two.make()
    assert two.result() == EXPECTED
    assert two.cache.used() == (compiled, 0)
    assert not (tmp_path / "two/headers").exists()


def test_without_ccache_the_same_is_compiled(tmp_path: Path) -> None:
    one = large_project(tmp_path / "one", tmp_path / "store")
    other = large_project(tmp_path / "other", tmp_path, CompilerCache(without_a_cache()))
    for project in (one, other):
        project.make()
    assert len(list((tmp_path / "other/headers").rglob("*.gch"))) == 1
    assert (one.build / "program").read_bytes() == (other.build / "program").read_bytes()


def test_a_header_that_is_edited_is_compiled_again_by_all_who_read_it(tmp_path: Path) -> None:
    project = large_project(tmp_path / "one", tmp_path / "store")
    project.make()
    edited = (project.source / "common.h").read_text().replace("return 0", "return 1")
    (project.source / "common.h").write_text(edited)
    project.make()
    assert project.result() == str(int(EXPECTED) + COUNT)


def test_a_build_that_was_stopped_goes_on_with_them_and_one_that_is_done_does_without(
    tmp_path: Path,
) -> None:
    project = large_project(tmp_path / "one", tmp_path / "store")
    listed = project.build / "torchsmith-batches/headers.json"
    project.make()
    begun = listed.read_text()
    assert json.loads(begun)
    (project.build / "CMakeFiles/program.dir/f00.cpp.o").unlink()
    project.make()
    assert listed.read_text() == begun
    project.make()
    assert json.loads(listed.read_text()) == {}


def test_without_acceleration_nothing_is_compiled_beforehand(tmp_path: Path) -> None:
    project = large_project(tmp_path / "one", tmp_path / "store")
    project.make(accel="off")
    assert project.result() == EXPECTED
    assert not (tmp_path / "one/headers").exists()

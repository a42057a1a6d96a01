"""`torchsmith guard` with real build tools and compilers."""

from __future__ import annotations

import json
import os
import shlex
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from benchmarks.governor_memory import GIB, MIB, Confinement, confined, source_of
from elftools.elf.elffile import ELFFile

from torchsmith.engine.build import build
from torchsmith.engine.compile_log import CompileRecord, read_compiles
from torchsmith.engine.store import Store
from torchsmith.errors import StepFailed
from torchsmith.plan.models import Plan, Step
from torchsmith.toolchain.governor_events import FilesDone
from torchsmith.verify.fatbin import gpu_code

pytestmark = pytest.mark.integration

MODULE = """
#include <Python.h>
static struct PyModuleDef module = {{PyModuleDef_HEAD_INIT, "{name}", 0, -1, 0}};
extern "C" PyObject *PyInit_{name}(void) {{ return PyModule_Create(&module); }}
"""
SETUP = """
from setuptools import Extension, setup
names = {names}
files = lambda name: [name + ".cpp", name + "_module.cpp"]
setup(name="several", version="1", ext_modules=[Extension(name, files(name)) for name in names])
"""
TORCH_SETUP = """
from setuptools import Extension, setup
from torch.utils.cpp_extension import BuildExtension
names = {names}
files = lambda name: [name + ".cpp", name + "_module.cpp"]
build = BuildExtension.with_options(use_ninja={ninja})
setup(name="several", version="1", cmdclass={{"build_ext": build}},
      ext_modules=[Extension(name, files(name), language="c++") for name in names])
"""
FLAGS = "-fconstexpr-loop-limit=100000000 -fconstexpr-ops-limit=1000000000"


class Guard:
    """Runs commands under guard, with a store of its own."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.store = folder / "store"

    def words(self, *command: str, options: tuple[str, ...] = ()) -> list[str]:
        own = [sys.executable, "-m", "torchsmith", "guard", "--store", str(self.store), *options]
        return [*own, "--", *command]

    def __call__(
        self, *command: str, options: tuple[str, ...] = (), **env: str
    ) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            self.words(*command, options=options),
            cwd=self.folder,
            env={**os.environ, **env},
            capture_output=True,
            text=True,
            check=False,
        )

    @property
    def compiles(self) -> list[CompileRecord]:
        """What the last run compiled and linked."""
        last = max(path.name for path in (self.store / "logs").iterdir())
        return read_compiles(self.store / "logs", last)

    @property
    def compiled(self) -> list[str]:
        return sorted(Path(item.file).name for item in self.compiles if item.output.endswith(".o"))


@pytest.fixture
def guard(tmp_path: Path, build_tools: None) -> Guard:
    return Guard(tmp_path)


def heavy_modules(folder: Path, count: int, mib: int) -> list[str]:
    names = [f"heavy{number}" for number in range(count)]
    for name in names:
        (folder / f"{name}.cpp").write_text(source_of(name, mib, 60_000))
        (folder / f"{name}_module.cpp").write_text(MODULE.format(name=name))
    return names


def within(place: Confinement, guard: Guard, *command: str, guarded: bool) -> tuple[int, str]:
    options: tuple[str, ...] = ("--jobs", "4")
    if place.group is None:
        options += ("--memory", f"{place.limit * 95 // 100 // MIB}M")
    words = guard.words(*command, options=options) if guarded else list(command)
    env = {**os.environ, "CXXFLAGS": FLAGS, "CFLAGS": FLAGS, "MAX_JOBS": "4"}
    done = place.run(words, cwd=guard.folder, env=env)
    return done.returncode, done.stdout


def by_cmake(folder: Path, names: list[str], python: str) -> list[str]:
    files = " ".join(f"{name}.cpp" for name in names)
    (folder / "CMakeLists.txt").write_text(
        "cmake_minimum_required(VERSION 3.18)\nproject(heavy CXX)\n"
        f'set(CMAKE_CXX_FLAGS "{FLAGS}")\nadd_library(everything STATIC {files})\n'
    )
    # Configured before: the compiler stands in build.ninja by its path, with no launcher.
    subprocess.run(["cmake", "-G", "Ninja", "-B", "build", "."], cwd=folder, check=True)
    return ["cmake", "--build", "build", "-j4", "--clean-first"]


def by_setuptools(folder: Path, names: list[str], python: str) -> list[str]:
    (folder / "setup.py").write_text(SETUP.format(names=names))
    return [python, "setup.py", "build_ext", "--force", "-j4"]


def by_torch(folder: Path, names: list[str], python: str) -> list[str]:
    (folder / "setup.py").write_text(TORCH_SETUP.format(names=names[:1], ninja=True))
    text = (folder / "setup.py").read_text()
    more = [f"{name}.cpp" for name in names[1:]]
    (folder / "setup.py").write_text(text.replace("files(name), lang", f"files(name)+{more}, lang"))
    return [python, "setup.py", "build_ext", "--force"]


def by_torch_without_ninja(folder: Path, names: list[str], python: str) -> list[str]:
    (folder / "setup.py").write_text(TORCH_SETUP.format(names=names, ninja=False))
    return [python, "setup.py", "build_ext", "--force", "-j4"]


Way = Callable[[Path, list[str], str], list[str]]


def ends_well_only_with_guard(guard: Guard, way: Way, python: str, limit: int, mib: int) -> None:
    names = heavy_modules(guard.folder, 4, mib)
    command = way(guard.folder, names, python)
    with confined(limit) as place:
        status, said = within(place, guard, *command, guarded=False)
        assert status != 0, said
        assert "Killed" in said or "signal 9" in said, said
        # What was not killed would not be compiled again.
        for made in guard.folder.rglob("*.o"):
            made.unlink()
        status, said = within(place, guard, *command, guarded=True)
    assert status == 0, said
    assert {f"{name}.cpp" for name in names} <= set(guard.compiled)
    assert "past the guard" not in said


@pytest.mark.alone
@pytest.mark.parametrize("way", [by_cmake, by_setuptools])
def test_a_build_that_memory_kills_ends_well_with_guard(guard: Guard, way: Way) -> None:
    # Any two compilers at once are too many: on a busy machine three may never be at their most.
    ends_well_only_with_guard(guard, way, sys.executable, GIB, 150)


@pytest.mark.alone
@pytest.mark.parametrize(
    "way",
    [
        by_torch,
        # setuptools compiles these as it does those above: two minutes, alone on the machine.
        pytest.param(by_torch_without_ninja, marks=pytest.mark.long),
    ],
)
def test_a_torch_extension_that_memory_kills_ends_well_with_guard(
    guard: Guard, published_torch: Path, monkeypatch: pytest.MonkeyPatch, way: Way
) -> None:
    monkeypatch.setenv("PATH", f"{published_torch}/bin{os.pathsep}{os.environ['PATH']}")
    python = str(published_torch / "bin/python")
    ends_well_only_with_guard(guard, way, python, 3 * GIB // 2, 220)


def small_modules(folder: Path, count: int) -> None:
    names = [f"part{number}" for number in range(count)]
    for name in names:
        (folder / f"{name}.cpp").write_text(f'#include "all.h"\nint {name}() {{ return ONE; }}\n')
    (folder / "all.h").write_text("#include <map>\n#define ONE 1\n")
    (folder / "whole.cpp").write_text(MODULE.format(name="whole"))
    files = ["whole.cpp", *(f"{name}.cpp" for name in names)]
    (folder / "setup.py").write_text(
        "from setuptools import Extension, setup\n"
        f'setup(name="whole", version="1", ext_modules=[Extension("whole", {files})])\n'
    )


BUILD = (sys.executable, "setup.py", "build_ext", "--force")


def test_setuptools_compiles_files_side_by_side(guard: Guard, tmp_path: Path) -> None:
    small_modules(tmp_path, 4)
    (tmp_path / "own").mkdir()
    (tmp_path / "own/sitecustomize.py").write_text("print('the own one ran')\n")
    # Another PYTHONPATH, as pip sets one for what it builds by itself.
    pythonpath = f"PYTHONPATH={tmp_path}/own{os.pathsep}{os.environ.get('PYTHONPATH', '')}"
    done = guard("env", pythonpath, *BUILD, options=("--jobs", "3"), CCACHE_DISABLE="1")
    assert done.returncode == 0, done.stdout + done.stderr
    assert "the own one ran" in done.stdout
    assert "5/5 compiles" in done.stderr
    assert guard.compiled == [f"part{number}.cpp" for number in range(4)] + ["whole.cpp"]
    times = [(item.began, item.ended) for item in guard.compiles if item.output.endswith(".o")]
    most = max(sum(began <= at < ended for began, ended in times) for at, _ in times)
    assert 1 < most <= 3


def test_the_files_of_all_extensions_are_compiled_side_by_side(
    guard: Guard, tmp_path: Path
) -> None:
    names = ["one", "two", "three"]
    for name in names:
        (tmp_path / f"{name}.cpp").write_text("#include <map>\n")
        (tmp_path / f"{name}_module.cpp").write_text(MODULE.format(name=name))
    (tmp_path / "setup.py").write_text(SETUP.format(names=names))
    done = guard(*BUILD, options=("--jobs", "3"), CCACHE_DISABLE="1")
    assert done.returncode == 0, done.stdout + done.stderr
    assert "6/6 compiles" in done.stderr
    # Each once, and nothing is linked before all that goes into anything is there.
    files = [f"{name}{end}.cpp" for name in names for end in ("", "_module")]
    assert guard.compiled == sorted(files)
    times = [(item.began, item.ended) for item in guard.compiles if item.output.endswith(".o")]
    assert max(sum(began <= at < ended for began, ended in times) for at, _ in times) == 3
    linked = [item.began for item in guard.compiles if not item.output.endswith(".o")]
    assert len(linked) == 3
    assert min(linked) >= max(ended for _, ended in times)
    (tmp_path / "two.cpp").write_text("this is no C++\n")
    failed = guard(*BUILD, options=("--jobs", "3"), CCACHE_DISABLE="1")
    assert failed.returncode == 1
    assert "two.cpp:1" in failed.stderr


def test_one_file_of_two_extensions_is_compiled_for_each(guard: Guard, tmp_path: Path) -> None:
    (tmp_path / "shared.cpp").write_text(
        '#include <Python.h>\nextern "C" PyObject *number() { return PyLong_FromLong(NUMBER); }\n'
    )
    for name in ("one", "two"):
        text = MODULE.format(name=name).replace(
            "PyModule_Create(&module)", "PyErr_SetObject(PyExc_KeyError, number()), nullptr"
        )
        (tmp_path / f"{name}.cpp").write_text(f'extern "C" struct _object *number();{text}')
    (tmp_path / "setup.py").write_text(
        "from setuptools import Extension, setup\n"
        "def extension(number, name):\n"
        '  files, macros = [f"{name}.cpp", "shared.cpp"], [("NUMBER", str(number))]\n'
        "  return Extension(name, files, define_macros=macros)\n"
        'modules = [extension(1, "one"), extension(2, "two")]\n'
        'setup(name="both", version="1", ext_modules=modules)\n'
    )
    done = guard(*BUILD, "--inplace", CCACHE_DISABLE="1")
    assert done.returncode == 0, done.stdout + done.stderr
    assert guard.compiled == ["one.cpp", "shared.cpp", "shared.cpp", "two.cpp"]
    for number, name in enumerate(["one", "two"], 1):
        words = [sys.executable, "-c", f"import {name}"]
        told = subprocess.run(words, cwd=tmp_path, capture_output=True, text=True, check=False)
        assert told.stderr.splitlines()[-1] == f"KeyError: {number}"
    # What was laid aside is where it belongs.
    assert not list(guard.store.rglob("*.o"))


@pytest.mark.parametrize("installer", [("pip",), ("uv", "pip")], ids=["pip", "uv"])
def test_a_build_in_an_environment_of_its_own_is_governed(
    guard: Guard, tmp_path: Path, installer: tuple[str, ...]
) -> None:
    small_modules(tmp_path, 2)
    words = (sys.executable, "-m", *installer, "install", "--target", "there", ".")
    done = guard(*words, CCACHE_DISABLE="1")
    assert done.returncode == 0, done.stdout + done.stderr
    assert guard.compiled == ["part0.cpp", "part1.cpp", "whole.cpp"]
    assert "past the guard" not in done.stderr


def test_setuptools_goes_on_without_compiling_what_was_done(guard: Guard, tmp_path: Path) -> None:
    small_modules(tmp_path, 3)
    part = tmp_path / "part1.cpp"
    good = part.read_text()
    part.write_text("this is no C++\n")
    before = guard(*BUILD, options=("--jobs", "1"), CCACHE_DISABLE="1")
    assert before.returncode == 1
    assert "part1.cpp:1" in before.stderr
    assert guard.compiled == ["part0.cpp", "part1.cpp"]
    part.write_text(good)
    again = guard(*BUILD, options=("--jobs", "1"), CCACHE_DISABLE="1")
    assert again.returncode == 0, again.stdout + again.stderr
    assert guard.compiled == ["part1.cpp", "part2.cpp", "whole.cpp"]
    (tmp_path / "all.h").write_text("#include <map>\n#define ONE 2\n")
    assert guard(*BUILD, CCACHE_DISABLE="1").returncode == 0
    assert guard.compiled == [f"part{number}.cpp" for number in range(3)]
    assert guard(*BUILD, CCACHE_DISABLE="1", CPATH=str(tmp_path)).returncode == 0
    assert len(guard.compiled) == 4
    # Nothing of ours lies among the project's files, and they are as they are without us.
    found = {path.name for path in tmp_path.rglob("build/**/*") if path.is_file()}
    assert {Path(name).suffix for name in found} == {".o", ".so"}
    guarded = next(tmp_path.rglob("part0.o")).read_bytes()
    shutil.rmtree(tmp_path / "build")
    subprocess.run(BUILD, cwd=tmp_path, check=True, capture_output=True)
    assert next(tmp_path.rglob("part0.o")).read_bytes() == guarded


def test_a_build_governs_setuptools_and_goes_on_after_a_stop(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CCACHE_DISABLE", "1")
    modules = tmp_path / "modules"
    modules.mkdir()
    small_modules(modules, 3)
    good = (modules / "part1.cpp").read_text()
    (modules / "part1.cpp").write_text("this is no C++\n")
    step = Step(
        id="compile-whole",
        kind="compile",
        title="Compile whole",
        project="whole",
        # A step writes to its work folder alone; what did not change keeps its time there.
        commands=(
            f"cp --update --preserve {modules}/*.* .",
            shlex.join([*BUILD, "--build-lib", "whole"]),
        ),
        outputs=("nothing",),
        key="0" * 64,
    )
    plan = Plan("whole", (), (step,))
    store = Store(tmp_path / "store")
    told: list[FilesDone] = []

    def run() -> list[str]:
        with pytest.raises(StepFailed):
            build(
                plan,
                store,
                project=tmp_path,
                jobs=1,
                on_memory=lambda event: (
                    told.append(event) if isinstance(event, FilesDone) else None
                ),
            )
        last = max(path.name for path in (store.root / "logs").iterdir())
        compiles = read_compiles(store.root / "logs", last)
        return sorted(Path(item.file).name for item in compiles if item.output.endswith(".o"))

    first = run()
    assert first == ["part0.cpp", "part1.cpp"]
    (modules / "part1.cpp").write_text(good)
    told.clear()
    # It makes no such output, and so fails only when all is compiled.
    assert run() == ["part1.cpp", "part2.cpp", "whole.cpp"]
    assert [(event.done, event.total) for event in told] == [(n, 4) for n in range(1, 5)]


@pytest.mark.parametrize("fails", ["whole.cpp", "nothing"])
def test_setup_scripts_that_try_the_compiler_get_true_answers(
    guard: Guard, tmp_path: Path, fails: str
) -> None:
    (tmp_path / "whole.cpp").write_text("int f() { return 1; }\n")
    (tmp_path / "setup.py").write_text(
        "from setuptools._distutils.ccompiler import new_compiler\n"
        "from setuptools._distutils.errors import CompileError\n"
        "try:\n"
        f"    flags = ['-fno-such-flag'] if {fails!r} == 'whole.cpp' else []\n"
        "    new_compiler().compile(['whole.cpp'], extra_postargs=flags)\n"
        "    print('it knows')\n"
        "except CompileError:\n"
        "    print('it does not know')\n"
    )
    done = guard(sys.executable, "setup.py")
    expected = "it does not know" if fails == "whole.cpp" else "it knows"
    assert expected in done.stdout.splitlines(), done.stdout + done.stderr


STATIC = """
#include <unistd.h>
int main(int argc, char **argv) { return execv(argv[1], argv + 1); }
"""


def test_a_compiler_is_governed_however_it_is_started(guard: Guard, tmp_path: Path) -> None:
    gcc = shutil.which("gcc")
    assert gcc
    for name in ("by_path", "by_make", "by_shell", "by_static", "by_cache", "by_link"):
        (tmp_path / f"{name}.c").write_text("int main(void) { return 0; }\n")
    (tmp_path / "static.c").write_text(STATIC)
    subprocess.run([gcc, "-static", "-o", "static", "static.c"], cwd=tmp_path, check=True)
    (tmp_path / "Makefile").write_text("by_make.o:\n\t$(CC) -c by_make.c -o $@\n")
    (tmp_path / "cc").symlink_to(shutil.which("ccache") or gcc)
    script = (
        f"set -e\n{gcc} -c by_path.c -o by_path.o\nmake by_make.o\n"
        "sh -c 'cc -c by_shell.c -o by_shell.o'\n"
        f"./static {gcc} -c by_static.c -o by_static.o\n"
        "PATH=$PWD:$PATH cc -c by_cache.c -o by_cache.o\n"
        "gcc --version; gcc -E by_path.c\ngcc by_link.c -o linked && ./linked\n"
    )
    done = guard("sh", "-c", script)
    assert done.returncode == 0, done.stdout + done.stderr
    made = sorted(Path(item.output).name for item in guard.compiles)
    objects = ("by_cache.o", "by_make.o", "by_path.o", "by_shell.o", "by_static.o")
    assert made == [*objects, "linked"]
    assert "past the guard" not in done.stderr


def test_nvcc_is_governed_and_its_code_is_whole(guard: Guard, tmp_path: Path, nvcc: Path) -> None:
    for name in ("a", "b"):
        (tmp_path / f"{name}.cu").write_text(f"__global__ void {name}(float *x) {{ *x *= 2; }}\n")
    codes = " ".join(f"-gencode arch=compute_{n},code=sm_{n}" for n in (80, 90))
    flags = f"-ccbin g++ -Xcompiler -fPIC -cudart none {codes}"
    (tmp_path / "Makefile").write_text(f"all: a.o b.o\n%.o: %.cu\n\t{nvcc} {flags} -c $< -o $@\n")
    done = guard("make", "-j2", CCACHE_DISABLE="1")
    assert done.returncode == 0, done.stdout + done.stderr
    assert guard.compiled == ["a.cu", "b.cu"]
    assert "past the guard" not in done.stderr
    for name in ("a", "b"):
        with (tmp_path / f"{name}.o").open("rb") as stream:
            assert gpu_code(ELFFile(stream)) == ("sm_80", "sm_90")


def test_make_does_not_become_parallel_by_itself(guard: Guard, tmp_path: Path) -> None:
    (tmp_path / "Makefile").write_text(
        "all: a b\na:\n\tsleep 0.5; echo made > first\nb:\n\ttest -e first\n"
    )
    done = guard("make")
    assert done.returncode == 0, done.stdout + done.stderr


def test_a_build_with_a_job_server_of_its_own_is_governed(guard: Guard, tmp_path: Path) -> None:
    names = ("a", "b", "c")
    for name in names:
        (tmp_path / f"{name}.c").write_text("int x;\n")
    (tmp_path / "Makefile").write_text(
        "all: inner\ninner:\n\t+$(MAKE) a.o b.o c.o\n%.o: %.c\n\tgcc -c $< -o $@\n"
    )
    done = guard("make", "-j3")
    assert done.returncode == 0, done.stdout + done.stderr
    assert sorted(Path(item.output).name for item in guard.compiles) == ["a.o", "b.o", "c.o"]
    assert "past the guard" not in done.stderr


def test_what_ignores_the_guard_is_told(guard: Guard, tmp_path: Path) -> None:
    (tmp_path / "a.cpp").write_text(source_of("a", 1, 3_000_000))
    command = ("env", "-i", f"PATH={os.environ['PATH']}", "g++", "-c", "a.cpp", *FLAGS.split())
    done = guard(*command)
    assert done.returncode == 0, done.stderr
    assert "1 compile was started past the guard" in done.stderr
    assert not guard.compiles


def test_the_exit_code_and_the_diagnosis_are_passed_on(guard: Guard, tmp_path: Path) -> None:
    (tmp_path / "a.c").write_text("#include <no_such_header.h>\n")
    done = guard("sh", "-c", "gcc -c a.c || exit 17")
    assert done.returncode == 17
    assert "no_such_header.h" in done.stderr
    assert guard("sh", "-c", "kill -11 $$").returncode == 128 + 11
    missing = guard("no-such-program")
    assert missing.returncode == 127
    assert "no-such-program" in missing.stderr
    log = [sys.executable, "-m", "torchsmith", "log", "--store", str(guard.store), "--json"]
    runs = json.loads(subprocess.check_output(log))["runs"]
    assert [run["status"] for run in runs] == ["failed", "failed"]


def test_options_behind_the_command_are_its_own(guard: Guard) -> None:
    done = guard("echo", "--debug", "--json", "--jobs", "0")
    assert done.stdout == "--debug --json --jobs 0\n"
    streamed = guard("echo", "said", options=("--json",))
    events = [json.loads(line) for line in streamed.stdout.splitlines()]
    assert {"event": "step-line", "text": "said"}.items() <= {
        key: value
        for event in events
        if event["event"] == "step-line"
        for key, value in event.items()
    }.items()
    assert events[-1]["status"] == "done"


def test_a_dry_run_says_what_would_be_set_and_runs_nothing(guard: Guard, tmp_path: Path) -> None:
    options = ("--dry-run", "--json", "--memory", "2G", "--jobs", "3")
    done = guard("touch", "made", options=options)
    told = json.loads(done.stdout)
    assert (told["memory"], told["jobs"], told["command"]) == (2 * GIB, 3, ["touch", "made"])
    assert "LD_PRELOAD" in told["environment"]
    assert not (tmp_path / "made").exists()


def processes_in(folder: Path) -> set[int]:
    found = set()
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                if (entry / "cwd").resolve().is_relative_to(folder):
                    found.add(int(entry.name))
            except OSError:
                continue
    return found


@pytest.mark.parametrize("kind", [signal.SIGINT, signal.SIGKILL])
def test_nothing_is_left_running(guard: Guard, tmp_path: Path, kind: signal.Signals) -> None:
    for name in ("a", "b", "c"):
        (tmp_path / f"{name}.cpp").write_text(source_of(name, 1, 30_000_000))
    flags = " ".join(["-fconstexpr-loop-limit=2000000000", "-fconstexpr-ops-limit=20000000000"])
    # One that the governor knows, and one that it does not.
    (tmp_path / "build.ninja").write_text(
        f"rule cc\n  command = g++ {flags} -c $in -o $out\n"
        f"rule past\n  command = env -i PATH=$$PATH g++ {flags} -c $in -o $out\n"
        "build a.o: cc a.cpp\nbuild b.o: past b.cpp\nbuild c.o: past c.cpp\n"
    )
    process = subprocess.Popen(
        guard.words("ninja", "-j3"), cwd=tmp_path, stdout=subprocess.PIPE, stderr=subprocess.STDOUT
    )
    until = time.monotonic() + 60
    while len([pid for pid in processes_in(tmp_path) if _name(pid) == "cc1plus"]) < 3:
        assert time.monotonic() < until
        time.sleep(0.1)
    process.send_signal(kind)
    process.wait(60)
    assert process.stdout is not None
    process.stdout.close()
    until = time.monotonic() + 30
    while processes_in(tmp_path):
        assert time.monotonic() < until, [_name(pid) for pid in processes_in(tmp_path)]
        time.sleep(0.1)
    assert process.returncode == (130 if kind == signal.SIGINT else -9)
    assert not list(tmp_path.glob("*.o"))


def _name(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/comm").read_text().strip()
    except OSError:
        return ""

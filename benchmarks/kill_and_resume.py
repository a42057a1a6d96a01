"""Kill a build at five random moments, go on each time, and compare with one left in peace.

    python benchmarks/kill_and_resume.py --seed 7

Builds a real C++ extension of eight files against a published torch through `torchsmith
build`: once undisturbed; then again from nothing, where torchsmith and everything it started
get SIGKILL five times, each at a random moment of the compilation. Held against each other are
the compiles that were begun and the bytes of the two wheels: what was finished when the build
was killed must not be compiled again, and the wheel must be the same.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from torchsmith.engine.store import Store
from torchsmith.toolchain.processes import process_tree

FILES = 8
JOBS = 2
# Late enough to have done something, early enough that the compilation is not over.
LATEST = FILES - JOBS - 1
COMPILE = "compile-small-small"
RECIPE = """\
name = "small"
torch = {{ release = "{torch}", {use} }}
python = "host"

[[companions.extension]]
name = "small"
folder = "small"
env = {{ CXX = "{compiler}" }}
"""
SETUP = """\
from glob import glob

from setuptools import setup
from torch.utils.cpp_extension import BuildExtension, CppExtension

setup(
    name="small",
    version="1.0",
    packages=["small"],
    ext_modules=[CppExtension("small._C", sorted(glob("part_*.cpp")))],
    cmdclass={"build_ext": BuildExtension},
)
"""
PART = """\
#include <ATen/core/Tensor.h>
at::Tensor part_{number}(const at::Tensor& x) {{ return x.add({number}).relu().mul(2); }}
"""
# Without pybind11, whose headers take as long as five of the other files.
MODULE = """\
#include <Python.h>
#include <ATen/core/Tensor.h>
{declared}
at::Tensor (*parts[])(const at::Tensor&) = {{ {defined} }};
static PyModuleDef definition = {{PyModuleDef_HEAD_INIT, "_C", "", -1, nullptr}};
PyMODINIT_FUNC PyInit__C() {{ return PyModule_Create(&definition); }}
"""
# Notes each compile as it begins, then becomes the compiler.
COMPILER = """\
#!/bin/sh
compiles=no
for word in "$@"; do
  case "$word" in
    -c) compiles=yes ;;
    *.cpp) source="${word##*/}" ;;
  esac
done
if [ "$compiles" = yes ]; then echo "$source" >> "@BEGUN@"; fi
exec g++ "$@"
"""


class BenchmarkError(Exception):
    """What was to be shown is not so."""


@dataclass
class Bench:
    """A project, the store and the folder both builds run in."""

    folder: Path
    torch: str
    environment: Path | None
    say: Callable[[str], None]
    flags: list[str] = field(default_factory=list)

    @property
    def begun_file(self) -> Path:
        """Where the compiler writes down what it begins."""
        return self.work / ".torchsmith" / "begun"

    @property
    def work(self) -> Path:
        """Where the steps run, in both builds: paths get into what is compiled."""
        return self.folder / "work"

    @property
    def tree(self) -> Path:
        """Where the extension is compiled."""
        return self.work / "build/small/small"

    def write_project(self) -> None:
        """The recipe, the extension's sources and the compiler that keeps count."""
        sources = self.folder / "project/small"
        (sources / "small").mkdir(parents=True)
        compiler = self.folder / "g++"
        compiler.write_text(COMPILER.replace("@BEGUN@", str(self.begun_file)), encoding="utf-8")
        compiler.chmod(0o755)
        use = 'use = "wheel"'
        if self.environment is not None:
            use = f'use = "installed", environment = "{self.environment}"'
        recipe = RECIPE.format(torch=self.torch, use=use, compiler=compiler)
        (self.folder / "project/recipe.toml").write_text(recipe, encoding="utf-8")
        (sources / "setup.py").write_text(SETUP, encoding="utf-8")
        (sources / "small/__init__.py").write_text("", encoding="utf-8")
        numbers = range(1, FILES)
        for number in numbers:
            text = PART.format(number=number)
            (sources / f"part_{number}.cpp").write_text(text, encoding="utf-8")
        declared = "\n".join(f"at::Tensor part_{n}(const at::Tensor& x);" for n in numbers)
        defined = ", ".join(f"part_{n}" for n in numbers)
        module = MODULE.format(declared=declared, defined=defined)
        (sources / "part_0.cpp").write_text(module, encoding="utf-8")
        (self.folder / "tmp").mkdir()

    def command(self, step: str) -> list[str]:
        """The build, up to one step."""
        build = [sys.executable, "-m", "torchsmith", "build", "--json", "--step", step]
        build += ["--jobs", str(JOBS), "--work", str(self.work)]
        return [*build, *self.flags]

    def start(self, step: str, output: Path) -> subprocess.Popen[bytes]:
        """Start a build in a session of its own, its events in a file."""
        environment = {
            **os.environ,
            "TORCHSMITH_STORE": str(self.folder / "store"),
            "TMPDIR": str(self.folder / "tmp"),
            # What the undisturbed build compiled would serve the disturbed one.
            "CCACHE_DISABLE": "1",
        }
        with output.open("wb") as file:
            return subprocess.Popen(
                self.command(step),
                cwd=self.folder / "project",
                env=environment,
                stdin=subprocess.DEVNULL,
                stdout=file,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )

    def finish(self, step: str) -> float:
        """Build to the end; the seconds the step took."""
        output = self.folder / f"{step}.events"
        process = self.start(step, output)
        if process.wait() != 0:
            raise BenchmarkError(f"the build failed:\n{output.read_text(encoding='utf-8')[-3000:]}")
        for event in read_events(output):
            if event.get("event") == "step-finished" and event.get("step") == step:
                return float(str(event["seconds"]))
        return 0.0

    def begun(self) -> list[str]:
        """The files whose compiles were begun, in order."""
        if not self.begun_file.exists():
            return []
        return self.begun_file.read_text(encoding="utf-8").split()

    def finished(self) -> set[str]:
        """The files ninja knows to be compiled."""
        logs = list(self.tree.glob("build/temp.*/.ninja_log"))
        text = logs[0].read_text(encoding="utf-8") if logs else ""
        lines = [line.split("\t") for line in text.splitlines() if not line.startswith("#")]
        return {f"{Path(line[3]).stem}.cpp" for line in lines if len(line) > 3}

    def wheel(self) -> bytes:
        """The bytes of the one wheel that was made."""
        (path,) = (self.work / "dist/small").glob("*.whl")
        return path.read_bytes()

    def forget(self) -> None:
        """Make it as if the extension had never been compiled here."""
        store = Store(self.folder / "store")
        for entry in list(store.entries()):
            if entry.step == COMPILE:
                store.remove(entry.key)
        shutil.rmtree(self.tree)
        shutil.rmtree(self.work / "dist")
        self.begun_file.unlink()


def read_events(output: Path) -> list[dict[str, object]]:
    """The events of a run; a line cut short by its end is left out."""
    lines = output.read_text(encoding="utf-8", errors="replace").splitlines()
    return [json.loads(line) for line in lines if line.startswith("{") and line.endswith("}")]


def kill_all(process: subprocess.Popen[bytes]) -> int:
    """SIGKILL to a build and everything it started, all at once; how many that were."""
    known: set[int] = set()
    # Stopped first: what is killed one by one leaves time to start another.
    while found := {process.pid, *process_tree(process.pid)} - known:
        for pid in found:
            _signal(pid, signal.SIGSTOP)
        known |= found
    for pid in known:
        _signal(pid, signal.SIGKILL)
    process.wait()
    return len(known)


def _signal(pid: int, number: signal.Signals) -> None:
    try:
        os.kill(pid, number)
    except ProcessLookupError:
        return


@dataclass(frozen=True)
class Kill:
    """How many compiles had begun when the build was killed, and which were finished."""

    begun: int
    finished: frozenset[str]


def disturbed(bench: Bench, moments: list[tuple[int, float]]) -> list[Kill]:
    """Build, killed at each moment: so many files finished, then at most so many seconds later."""
    kills: list[Kill] = []
    for number, (count, delay) in enumerate(moments, 1):
        before = len(bench.begun())
        began = time.monotonic()
        process = bench.start(COMPILE, bench.folder / f"kill-{number}.events")
        while len(bench.finished()) < count or len(bench.begun()) == before:
            if process.poll() is not None:
                raise BenchmarkError(f"the build ended before kill {number}")
            time.sleep(0.05)
        end = time.monotonic() + delay
        # Compilers take longer or less long than last time: those of the last files are killed
        # at once, or nothing is left for the next kill.
        while time.monotonic() < end and len(bench.finished()) < FILES - JOBS:
            time.sleep(0.05)
        if process.poll() is not None:
            raise BenchmarkError(f"the build ended before kill {number}")
        killed = kill_all(process)
        done = bench.finished()
        bench.say(
            f"kill {number}: after {time.monotonic() - began:.1f} s, {killed} processes, "
            f"{len(done)} of {FILES} files compiled"
        )
        kills.append(Kill(len(bench.begun()), frozenset(done)))
    bench.finish(COMPILE)
    return kills


def again(begun: list[str], kills: list[Kill]) -> list[str]:
    """Files that were compiled once more although they were finished at a kill."""
    later = (name for kill in kills for name in begun[kill.begun :] if name in kill.finished)
    return sorted(set(later))


def accel_flags() -> list[str]:
    """Files are counted one by one here: batches, where this torchsmith has them, are off."""
    said = subprocess.run(
        [sys.executable, "-m", "torchsmith", "build", "--help"],
        capture_output=True,
        text=True,
        check=True,
        env={**os.environ, "COLUMNS": "200"},
    )
    return ["--no-accel"] if "--no-accel" in said.stdout else []


def run(bench: Bench, seed: int, kills: int) -> None:
    """Do all of it in an empty folder; raises where something is not as it should be."""
    say = bench.say
    chance = random.Random(seed)
    say(f"seed {seed}")
    bench.write_project()
    bench.finish("environment-small")
    seconds = bench.finish(COMPILE)
    first, quiet = bench.wheel(), bench.begun()
    say(f"undisturbed: {seconds:.1f} s, {len(quiet)} compiles")
    bench.forget()
    one = seconds * JOBS / FILES
    counts = sorted(chance.randint(0, LATEST) for _ in range(kills))
    made = disturbed(bench, [(count, chance.uniform(0, one * 0.9)) for count in counts])
    begun, second = bench.begun(), bench.wheel()
    say(f"killed {kills} times: {len(begun)} compiles begun for {FILES} files")
    if twice := again(begun, made):
        raise BenchmarkError(f"finished, and compiled again: {', '.join(twice)}")
    if set(begun) != set(quiet) or len(quiet) != FILES:
        raise BenchmarkError(f"compiled were {sorted(set(begun))}, and undisturbed {quiet}")
    if first != second:
        digests = [hashlib.sha256(content).hexdigest()[:12] for content in (first, second)]
        raise BenchmarkError(f"the wheels differ: {' and '.join(digests)}")
    say(f"the same wheel, byte for byte: sha256 {hashlib.sha256(first).hexdigest()[:12]}")


def main() -> int:
    """Read the arguments, run, and say what came of it."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--seed", type=int, default=random.SystemRandom().randrange(10_000))
    parser.add_argument("--torch", default="2.13.0", help="the published release built against")
    parser.add_argument(
        "--environment", type=Path, help="where that torch is installed; else pip brings it"
    )
    parser.add_argument("--kills", type=int, default=5)
    parser.add_argument("--folder", type=Path, help="an empty folder, which stays")
    given = parser.parse_args()
    folder = (given.folder or Path(tempfile.mkdtemp(prefix="kill-and-resume-"))).absolute()
    folder.mkdir(parents=True, exist_ok=True)
    environment = given.environment.absolute() if given.environment else None
    bench = Bench(
        folder, given.torch, environment, lambda text: print(text, flush=True), accel_flags()
    )
    try:
        run(bench, given.seed, given.kills)
    except BenchmarkError as error:
        print(f"error: {error}\n  {folder} has what was built.", file=sys.stderr)
        return 1
    if given.folder is None:
        shutil.rmtree(folder, ignore_errors=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())

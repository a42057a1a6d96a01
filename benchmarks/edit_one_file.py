"""How long a build takes after one file was touched, after it was edited, and after a second edit.

    python -m benchmarks.edit_one_file BUILD_FOLDER [--file aten/src/ATen/native/Linear.cpp]

BUILD_FOLDER is a finished CMake and Ninja build as `torchsmith build` leaves it in its work folder
(store/work/NAME/build/NAME/torch/build); the file is named relative to the folder above it. It is
built as torchsmith builds, in the batches that are there, without a compiler cache. In the end the
file is as it was, its date included, and so is what is built of it; only the file's batch stays
divided, as after any edit.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import shutil
import subprocess
import sys
import sysconfig
import tempfile
import time
from dataclasses import dataclass, field
from pathlib import Path

from torchsmith.host.limits import read_cores
from torchsmith.toolchain.accel import acceleration
from torchsmith.toolchain.accel.accelerate import FILE, FOLDER, accelerate
from torchsmith.toolchain.accel.lessons import Lessons
from torchsmith.toolchain.governor import Governor
from torchsmith.toolchain.governor_events import Event, Finished

_COMPILED = frozenset([".c", ".cc", ".cpp", ".cu", ".cxx"])
_BATCH = re.compile(rf"{FOLDER}/(\w+)\.json")


class BenchmarkError(Exception):
    """It cannot be measured here, and why."""


@dataclass(frozen=True, slots=True)
class Measured:
    """What a build took, and what it compiled."""

    what: str
    seconds: float
    compiled: tuple[str, ...]


@dataclass
class Bench:
    """A finished build folder."""

    folder: Path
    target: str
    cores: int
    logs: Path
    variables: dict[str, str] = field(default_factory=dict)

    def prepare(self) -> None:
        """Find the ninja and the variables it was built with; refuse if batches would change."""
        if not (self.folder / FILE).is_file():
            raise BenchmarkError(f"{self.folder} was not built in batches")
        kept = self._lessons()
        env = {**os.environ, **acceleration(kept.parent, self.cores)}
        # What they are named by: torch-2.6 is of 2.6, and others are of a project with no version.
        env["PYTORCH_BUILD_VERSION"] = kept.stem.partition("torch-")[2]
        env["CCACHE_DISABLE"] = "1"
        # store/work/NAME/build/VARIANT/torch/build: its environment is build/VARIANT/env.
        places = [self.folder.parents[1] / "env/bin", Path(sysconfig.get_path("scripts"))]
        search = os.pathsep.join([*map(str, places), env["PATH"]])
        ninja = shutil.which("ninja", path=search)
        if ninja is None:
            raise BenchmarkError("there is no ninja")
        env["PATH"] = f"{env['TORCHSMITH_SHIMS']}{os.pathsep}{search}"
        self.variables = env
        made = self.folder / FILE
        before = made.read_text(encoding="utf-8")
        accelerate(self.folder, ninja, Lessons(), cores=self.cores, lessons_file=str(kept))
        if set(_BATCH.findall(made.read_text(encoding="utf-8"))) != set(_BATCH.findall(before)):
            made.write_text(before, encoding="utf-8")
            raise BenchmarkError(
                f"{self.folder} would be built in other batches: with --cores as it was built, or "
                "by the torchsmith that built it, it would not"
            )

    def _lessons(self) -> Path:
        for place in (self.folder / FOLDER).glob("*.json"):
            data = json.loads(place.read_text(encoding="utf-8"))
            # Beside the batches lies what they were formed by.
            if "members" in data and (lessons := data["lessons"]):
                return Path(lessons)
        raise BenchmarkError(f"{self.folder / FOLDER} holds no batch")

    def build(self, what: str) -> Measured:
        """Build, and note what it took."""
        compiled: list[str] = []

        def told(event: Event) -> None:
            if isinstance(event, Finished) and Path(event.file).suffix in _COMPILED:
                compiled.append(event.file)

        log = self.logs / f"{what.replace(' ', '-')}.log"
        with (
            Governor(
                cores=self.cores, roots=[self.folder.parent], listener=told, late_collection=True
            ) as governor,
            log.open("wb") as file,
        ):
            # Not its launchers: CMake has them, and would not be asked again.
            told_of = governor.environment()
            given = {name: told_of[name] for name in ("TORCHSMITH_GOVERNOR", "MAKEFLAGS")}
            began = time.monotonic()
            done = subprocess.run(
                ["ninja", self.target],
                cwd=self.folder,
                env={**self.variables, **given},
                stdout=file,
                stderr=subprocess.STDOUT,
            )
            seconds = time.monotonic() - began
        if done.returncode != 0:
            raise BenchmarkError(f"the build failed: see {log}")
        return Measured(what, seconds, tuple(compiled))


def edited(original: bytes, number: int) -> bytes:
    """A file with one line more, which changes its code and nothing it does."""
    line = f"namespace {{ [[maybe_unused]] constexpr int torchsmith_edit = {number}; }}\n"
    return original.rstrip(b"\n") + b"\n" + line.encode()


def run(bench: Bench, file: Path) -> None:
    """Do all of it; the file is put back whatever happens."""
    original, date = file.read_bytes(), file.stat()
    bench.prepare()
    show(bench.build("brought up to date first"))
    try:
        show(bench.build("nothing changed"))
        file.touch()
        show(bench.build("touched"))
        for number, what in enumerate(("edited", "edited again", "edited a third time"), 1):
            file.write_bytes(edited(original, number))
            show(bench.build(what))
    finally:
        # Of now: with its old date nobody would see that the object is of the edited file.
        file.write_bytes(original)
    show(bench.build("put back"))
    os.utime(file, ns=(date.st_atime_ns, date.st_mtime_ns))


def show(measured: Measured) -> None:
    """One line of the table."""
    names = ", ".join(Path(name).name for name in measured.compiled[:4])
    more = ", …" if len(measured.compiled) > 4 else ""
    count = len(measured.compiled)
    print(
        f"{measured.what:26}{measured.seconds:9.1f} s{count:6} compiled  {names}{more}", flush=True
    )


def main() -> int:
    """Read the arguments, run, and say what came of it."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("folder", type=Path)
    parser.add_argument("--file", default="aten/src/ATen/native/Linear.cpp")
    parser.add_argument("--target", default="all", help="`install` is what a wheel is made of")
    parser.add_argument("--cores", type=int, default=read_cores())
    given = parser.parse_args()
    folder = given.folder.resolve()
    logs = Path(tempfile.mkdtemp(prefix="edit-one-file-"))
    try:
        file = folder.parent / given.file
        if not file.is_file():
            raise BenchmarkError(f"{file} is not there")
        run(Bench(folder, given.target, given.cores, logs), file)
    except BenchmarkError as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    shutil.rmtree(logs)
    return 0


if __name__ == "__main__":
    sys.exit(main())

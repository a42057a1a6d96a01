"""CPU-seconds of compiling in batches, as a ratio to compiling file by file.

    python -m benchmarks.batches BUILD_FOLDER [--files 150] [--seed 1] [--jobs 1] [--cuda]

BUILD_FOLDER is a configured CMake and Ninja build, PyTorch's say, as `torchsmith build` leaves it
in its work folder. Batches and files outside any batch are drawn in the proportion in which the
build has them, and each is compiled both ways, one after the other, without a compiler cache;
with --jobs several at once, stock's and ours mixed, so that both have the same neighbours. Ours
begin with headers that are compiled beforehand: what that takes is counted in the proportion of
the files drawn. As in a build, ours are compiled on huge pages, and gcc collects garbage late.
Nothing in the folder is changed but what its code generators write.

With --cuda only what nvcc compiles is drawn, and the kernels that the objects hold are compared:
the entry points that they register with CUDA have to be the same both ways.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import re
import resource
import shlex
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import Executor, Future, ProcessPoolExecutor, ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

from elftools.elf.elffile import ELFFile

from torchsmith.host.limits import read_cores
from torchsmith.toolchain.accel import acceleration
from torchsmith.toolchain.accel.accelerate import FOLDER, accelerate
from torchsmith.toolchain.accel.files import DEPS, IN, OUT, Batch, Member
from torchsmith.toolchain.accel.gcc_command import Compile, find_compile
from torchsmith.toolchain.accel.lessons import shipped_lessons
from torchsmith.toolchain.accel.ninja_file import Statement, plain, read_statements
from torchsmith.toolchain.accel.precompiled import place_of, prepare_all
from torchsmith.toolchain.accel.with_headers import LIST
from torchsmith.toolchain.build_paths import LATE
from torchsmith.toolchain.cache import ON_A_MISS
from torchsmith.toolchain.preload import huge_pages


@dataclass(frozen=True)
class Made:
    """CPU-seconds of a compile, and the kernels that its objects register with CUDA."""

    seconds: float
    kernels: frozenset[str]


@dataclass(frozen=True)
class Took:
    """CPU-seconds of the same files, stock's way and ours; how many kernels both hold."""

    files: int
    stock: float
    ours: float
    kernels: int

    def __str__(self) -> str:
        noun = "file: " if self.files == 1 else "files:"
        return f"{self.files:3} {noun} {self.stock:7.1f} -> {self.ours:6.1f} CPU-s"


def cpu_seconds(
    command: Sequence[str], folder: Path, headers: Mapping[str, str] | None = None
) -> float:
    """What a command and everything it starts takes."""
    environment = {**os.environ, **(headers or {})}
    process = subprocess.Popen(command, cwd=folder, stderr=subprocess.DEVNULL, env=environment)
    _, status, used = os.wait4(process.pid, 0)
    if status:
        sys.exit(f"error: a compile failed: {shlex.join(command)}")
    return used.ru_utime + used.ru_stime


# A name that other files do not see has the file in it, and its own length before it.
_UNNAMED = re.compile(r"(\d+)_(?:GLOBAL__N__|INTERNAL_)")


def kernels(folder: Path) -> frozenset[str]:
    """The kernels that a folder's objects register with CUDA, by their mangled names."""
    found: set[str] = set()
    for path in folder.glob("*.o"):
        with path.open("rb") as file:
            for section in ELFFile(file).iter_sections():
                if section.name.startswith(".rodata"):
                    found.update(
                        re.findall(r"(?<![!-~])_Z[\w$.]+", section.data().decode("latin-1"))
                    )
    return frozenset(map(_without_file, found))


def _without_file(name: str) -> str:
    while unnamed := _UNNAMED.search(name):
        end = unnamed.end(1) + int(unnamed[1])
        name = f"{name[: unnamed.start()]}(unnamed){name[end:]}"
    return name


def is_cuda(words: Sequence[str]) -> bool:
    """Whether a command is nvcc's."""
    return any(Path(word).name == "nvcc" for word in words)


def together(batch: Batch, folder: Path, headers: Mapping[str, str]) -> Made:
    """Compile a batch as a build does."""
    late = () if is_cuda(batch.command) else LATE
    with tempfile.TemporaryDirectory() as scratch:
        members = tuple(
            Member(member.name, member.path, f"{scratch}/{number}.o")
            for number, member in enumerate(batch.members)
        )
        place = Path(scratch) / "batch.json"
        place.write_text(Batch((*batch.command, *late), members, once=batch.once).text())
        program = "torchsmith.toolchain.accel.compile_batch"
        words = [sys.executable, "-P", "-m", program, str(place)]
        seconds = cpu_seconds(words, folder, headers)
        return Made(seconds, kernels(Path(scratch)) if is_cuda(batch.command) else frozenset())


def apart(
    command: Sequence[str],
    changed: Mapping[str, str],
    folder: Path,
    headers: Mapping[str, str] | None = None,
) -> Made:
    """Compile a file by itself, its object elsewhere."""
    with tempfile.TemporaryDirectory() as scratch:
        values = {name: value.format(scratch=scratch) for name, value in changed.items()}
        seconds = cpu_seconds([values.get(word, word) for word in command], folder, headers)
        return Made(seconds, kernels(Path(scratch)) if is_cuda(command) else frozenset())


def ready_headers(commands: Iterable[str], folder: Path, place: Path, jobs: int) -> float:
    """Have every set of headers compiled that a build has use for; CPU-seconds it took."""
    listed = json.loads((folder / LIST).read_text())
    compiles: dict[str, Compile] = {}
    os.chdir(folder)
    for command in commands:
        found = find_compile(shlex.split(command))
        if found is not None and found.kind in listed:
            compiles.setdefault(found.kind, found)
    before = _used()
    with ProcessPoolExecutor(jobs) as pool:
        places = [place_of(place, kind) for kind in compiles]
        units = [listed[kind] for kind in compiles]
        list(pool.map(prepare_all, places, compiles.values(), units))
    return _used() - before


def _used() -> float:
    kinds = (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)
    return sum(use.ru_utime + use.ru_stime for use in map(resource.getrusage, kinds))


class Comparison:
    """The compiles of a batch, or of a file outside any, both ways."""

    def __init__(self, ours: Future[Made], stock: Sequence[Future[Made]]) -> None:
        self.files = len(stock)
        self._ours = ours
        self._stock = stock

    def took(self) -> Took:
        """Wait for all of them."""
        ours, stock = self._ours.result(), [each.result() for each in self._stock]
        theirs = frozenset(name for each in stock for name in each.kernels)
        if ours.kernels != theirs:
            sys.exit(f"error: the kernels differ: {sorted(ours.kernels ^ theirs)[:10]}")
        return Took(
            self.files, sum(each.seconds for each in stock), ours.seconds, len(ours.kernels)
        )


def compare_batch(
    edge: Statement, folder: Path, pool: Executor, headers: Mapping[str, str]
) -> Comparison:
    """Begin to compile a batch, and its files one by one."""
    name = next(plain(item) for item in edge.implicit if f"{FOLDER}/" in item)
    batch = Batch.read(Path(name))
    ours = pool.submit(together, batch, folder, headers)
    elsewhere = {OUT: "{scratch}/one.o", DEPS: "{scratch}/one.d"}
    stock = [
        pool.submit(apart, batch.command, {**elsewhere, IN: member.path}, folder)
        for member in batch.members
    ]
    return Comparison(ours, stock)


def compare_file(
    output: str, command: str, folder: Path, pool: Executor, headers: Mapping[str, str]
) -> Comparison:
    """Begin to compile a file that is in no batch."""
    words = shlex.split(command)
    deps = words[words.index("-MF") + 1] if "-MF" in words else ""
    elsewhere = {output: "{scratch}/one.o", deps: "{scratch}/one.d"}
    late = () if is_cuda(words) else LATE
    ours = pool.submit(apart, [*words, *late], elsewhere, folder, headers)
    return Comparison(ours, [pool.submit(apart, words, elsewhere, folder)])


def main() -> None:
    """Draw, compile both ways, print the ratio."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folder", type=Path)
    parser.add_argument("--files", type=int, default=150)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--jobs", type=int, default=1, help="compiles at once")
    parser.add_argument("--cores", type=int, default=read_cores(), help="to form batches for")
    parser.add_argument("--cuda", action="store_true", help="what nvcc compiles, and nothing else")
    parser.add_argument("--release", default="2.6.0", help="whose profile of clashes to use")
    given = parser.parse_args()
    folder = given.folder.resolve()
    os.environ["CCACHE_DISABLE"] = "1"
    ninja = shutil.which("ninja") or sys.exit("error: ninja is not on PATH")
    lessons = shipped_lessons("torch", given.release)
    made = accelerate(
        folder, ninja, lessons, cores=given.cores, lessons_file="", anew=True, cuda=given.cuda
    )
    if made is None:
        sys.exit(f"error: {folder} has nothing to put into batches")
    asked = subprocess.check_output([ninja, "-f", made, "-t", "compdb"], cwd=folder, text=True)
    commands = {item["output"]: item["command"] for item in json.loads(asked)}
    statements = read_statements(made.read_text().splitlines())
    edges = [
        item
        for item in statements
        if item.rule == "torchsmith_batch" and given.cuda is (Path(item.inputs[0]).suffix == ".cu")
    ]
    rule = "CUDA_COMPILER" if given.cuda else "CXX_COMPILER"
    lone = [item for item in statements if item.rule.startswith(rule) and len(item.outputs) == 1]
    total = len(lone) + sum(len(item.inputs) for item in edges)
    share = min(1.0, given.files / total)
    draw = random.Random(given.seed)
    draw.shuffle(edges)
    chosen, files = [], 0
    while edges and files < share * (total - len(lone)):
        chosen.append(edges.pop())
        files += len(chosen[-1].inputs)
    drawn_lone = draw.sample(lone, min(len(lone), max(1, round(share * len(lone)))))
    wanted = {name for item in (*chosen, *drawn_lone) for name in (*item.order_only, *item.inputs)}
    made_by_build = {plain(name) for name in wanted if not plain(name).startswith("/")}
    if made_by_build:
        subprocess.run([ninja, *sorted(made_by_build)], cwd=folder, check=True)
    # The longest first, as in a build.
    chosen.sort(key=lambda edge: -len(edge.inputs))
    with tempfile.TemporaryDirectory() as place, ThreadPoolExecutor(given.jobs) as pool:
        headers = {
            **acceleration(Path(place), given.cores, Path(place)),
            **huge_pages(Path(place)),
            "CCACHE_PREFIX": str(ON_A_MISS),
        }
        making = 0.0
        if not given.cuda:
            making = ready_headers(commands.values(), folder, Path(place), given.jobs)
            print(f"headers compiled for all files: {making:7.1f} CPU-s", flush=True)
        begun = [compare_batch(edge, folder, pool, headers) for edge in chosen]
        for edge in drawn_lone:
            output = plain(edge.outputs[0])
            begun.append(compare_file(output, commands[output], folder, pool, headers))
        took = []
        for each in begun:
            took.append(each.took())
            print(took[-1], flush=True)
    files = sum(item.files for item in took)
    stock, ours = sum(item.stock for item in took), sum(item.ours for item in took)
    ours += making * files / total
    print(f"{files} of {total} files: ", end="")
    if given.cuda:
        print(f"the same {sum(item.kernels for item in took)} kernels, ", end="")
    print(f"stock {stock:.0f}, ours {ours:.0f} CPU-s")
    print(f"ours / stock = {ours / stock:.2f}")


if __name__ == "__main__":
    main()

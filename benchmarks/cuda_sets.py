"""CPU time of torch's CUDA files for a second set of architectures, ours against plain nvcc.

    python -m benchmarks.cuda_sets TREE --nvcc NVCC [--include FOLDER] [--files 6] [--seed 3]

TREE is PyTorch's source with a build folder in it, as `torchsmith build` leaves it; also of a
build without CUDA, whose generated headers are enough. FOLDER has headers that do not lie beside
nvcc: cublas_v2.h, cusparse.h, cusolver_common.h, curand_kernel.h. Files are drawn from ATen's
kernels. Each is compiled for the first set of architectures, which is not counted, and for the
second by plain nvcc and by the program that ccache starts where it has nothing. Both have to hold
code for the same architectures, and as much of it. (Byte for byte they cannot be compared: where a
file defines nothing that others see, nvcc has the number of its process in names.)
"""

from __future__ import annotations

import argparse
import os
import random
import re
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

from elftools.elf.elffile import ELFFile

from torchsmith.host.limits import read_cores
from torchsmith.toolchain import nvcc_parts
from torchsmith.verify.fatbin import gpu_code

# As torch has nvcc compile them.
_FLAGS = (
    *("-O2", "-std=c++17", "-Xcompiler", "-fPIC", "-w", "-DNDEBUG", "-DUSE_CUDA"),
    *("-DTORCH_CUDA_BUILD_MAIN_LIB", "-DAT_PER_OPERATOR_HEADERS"),
    "-DCUB_WRAPPED_NAMESPACE=at_cuda_detail",
    *("-D__CUDA_NO_HALF_OPERATORS__", "-D__CUDA_NO_HALF_CONVERSIONS__"),
    *("-D__CUDA_NO_HALF2_OPERATORS__", "-D__CUDA_NO_BFLOAT16_CONVERSIONS__"),
    *("--expt-relaxed-constexpr", "--expt-extended-lambda"),
)
# Numbers of processes, in names that are compressed.
_SLACK = 0.001
_KERNELS = "aten/src/ATen/native/cuda"
_CONFIGURED = ("aten/src/ATen/cuda/CUDAConfig.h", "c10/cuda/impl/cuda_cmake_macros.h")


class BenchmarkError(Exception):
    """It cannot be measured here, and why."""


@dataclass(frozen=True, slots=True)
class Measured:
    """What a file took, in CPU-seconds, and what was found of it."""

    file: str
    plain: float
    ours: float
    parts: tuple[int, int]


@dataclass(frozen=True, slots=True)
class Bench:
    """A tree, a compiler, and a folder for what is made."""

    tree: Path
    nvcc: Path
    folder: Path
    includes: tuple[Path, ...]

    def prepare(self) -> None:
        """Make the headers that CMake would, with nothing switched on."""
        for name in _CONFIGURED:
            text = (self.tree / f"{name}.in").read_text(encoding="utf-8")
            text = re.sub(r"#cmakedefine.*", "", re.sub(r"@\w+@", "0", text))
            made = self.folder / "include" / name.removeprefix("aten/src/")
            made.parent.mkdir(parents=True)
            made.write_text(text, encoding="utf-8")

    def measure(self, source: Path, first: Sequence[str], second: Sequence[str]) -> Measured | None:
        """Compile one file; None if nvcc cannot."""
        by_parts = (sys.executable, "-I", "-S", nvcc_parts.__file__)
        log = self.folder / f"{source.stem}.log"
        if self._compile(source, "first", first, log, by_parts) is None:
            return None
        log.unlink()
        ours = self._compile(source, "ours", second, log, by_parts)
        plain = self._compile(source, "plain", second, log)
        if ours is None or plain is None:
            return None
        codes = [_gpu_code(self._object(source, what)) for what in ("ours", "plain")]
        if codes[0][0] != codes[1][0] or abs(codes[0][1] - codes[1][1]) > _SLACK * codes[1][1]:
            raise BenchmarkError(f"{source.name}: the GPU code is not the same: {codes}")
        counts = log.read_text(encoding="utf-8").split()
        found = counts.count(nvcc_parts.FOUND)
        return Measured(source.name, plain, ours, (found, len(counts)))

    def _object(self, source: Path, what: str) -> Path:
        return self.folder / f"{source.stem}-{what}.o"

    def _compile(
        self, source: Path, what: str, codes: Sequence[str], log: Path, before: Sequence[str] = ()
    ) -> float | None:
        tree = self.tree
        places = [self.folder / "include", *self.includes, tree / "build/aten/src"]
        places += [tree / "aten/src", tree / "build", tree, tree / "torch/csrc"]
        words = [*_FLAGS, *(f"-I{place}" for place in places)]
        words += [f"-gencode=arch=compute_{code},code=sm_{code}" for code in codes]
        kept = {nvcc_parts.PARTS: str(self.folder / "parts"), nvcc_parts.LOG: str(log)}
        with (self.folder / f"{source.stem}-{what}.txt").open("wb") as said:
            made = str(self._object(source, what))
            child = subprocess.Popen(
                [*before, str(self.nvcc), *words, "-c", str(source), "-o", made],
                env={**os.environ, **kept},
                stdout=said,
                stderr=said,
            )
            _, status, usage = os.wait4(child.pid, 0)
            child.returncode = status
        return usage.ru_utime + usage.ru_stime if status == 0 else None


def _gpu_code(file: Path) -> tuple[tuple[str, ...], int]:
    """The architectures, and how many bytes there are for all of them."""
    with file.open("rb") as content:
        elf = ELFFile(content)
        section = elf.get_section_by_name(".nv_fatbin")
        if section is None:
            raise BenchmarkError(f"{file.name} has no GPU code")
        return gpu_code(elf), section.data_size


def draw(tree: Path, count: int, seed: int) -> list[Path]:
    """Some of ATen's kernels, in an order that the seed decides."""
    every = sorted((tree / _KERNELS).glob("*.cu"))
    if not every:
        raise BenchmarkError(f"{tree / _KERNELS} has no CUDA files")
    return random.Random(seed).sample(every, min(count, len(every)))


def run(bench: Bench, files: Sequence[Path], given: argparse.Namespace) -> None:
    """Measure each file, and say what all of them took."""
    first, second = given.first.split(","), given.second.split(",")
    bench.prepare()
    with ThreadPoolExecutor(given.jobs) as pool:
        each = pool.map(lambda file: bench.measure(file, first, second), files)
        every = [measured for measured in map(show, files, each) if measured]
    if not every:
        raise BenchmarkError(f"nvcc compiles none of them: see {bench.folder}")
    plain, ours = sum(one.plain for one in every), sum(one.ours for one in every)
    print(
        f"{len(every)} files for {given.second} after {given.first}: "
        f"{plain:.0f} -> {ours:.0f} CPU-s, ratio {ours / plain:.2f}"
    )


def show(file: Path, measured: Measured | None) -> Measured | None:
    """One line of the table."""
    if measured is None:
        print(f"{file.name:40} does not compile here", flush=True)
    else:
        found, steps = measured.parts
        took = f"{measured.plain:7.1f} -> {measured.ours:6.1f} CPU-s"
        print(f"{file.name:40}{took}  {measured.ours / measured.plain:.2f}", end="")
        print(f"  {found} of {steps} steps found", flush=True)
    return measured


def main() -> int:
    """Read the arguments, run, and say what came of it."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("tree", type=Path)
    parser.add_argument("--nvcc", type=Path, required=True)
    parser.add_argument("--include", type=Path, action="append", default=[])
    parser.add_argument("--files", type=int, default=6)
    parser.add_argument("--seed", type=int, default=3)
    parser.add_argument("--first", default="80", help="architectures, with commas")
    parser.add_argument("--second", default="80,90")
    parser.add_argument("--jobs", type=int, default=read_cores())
    given = parser.parse_args()
    includes = tuple(folder.resolve() for folder in given.include)
    try:
        with tempfile.TemporaryDirectory(prefix="cuda-sets-") as place:
            bench = Bench(given.tree.resolve(), given.nvcc.resolve(), Path(place), includes)
            run(bench, draw(bench.tree, given.files, given.seed), given)
    except BenchmarkError as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())

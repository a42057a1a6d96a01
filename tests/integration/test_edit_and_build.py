"""Edit a file of a source folder, build again: what is compiled is that file."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from torchsmith.engine.build import build
from torchsmith.engine.door import keyed
from torchsmith.engine.store import Store
from torchsmith.errors import StepFailed
from torchsmith.plan.build import with_keys
from torchsmith.plan.models import Plan, Step
from torchsmith.plan.shell import fresh_copy
from torchsmith.plan.sources import fetching
from torchsmith.resolve.models import SourceChoice
from torchsmith.toolchain.governor_events import Event, Finished

pytestmark = [pytest.mark.integration, pytest.mark.usefixtures("build_tools")]

COUNT = 8
TREE = "build/one/torch"
PLAN = with_keys(
    Plan(
        "tiny",
        (),
        (
            Step(
                "fetch-torch",
                "fetch",
                "Fetch",
                project="torch",
                reads=("source",),
                task=fetching(SourceChoice("folder", path="source"), "sources/torch"),
                outputs=("sources/torch",),
            ),
            Step(
                "configure-torch-one",
                "configure",
                "Configure",
                project="torch",
                variant="one",
                needs=("fetch-torch",),
                commands=(
                    fresh_copy("sources/torch", TREE),
                    f"cd {TREE}",
                    # As PyTorch's setup.py does it.
                    "[ -e build/build.ninja ] || cmake -G Ninja -S . -B build",
                ),
                outputs=(TREE,),
            ),
            Step(
                "compile-torch-one",
                "compile",
                "Compile",
                project="torch",
                variant="one",
                needs=("configure-torch-one",),
                commands=(
                    f"cd {TREE}",
                    "cmake --build build",
                    'mkdir -p "$WORK"/dist/one',
                    'cp build/program "$WORK"/dist/one/program',
                ),
                outputs=("dist/one/program",),
            ),
        ),
    ),
    {},
)


class Bench:
    """A folder somebody works in."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.source = folder / "source"
        self.source.mkdir()
        for number in range(COUNT):
            self.write(number, number)
        (self.source / "main.cpp").write_text(
            'int total;\nint main() { __builtin_printf("%d", total); }\n'
        )
        (self.source / "CMakeLists.txt").write_text(
            "cmake_minimum_required(VERSION 3.18)\nproject(tiny CXX)\n"
            "file(GLOB files *.cpp)\nadd_executable(program ${files})\n"
        )

    def write(self, number: int, value: int) -> None:
        """A file that adds to the total by being linked."""
        (self.source / f"f{number}.cpp").write_text(
            f"extern int total;\nstatic const int at{number} = total += {value};\n"
        )

    def build(self, *, fresh: bool = False) -> tuple[list[str], int]:
        """Build; what was compiled, and what the program says."""
        compiled: list[str] = []

        def told(event: Event) -> None:
            name = Path(event.file).name
            # Not what CMake tries out.
            if isinstance(event, Finished) and name.endswith(".cpp") and "CMake" not in event.file:
                compiled.append("unit" if "torchsmith-batches" in event.file else name)

        store = Store(self.folder / "store")
        plan = keyed(PLAN, self.folder)
        done = build(plan, store, project=self.folder, jobs=1, fresh=fresh, on_memory=told)
        (program,) = done.artifacts["compile-torch-one"]
        return sorted(compiled), int(subprocess.check_output([program]))


def test_an_edit_costs_the_file_and_its_batch_once(tmp_path: Path) -> None:
    bench = Bench(tmp_path)
    total = sum(range(COUNT))
    compiled, said = bench.build()
    assert "unit" in compiled
    assert said == total

    (bench.source / "f3.cpp").touch()
    assert bench.build() == ([], total)

    bench.write(3, 1003)
    compiled, said = bench.build()
    assert compiled in (["f3.cpp"], ["f3.cpp", "unit"])
    assert said == total + 1000

    bench.write(3, 2003)
    assert bench.build() == (["f3.cpp"], total + 2000)

    # What was built before is there, and the tree is of the edit that came after.
    bench.write(3, 3)
    assert bench.build() == ([], total)
    bench.write(3, 4)
    assert bench.build() == (["f3.cpp"], total + 1)


def test_a_mistake_costs_no_more_than_its_file(tmp_path: Path) -> None:
    bench = Bench(tmp_path)
    bench.build()
    bench.write(3, 1003)
    bench.build()
    (bench.source / "f3.cpp").write_text("int = ;\n")
    with pytest.raises(StepFailed):
        bench.build()
    bench.write(3, 2003)
    assert bench.build() == (["f3.cpp"], sum(range(COUNT)) + 2000)
    good = (bench.source / "CMakeLists.txt").read_text()
    (bench.source / "CMakeLists.txt").write_text(good + "message(FATAL_ERROR no)\n")
    with pytest.raises(StepFailed):
        bench.build()
    (bench.source / "CMakeLists.txt").write_text(good + "message(STATUS yes)\n")
    assert bench.build() == ([], sum(range(COUNT)) + 2000)


def test_files_come_and_go(tmp_path: Path) -> None:
    bench = Bench(tmp_path)
    bench.build()
    bench.write(90, 5000)
    _, said = bench.build()
    assert said == sum(range(COUNT)) + 5000
    (bench.source / "f90.cpp").unlink()
    (bench.source / "f7.cpp").unlink()
    _, said = bench.build()
    assert said == sum(range(COUNT)) - 7


def test_a_fresh_build_compiles_everything(tmp_path: Path) -> None:
    bench = Bench(tmp_path)
    first, _ = bench.build()
    bench.write(3, 1003)
    again, said = bench.build(fresh=True)
    assert again == first
    assert said == sum(range(COUNT)) + 1000
    bench.write(3, 2003)
    compiled, _ = bench.build()
    assert "f3.cpp" in compiled
    assert len(compiled) <= 2

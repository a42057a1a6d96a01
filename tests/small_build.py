"""A real build of seconds, without torch: python small_build.py FOLDER [fails|new]."""

from __future__ import annotations

import sys
from pathlib import Path

from msgspec.structs import replace

from torchsmith.engine.build import build
from torchsmith.engine.command import this_command
from torchsmith.engine.store import Store
from torchsmith.errors import TorchsmithError
from torchsmith.plan.models import Cost, Plan, Step, step_key

FILES = 6
CMAKE = """
cmake_minimum_required(VERSION 3.18)
project(small CXX)
file(GLOB files ${CMAKE_CURRENT_SOURCE_DIR}/*.cpp)
add_library(small SHARED ${files})
"""


def plan(*, fails: bool, letter: str = "a") -> Plan:
    """Sources, configuring, compiling, packing; another letter, and all of it is new."""
    sources = [
        f"printf '#include <regex>\\nbool f{n}(const char *s) "
        f'{{ return std::regex_match(s, std::regex("{letter}{n}+")); }}\\n\' > small/{n}.cpp'
        for n in range(FILES)
    ]
    broken = ["printf '#include <no_such_header.h>\\n' > small/broken.cpp"] if fails else []
    steps = [
        Step(
            id="sources",
            kind="fetch",
            title="Write the sources",
            commands=(
                "mkdir -p small",
                f"printf '{CMAKE}' > small/CMakeLists.txt",
                *sources,
                *broken,
            ),
            outputs=("small",),
        ),
        Step(
            id="notes",
            kind="fetch",
            title="Write the notes",
            commands=(f"echo '<script>alert(1)</script>' {fails} | tee notes.txt",),
            outputs=("notes.txt",),
        ),
        Step(
            id="compile",
            kind="compile",
            title="Compile small",
            needs=("sources",),
            commands=(
                "cmake -G Ninja -S small -B out -DCMAKE_BUILD_TYPE=Release",
                "cmake --build out",
            ),
            outputs=("out",),
            cost=Cost(core_seconds=30.0, basis="six small files"),
        ),
        Step(
            id="pack",
            kind="package",
            title="Pack small",
            needs=("compile", "notes"),
            commands=("tar -czf small.tar.gz notes.txt out/libsmall.so",),
            outputs=("small.tar.gz",),
        ),
    ]
    keys: dict[str, str] = {}
    for number, step in enumerate(steps):
        keys[step.id] = step_key(step, keys, {})
        steps[number] = replace(step, key=keys[step.id])
    return Plan("small-fails" if fails else f"small-{letter}", (), tuple(steps))


if __name__ == "__main__":
    folder = Path(sys.argv[1])
    try:
        build(
            plan(fails="fails" in sys.argv, letter="b" if "new" in sys.argv else "a"),
            Store(folder / "store"),
            project=folder,
            jobs=2,
            # Room for one compile of those nobody has measured, so that the other waits.
            memory=3 << 29 if "new" in sys.argv else None,
            command=this_command(),
        )
    except TorchsmithError as error:
        sys.exit(error.message)

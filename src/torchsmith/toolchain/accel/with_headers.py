"""ccache runs this in a compiler's place on a miss: it compiles with precompiled headers.

    python -m torchsmith.toolchain.accel.with_headers g++ -c file.cpp -o file.o ...

Files that are compiled with the same options begin by reading the same headers. Here those are
read once, kept as gcc keeps its state (a precompiled header), and every further compile begins from
there. A file is given only what it reads by itself, and nothing where it sets a macro first that
those headers look at. ccache itself knows nothing of this: what it keeps is found by the plain
command, in any folder.

Whatever cannot be done so, or fails, is compiled as if this program were not there.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import NoReturn

from torchsmith.toolchain.accel import HEADERS
from torchsmith.toolchain.accel.files import read_dependencies, write_dependencies
from torchsmith.toolchain.accel.gcc_command import Compile, read_compile, run
from torchsmith.toolchain.accel.precompiled import Start, dependencies_of, find_start, place_of
from torchsmith.toolchain.compiles import killed_for_memory

# A build's list of what it compiles.
LIST = Path("torchsmith-batches/headers.json")


def main(command: Sequence[str]) -> int:
    """Compile, with headers ready where that can be."""
    compile_ = read_compile(command)
    start = _start(compile_) if compile_ else None
    if compile_ is None or start is None:
        _become(command)
    status, words = run([command[0], "-include", str(start.header), *command[1:]])
    if status > 0 and not killed_for_memory(status, words):
        # Its own fault, or that of what it was given: its own words tell.
        _become(command)
    if status == 0 and compile_.dependencies:
        _list_dependencies(compile_, start)
    sys.stderr.buffer.write(words)
    return 128 - status if status < 0 else status


def _start(compile_: Compile) -> Start | None:
    """What a file may begin with; None if with nothing."""
    place = os.environ.get(HEADERS)
    if not place:
        return None
    try:
        units = json.loads(LIST.read_text(encoding="utf-8")).get(compile_.kind)
        if not units:
            return None
        return find_start(place_of(Path(place), compile_.kind), compile_, units)
    except (OSError, ValueError, KeyError):
        return None


def _list_dependencies(compile_: Compile, start: Start) -> None:
    """Have a file's list of dependencies name what its header has read instead of the header.

    gcc says nothing of that, nor of a header with the same text as one that it knows already;
    and the header we made is gone when the build is.
    """
    path = Path(compile_.dependencies)
    ours = (str(start.header), f"{start.header}.gch")
    header = read_dependencies(dependencies_of(start.header))
    names = dict.fromkeys(name for name in (*read_dependencies(path), *header) if name not in ours)
    known = {os.path.normpath(os.path.abspath(name)) for name in names}  # noqa: PTH100
    others = (name for name in start.closure if not name.startswith("<") and name not in known)
    write_dependencies(path, compile_.target, (*names, *others))


def _become(command: Sequence[str]) -> NoReturn:
    try:
        os.execvp(command[0], list(command))
    except OSError as error:
        sys.exit(f"{command[0]}: {error.strerror}")


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

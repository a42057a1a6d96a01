"""Compiling a project's files in batches, injected from outside: no file of the project changes.

Most of the time a C++ file of PyTorch takes goes into reading the same headers again. Here the
files of one target that are compiled with the same options are compiled together, dozens at a
time, as one unit that includes them. Every file still has its object: one of a batch holds the
code, the others are empty, so linking stays as it was.

    shims/ninja      found before the real one; hands over to
    __main__.py      which asks the real one what it would run, and hands it another file
    accelerate.py    writes that file: build.ninja with batches in place of single compiles
    ninja_file.py    reads build.ninja
    batches.py       which files go together
    lessons.py       which files cannot, as earlier builds found out
    unit.py          a batch as a C++ file
    compile_batch.py what ninja runs for a batch: compiles, and splits one that clashes or is edited

Headers that batches and single files still read are precompiled once for many of them:

    with_headers.py  compiles with them; ccache runs it for what it has not
    precompiled.py   chooses them, and has them compiled when they are first needed
    gcc_command.py   what a compiler's command says
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

# "on", "off" or the word below; a step's own environment may say another than torchsmith's.
SWITCH = "TORCHSMITH_ACCEL"
HEADERS = "TORCHSMITH_HEADERS"
MEMORY = "TORCHSMITH_MEMORY"
# The same batches on every machine: of a fixed size, and divided by what is known to all.
SAME = "same"
# "on" has nvcc compile in batches, too. No whole torch has run with those yet.
CUDA = "TORCHSMITH_CUDA_BATCHES"


def acceleration(
    lessons: Path, cores: int, headers: Path | None = None, memory: int | None = None
) -> dict[str, str]:
    """The variables under which a build's ninja compiles in batches.

    `lessons` is the folder where what builds learn is kept, `headers` one for headers that are
    compiled, which are large and of use to this build alone; `memory` is what all compiles
    together may take.
    """
    return {
        SWITCH: "on",
        "TORCHSMITH_SHIMS": str(Path(__file__).parent / "shims"),
        "TORCHSMITH_PYTHON": sys.executable,
        "TORCHSMITH_LESSONS": str(lessons),
        "TORCHSMITH_CORES": str(cores),
        **({HEADERS: str(headers)} if headers else {}),
        **({MEMORY: str(memory)} if memory else {}),
        **({CUDA: "on"} if os.environ.get(CUDA) == "on" else {}),
    }

"""Options the governor adds to compilers: no folders of this machine, later garbage collection.

A compiler writes the names of files into what it makes: assertions and warnings quote them,
debugging information lists them. These options have it write names relative to the folder it runs
in, as ccache does. The governor adds them to each compile. Among CMake's flags they would appear in
torch's own account of how it was built, and name the folder that should stay out.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from functools import cache
from pathlib import Path, PurePath

from torchsmith.host.probe import ask
from torchsmith.toolchain.compiles import Compile
from torchsmith.toolchain.memory_book import MIB

_OPTION = "-ffile-prefix-map="
# nvcc hands these words to the compiler of the machine's own code, through a shell, and takes a
# comma for their end.
_FOR_NVCC = f"-Xcompiler={_OPTION}"
_PLAIN = re.compile(r"[\w./+@%:=~^-]*")
# For ccache: they differ between two folders, and what is compiled does not.
IGNORED = (f"{_OPTION}*", f"{_FOR_NVCC}*")


# Whether a compiler understands an option.
Knows = Callable[[str, str], bool]


@cache
def understands(compiler: str, option: str) -> bool:
    """Whether a compiler knows an option: gcc does from 8 on, clang from 10."""
    if not compiler:
        return False
    answer = ask([compiler, f"{option}/a=/b", "-x", "c", "-E", "/dev/null"], timeout=20)
    return answer is not None and answer.code == 0


def names_from_within(work: Path, knows: Knows = understands) -> Callable[[Compile], Sequence[str]]:
    """A function that gives each compile the options for names below a work folder."""
    root = str(work)

    def options(unit: Compile) -> Sequence[str]:
        if unit.language in ("c", "c++") and knows(unit.compiler, _OPTION):
            return [f"{_OPTION}{name}" for name in _names(root, unit)]
        plain = _PLAIN.fullmatch(root + unit.cwd)
        if unit.language == "cuda" and plain and knows(unit.compiler, _FOR_NVCC):
            return [f"{_FOR_NVCC}{name}" for name in _names(root, unit)]
        return ()

    return options


def _names(root: str, unit: Compile) -> Iterator[str]:
    """How to write each folder from the root down to where a compiler runs.

    Of those that fit a name, gcc takes the last.
    """
    here = PurePath(unit.cwd if PurePath(unit.cwd).is_relative_to(root) else root)
    parts = here.relative_to(root).parts
    yield f"{here}=."
    for depth in range(len(parts)):
        yield f"{PurePath(root, *parts[:depth])}/={'../' * (len(parts) - depth)}"
    yield f"{here}/="
    yield from _out_of(here, PurePath(unit.source).parent)


def _out_of(here: PurePath, folder: PurePath) -> Iterator[str]:
    """How to write names that lead from a file's folder out of the one the compiler runs in.

    Generated files and batches include others by such names; a cache passes the shorter one on.
    """
    inside = (here / folder).relative_to(here) if (here / folder).is_relative_to(here) else None
    if inside is not None and inside.parts:
        up = "../" * (len(inside.parts) + 1)
        yield f"{here / inside}/{up}=../"
        yield f"{inside}/{up}=../"


def setuptools_flags(work: Path, compiler: str, knows: Knows = understands) -> str:
    """The option for files that setuptools compiles, as CPPFLAGS, which CMake does not read."""
    root = str(work)
    plain = not any(character.isspace() or character in "\"'\\" for character in root)
    return f"{_OPTION}{root}/=./" if plain and knows(compiler, _OPTION) else ""


# gcc first looks for garbage at 128 MB at most, and again whenever its heap has grown by a third.
# A file of PyTorch takes ten times that, hardly any of it garbage. The output is the same.
COLLECTION = "--param=ggc-"
# From here on gcc collects whenever its heap has doubled.
_FIRST = 1024 * MIB
LATE = (f"{COLLECTION}min-heapsize={_FIRST // 1024}", f"{COLLECTION}min-expand=100")
# For each compiler that may run at once; a batch of PyTorch's files takes up to that much.
ROOM_FOR_LATE_COLLECTION = 4096 * MIB


def collect_late(unit: Compile) -> Sequence[str]:
    """The options that make gcc collect later; none for what is not gcc's."""
    compiled = unit.language in ("c", "c++")
    return LATE if compiled and unit.compiler and is_gcc(unit.compiler) else ()


@cache
def is_gcc(compiler: str) -> bool:
    """Whether a compiler is gcc; c++ may be another's name."""
    answer = ask([compiler, "--version"])
    return answer is not None and "Free Software Foundation" in answer.out

"""Compilers, and the tools a build calls: CMake, Ninja, linkers, compiler caches, git."""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import Literal

from torchsmith.host.models import Compiler, Tool
from torchsmith.host.probe import Programs, first_version, is_executable, together

Kind = Literal["gcc", "clang"]

_COMPILER = re.compile(r"(gcc|clang)(-\d+(?:\.\d+)?)?")
_CXX: dict[Kind, str] = {"gcc": "g++", "clang": "clang++"}
# Folders such as /usr/lib/ccache hold a "gcc" that is a launcher. Whether to use one is the
# plan's choice, and the compiler itself is further down the path.
_LAUNCHERS = frozenset({"ccache", "sccache", "distcc", "icecc", "buildcache"})

# Some distributions give a tool another name.
_TOOLS: dict[str, tuple[str, ...]] = {
    "cmake": ("cmake", "cmake3"),
    "ninja": ("ninja", "ninja-build"),
    "make": ("make", "gmake"),
    "git": ("git",),
    "patch": ("patch",),
    "ccache": ("ccache",),
    "sccache": ("sccache",),
    "mold": ("mold", "ld.mold"),
    "lld": ("ld.lld",),
}


def read_compilers(programs: Programs) -> tuple[Compiler, ...]:
    """Return every gcc and clang on the search path that has its C++ half, each once."""
    pairs: dict[str, tuple[Kind, Path, Path]] = {}
    for path in programs.matching(_COMPILER):
        kind: Kind = "gcc" if path.name.startswith("gcc") else "clang"
        cxx = path.with_name(path.name.replace(kind, _CXX[kind], 1))
        real = os.path.realpath(cxx)
        if is_executable(cxx) and Path(real).name not in _LAUNCHERS:
            pairs.setdefault(real, (kind, path, cxx))
    answers = together(lambda pair: read_compiler(programs, *pair), pairs.values())
    return tuple(compiler for compiler in answers if compiler)


def read_compiler(programs: Programs, kind: Kind, path: Path, cxx: Path) -> Compiler | None:
    """Ask one compiler for its version; `None` if it does not answer."""
    # gcc before 7 knows only -dumpversion, and from 7 on that may be the major version alone;
    # given both, each prints all it has. clang imitates gcc 4.2.1 there, in older releases.
    asks = ("-dumpfullversion", "-dumpversion") if kind == "gcc" else ("--version",)
    said = programs.run(cxx, *asks)
    version = first_version(said)
    if version is None:
        return None
    return Compiler(kind=kind, version=version, path=str(path), cxx=str(cxx))


def read_tools(programs: Programs) -> dict[str, Tool]:
    """Return the tools that are here and answer, by name."""
    answers = together(lambda names: read_tool(programs, *names), _TOOLS.values())
    return {name: tool for name, tool in zip(_TOOLS, answers, strict=True) if tool}


def read_tool(programs: Programs, *names: str) -> Tool | None:
    """Return the first program of these names, if it tells its version."""
    path = programs.find(*names)
    version = first_version(programs.run(path, "--version")) if path else None
    return Tool(version=version, path=str(path)) if version else None

"""Reading this machine: every subject at once, since most of the time is spent waiting."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Literal

from torchsmith.host.containers import read_engines
from torchsmith.host.cuda import installed, read_gpus
from torchsmith.host.limits import (
    read_cores,
    read_disk_free,
    read_huge_pages,
    read_memory,
    read_shm,
)
from torchsmith.host.models import Compiler, Host, Tool
from torchsmith.host.probe import Programs, first_version, is_executable, together
from torchsmith.host.system import (
    read_board,
    read_cpu_name,
    read_l4t,
    read_libc,
    read_platform,
    read_pythons,
    read_system,
)


def read_host(
    folder: Path,
    *,
    root: Path = Path("/"),
    environ: Mapping[str, str] | None = None,
    brief: bool = False,
) -> Host:
    """Return what this machine has, with the free disk where `folder` is or will be.

    `root` and `environ` stand for the file tree and the environment to read it from. `brief`
    leaves out what no choice depends on: tools, container engines, the CPU's name.
    """
    programs = Programs(os.environ if environ is None else environ)
    platform = read_platform()
    with ThreadPoolExecutor(max_workers=8) as pool:
        pythons = pool.submit(read_pythons, programs)
        compilers = pool.submit(read_compilers, programs)
        tools = None if brief else pool.submit(read_tools, programs)
        cuda = pool.submit(installed, programs, platform.partition("-")[2], root)
        gpus = pool.submit(read_gpus, programs, root)
        engines = None if brief else pool.submit(read_engines, programs)
        cpu_name = None if brief else pool.submit(read_cpu_name, programs, root)
        libc = pool.submit(read_libc, programs, root)
    memory, available = read_memory(root)
    toolkits, libraries = cuda.result()
    found, driver = gpus.result()
    return Host(
        platform=platform,
        system=read_system(root),
        libc=libc.result(),
        kernel=os.uname().release,
        board=read_board(root),
        l4t=read_l4t(root),
        cpu_name=cpu_name.result() if cpu_name else "",
        pythons=pythons.result(),
        compilers=compilers.result(),
        tools=tools.result() if tools else {},
        cuda=toolkits,
        libraries=libraries,
        gpus=found,
        driver=driver,
        engines=engines.result() if engines else (),
        cores=read_cores(root),
        memory_bytes=memory,
        memory_available_bytes=available,
        disk_free_bytes=read_disk_free(folder),
        shm_bytes=read_shm(root),
        huge_pages=read_huge_pages(root),
        root=os.geteuid() == 0,
        apt=programs.find("apt-get") is not None,
    )


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
    output = programs.run(cxx, *asks)
    version = first_version(output)
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

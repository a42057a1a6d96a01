"""CUDA toolkits, the libraries that go with them, NVIDIA's driver and the GPUs."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path

from torchsmith.facts.ranges import release
from torchsmith.host.models import InstalledGpu, Library, Toolkit
from torchsmith.host.probe import Programs, first_version, is_executable, read_text, together

_HOMES = ("CUDA_HOME", "CUDA_PATH", "CUDA_ROOT")
_RELEASE = re.compile(r"\bV(\d{1,3}\.\d{1,3}\.\d{1,5})\b")
_TOP = re.compile(r"^#\$ TOP=(.+)$", re.MULTILINE)
_ARCH = re.compile(r"\d{1,2}\.\d")

# For each library: its headers, newest layout first, and the macros of its version.
_HEADERS: dict[str, tuple[tuple[str, ...], tuple[str, str, str]]] = {
    "cudnn": (
        ("cudnn_version.h", "cudnn.h"),  # cuDNN 8 moved the version to a file of its own
        ("CUDNN_MAJOR", "CUDNN_MINOR", "CUDNN_PATCHLEVEL"),
    ),
    "nccl": (("nccl.h",), ("NCCL_MAJOR", "NCCL_MINOR", "NCCL_PATCH")),
    "magma": (
        ("magma_types.h",),
        ("MAGMA_VERSION_MAJOR", "MAGMA_VERSION_MINOR", "MAGMA_VERSION_MICRO"),
    ),
}
# The variables PyTorch's own build reads: those that name the headers, those that name a root.
_INCLUDE_VARIABLES: dict[str, tuple[str, ...]] = {
    "cudnn": ("CUDNN_INCLUDE_DIR", "CUDNN_INCLUDE_PATH"),
    "nccl": ("NCCL_INCLUDE_DIR",),
    "magma": (),
}
_ROOT_VARIABLES: dict[str, tuple[str, ...]] = {
    "cudnn": ("CUDNN_ROOT_DIR", "CUDNN_ROOT"),
    "nccl": ("NCCL_ROOT_DIR", "NCCL_ROOT"),
    "magma": ("MAGMA_HOME",),
}


def read_toolkits(programs: Programs, root: Path = Path("/")) -> tuple[Toolkit, ...]:
    """Return the CUDA toolkits, each once, in the order PyTorch's build would take them."""
    nvccs = dict.fromkeys(os.path.realpath(nvcc) for nvcc in _nvccs(programs, root))
    first: dict[str, Toolkit] = {}
    for toolkit in together(lambda nvcc: read_toolkit(programs, Path(nvcc)), nvccs):
        if toolkit:
            first.setdefault(toolkit.path, toolkit)
    return tuple(first.values())


def _nvccs(programs: Programs, root: Path) -> Iterator[Path]:
    for variable in _HOMES:
        home = programs.environ.get(variable, "")
        if Path(home).is_absolute():
            yield from filter(is_executable, [Path(home) / "bin/nvcc"])
    yield from programs.all("nvcc")
    usual = [root / "usr/local/cuda", root / "opt/cuda", root / "usr/lib/cuda"]
    try:
        numbered = list((root / "usr/local").glob("cuda-*"))
    except OSError:
        numbered = []
    numbered.sort(key=lambda folder: release(first_version(folder.name) or "0"), reverse=True)
    yield from filter(is_executable, (folder / "bin/nvcc" for folder in [*usual, *numbered]))


def read_toolkit(programs: Programs, nvcc: Path) -> Toolkit | None:
    """Ask one nvcc for its version and find the toolkit it belongs to."""
    found = _RELEASE.search(programs.run(nvcc, "--version") or "")
    if found is None:
        return None
    top = _toolkit_root(programs, nvcc)
    if top is None:
        return None
    own = top / "bin/nvcc"
    return Toolkit(version=found[1], path=str(top), nvcc=str(own if is_executable(own) else nvcc))


def _toolkit_root(programs: Programs, nvcc: Path) -> Path | None:
    above = Path(os.path.realpath(nvcc)).parent.parent
    if any((place / "cuda.h").is_file() for place in _toolkit_includes(above)):
        return above
    # A script in another folder that calls the real one (/usr/local/bin/nvcc, Debian's
    # /usr/bin/nvcc): nvcc itself says where it stands, as CMake's FindCUDAToolkit asks it. It
    # says so only with a host compiler present; without one its toolkit is of no use either.
    answer = programs.ask(nvcc, "--dryrun", "-x", "cu", "-c", os.devnull, "-o", os.devnull)
    match = _TOP.search(f"{answer.err}\n{answer.out}" if answer else "")
    if match:
        top = Path(os.path.realpath(match[1].strip()))
        if top.is_dir():
            return top
    return None


def _toolkit_includes(folder: Path) -> list[Path]:
    # Conda and cross toolkits have their headers under targets/ only.
    try:
        return [folder / "include", *sorted(folder.glob("targets/*/include"))]
    except OSError:
        return [folder / "include"]


def read_libraries(
    toolkits: Iterable[Toolkit],
    environ: Mapping[str, str],
    machine: str,
    root: Path = Path("/"),
) -> dict[str, Library]:
    """Return cuDNN, NCCL and MAGMA, as the first header that names each tells it."""
    usual: list[Path] = []
    for toolkit in toolkits:
        usual += _toolkit_includes(Path(toolkit.path))
        usual.append(Path(toolkit.path) / "magma/include")
    usual += [
        root / "usr/include",
        root / "usr/include" / f"{machine}-linux-gnu",
        root / "usr/local/include",
        root / "usr/local/magma/include",
    ]
    found = {name: _library(name, [*_named(name, environ), *usual]) for name in _HEADERS}
    return {name: library for name, library in found.items() if library}


def _named(name: str, environ: Mapping[str, str]) -> Iterator[Path]:
    for variable in (*_INCLUDE_VARIABLES[name], *_ROOT_VARIABLES[name]):
        value = environ.get(variable, "")
        # A relative folder, or one of stray bytes, cannot be part of a host that travels.
        if Path(value).is_absolute() and value.isprintable():
            yield Path(value) / ("" if variable in _INCLUDE_VARIABLES[name] else "include")


def _library(name: str, folders: Iterable[Path]) -> Library | None:
    headers, macros = _HEADERS[name]
    for folder in folders:
        for header in headers:
            version = _version_in(read_text(folder / header) or "", macros)
            if version:
                return Library(version=version, path=str(folder))
    return None


def _version_in(text: str, macros: tuple[str, str, str]) -> str | None:
    numbers = []
    for macro in macros:
        found = re.search(rf"^[ \t]*#[ \t]*define[ \t]+{macro}[ \t]+(\d{{1,4}})\b", text, re.M)
        if found is None:
            return None
        numbers.append(found[1])
    return ".".join(numbers)


def read_gpus(
    programs: Programs, root: Path = Path("/")
) -> tuple[tuple[InstalledGpu, ...], str | None]:
    """Return the GPUs and the driver's version; nothing where no driver answers."""
    gpus: list[InstalledGpu] = []
    driver: str | None = None
    for name, arch, memory, version in _smi_rows(programs):
        if not name or not name.isprintable() or first_version(version) != version:
            continue
        driver = driver or version
        gpus.append(
            InstalledGpu(
                name=name,
                arch=arch if _ARCH.fullmatch(arch) else None,
                memory_mb=int(memory) if re.fullmatch(r"[0-9]{1,9}", memory) else None,
            )
        )
    if not driver:
        # In a container without nvidia-smi the kernel still tells: "NVRM version: NVIDIA UNIX
        # x86_64 Kernel Module  535.104.05  Sat Aug 19 …". The second line is about gcc.
        text = read_text(root / "proc/driver/nvidia/version") or ""
        driver = first_version(text.partition("\n")[0])
    return tuple(gpus), driver


def _smi_rows(programs: Programs) -> Iterator[tuple[str, str, str, str]]:
    smi = programs.find("nvidia-smi")
    # Drivers before 510 refuse the whole question for one field they do not know.
    for fields in (
        "name,compute_cap,memory.total,driver_version",
        "name,memory.total,driver_version",
    ):
        if smi is None:
            return
        answer = programs.ask(smi, f"--query-gpu={fields}", "--format=csv,noheader,nounits")
        if answer is None:  # a driver that hangs hangs for every question
            return
        if answer.code != 0:
            continue
        last = fields.count(",")
        for line in answer.out.splitlines():
            row = [field.strip() for field in line.rsplit(",", last)]
            if len(row) == last + 1:
                yield row[0], row[1] if last == 3 else "", row[-2], row[-1]
        return


def installed(
    programs: Programs, machine: str, root: Path = Path("/")
) -> tuple[tuple[Toolkit, ...], dict[str, Library]]:
    """Return the toolkits, and the libraries found with their help."""
    toolkits = read_toolkits(programs, root)
    return toolkits, read_libraries(toolkits, programs.environ, machine, root)

"""Reading an environment once: its files, its loader's folders, a process that uses its torch."""

from __future__ import annotations

import mmap
import os
import re
from collections.abc import Iterator, Mapping, Sequence
from importlib.metadata import Distribution
from pathlib import Path

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from torchsmith.checks import Check
from torchsmith.diagnose.environment.seen import (
    VARIABLES,
    Built,
    FoundTorch,
    Pin,
    Seen,
    Shadowed,
    version_of,
)
from torchsmith.errors import HostError, UsageError
from torchsmith.host.cuda import read_gpus
from torchsmith.host.limits import read_cores, read_shm
from torchsmith.host.models import Host
from torchsmith.host.probe import Programs, is_executable, read_text
from torchsmith.host.system import read_platform, torch_version
from torchsmith.verify.binary import below, looks_shared, read_files
from torchsmith.verify.fatbin import order
from torchsmith.verify.linkage import library_places, openmp_runtime
from torchsmith.verify.probing import Loading, probe
from torchsmith.verify.target import Environment, read_environment
from torchsmith.verify.wheelfile import COMPANIONS, requirements, uses_torch

# What the probe's own syntax asks for.
_OLDEST_PYTHON = (3, 6)
_LIBCUDA = re.compile(r"libcuda\.so\.(\d+\.\d[\d.]*)$")
# Modules that bring an OpenMP or a BLAS of their own into torch's process, where installed.
_NEIGHBOURS = {
    "numpy": "numpy",
    "scipy": "scipy.linalg",
    "scikit-learn": "sklearn",
    "opencv-python": "cv2",
    "faiss-cpu": "faiss",
    "xgboost": "xgboost",
    "lightgbm": "lightgbm",
    "numexpr": "numexpr",
    "mkl": "mkl",
}


def chosen_python(named: Path | None, environ: Mapping[str, str]) -> Path:
    """The environment meant: the named one, the one switched on, the Python on the path."""
    if named is not None:
        if not named.exists():
            raise UsageError(
                f"{named} does not exist", "Name an environment's folder, or its python."
            )
        return named
    for variable in ("VIRTUAL_ENV", "CONDA_PREFIX"):
        folder = environ.get(variable)
        if folder and is_executable(Path(folder) / "bin/python"):
            return Path(folder)
    found = Programs(environ).find("python3", "python")
    if found is None:
        raise UsageError(
            "there is no Python on the path", "Name an environment: torchsmith doctor --env FOLDER"
        )
    return found


def read_machine(environ: Mapping[str, str]) -> Host:
    """What of this machine an installed torch depends on."""
    gpus, driver = read_gpus(Programs(environ))
    return Host(
        platform=read_platform(),
        gpus=gpus,
        driver=driver,
        cores=read_cores(),
        shm_bytes=read_shm(),
    )


def read(
    named: Path | None,
    *,
    host: Host | None = None,
    workers: int | None = None,
    timeout: float = 60.0,
) -> Seen:
    """Look at the torch of an environment, and into a process that uses it."""
    environ = dict(os.environ)
    environment = read_environment(chosen_python(named, environ), alone=False)
    python = version_of(environment.version)
    if python is not None and python.release[:2] < _OLDEST_PYTHON:
        raise HostError(
            f"Python {environment.version} is too old to be looked into",
            "Torch needs a newer one itself: name an environment with Python 3.6 or newer.",
        )
    torches = tuple(_torches(environment.paths))
    if not torches:
        raise HostError(
            f"{environment.python} has no torch",
            f"Install one: {environment.python} -m pip install torch; or name another environment: "
            "torchsmith doctor --env FOLDER",
        )
    machine = host or read_machine(environ)
    installed = environment.installed()
    built = tuple(_built(installed, torches[0].version))
    neighbours = tuple(module for name, module in _NEIGHBOURS.items() if name in installed)
    probed = probe(
        environment,
        tuple(module for item in built if item.name not in COMPANIONS for module in item.modules),
        timeout,
        only=("companions",),
        loading=Loading(neighbours, tuple(path for item in built for path in item.libraries)),
    )
    places = _bundled(environment, torches[0])
    numpy = installed.get("numpy")
    here = Path.cwd() / "torch/__init__.py"
    return Seen(
        python=str(environment.python),
        version=environment.version,
        prefix=str(environment.prefix),
        host=machine,
        torches=torches,
        imported=_imported(probed.checks),
        facts=probed.facts,
        loaded=probed.loaded,
        checks=probed.checks,
        archs=_archs(torches[0], probed.facts.compiled_for),
        built=built,
        pins=tuple(_pins(installed)),
        numpy=numpy.version if numpy is not None else "",
        openmp=tuple(_openmp(environment, installed)),
        shadowed=tuple(_shadowed(environ, places)),
        libcuda=_libcuda(environ),
        cpu_flags=_cpu_flags(),
        environ={name: environ[name] for name in VARIABLES if name in environ},
        here=str(here.parent) if here.is_file() and str(here.parent) != torches[0].path else "",
        workers=machine.cores if workers is None else workers,
    )


def _imported(checks: Sequence[Check]) -> Check:
    """The check of the import; of a probe that was lost, what became of it."""
    named = {check.name: check for check in checks}
    return named.get("import torch") or checks[0]


def _torches(paths: Sequence[Path]) -> Iterator[FoundTorch]:
    seen: set[str] = set()
    for folder in paths:
        module = folder / "torch"
        real = os.path.realpath(module)
        if real in seen or not (module / "__init__.py").is_file():
            continue
        seen.add(real)
        notes = sorted(folder.glob("torch-*.dist-info"))
        recorded = tuple(path.stem.partition("-")[2] for path in notes)
        yield FoundTorch(str(module), torch_version(module), recorded)


def _within(requirement: Requirement, version: str) -> bool:
    known = version_of(version)
    return known is not None and requirement.specifier.contains(known, prereleases=True)


def _built(installed: Mapping[str, Distribution], torch: str) -> Iterator[Built]:
    """What was compiled against torch, whether it says so or not."""
    for name, item in sorted(installed.items()):
        if name == "torch" or name.startswith("nvidia-"):
            continue
        root = Path(str(item.locate_file("")))
        files = [str(file) for file in item.files or () if looks_shared(file.name)]
        linked = [path for path in files if _mentions_torch(root / path)]
        found = [library for library in read_files(root, linked) if uses_torch(library)]
        if not found and name not in COMPANIONS:
            continue
        needs = requirements(item.requires or ())
        wants = next((one for one in needs if canonicalize_name(one.name) == "torch"), None)
        pinned = wants is not None and bool(str(wants.specifier))
        yield Built(
            name=name,
            version=item.version,
            wants=f"torch{wants.specifier}" if wants is not None and pinned else "",
            fits=wants is None or version_of(torch) is None or _within(wants, torch),
            modules=tuple(_modules(item)),
            libraries=tuple(str(root / library.path) for library in found),
        )


def _modules(item: Distribution) -> list[str]:
    packages = {
        file.parts[0]
        for file in item.files or ()
        if file.name == "__init__.py" and len(file.parts) == 2
    }
    single = {
        file.name.partition(".")[0]
        for file in item.files or ()
        if len(file.parts) == 1 and (file.suffix == ".py" or looks_shared(file.name))
    }
    return sorted(packages or single)


def _mentions_torch(path: Path) -> bool:
    """Whether a file names one of torch's libraries: searching is quicker than parsing them all."""
    try:
        with path.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as view:
            return view.find(b"libc10.so") >= 0 or view.find(b"libtorch") >= 0
    except (OSError, ValueError):
        return False


def _pins(installed: Mapping[str, Distribution]) -> Iterator[Pin]:
    torch = installed.get("torch")
    for requirement in requirements((torch.requires or ()) if torch is not None else ()):
        name = canonicalize_name(requirement.name)
        if not name.startswith("nvidia-"):
            continue
        there = installed.get(name)
        version = there.version if there is not None else ""
        fits = _within(requirement, version)
        yield Pin(name, str(requirement.specifier), version, fits)


def _archs(torch: FoundTorch, reported: tuple[str, ...]) -> tuple[str, ...]:
    """The GPU code that is really in its libraries; else what torch says."""
    root = Path(torch.path)
    names = [path for path in below(root, "lib") if "torch_cuda" in path]
    found = {code for library in read_files(root, names) for code in library.gpu}
    return tuple(sorted(found, key=order)) if found else reported


def _openmp(environment: Environment, installed: Mapping[str, Distribution]) -> Iterator[str]:
    """OpenMP runtimes that lie in the environment, each file once."""
    found = [
        Path(str(item.locate_file(file)))
        for item in installed.values()
        for file in item.files or ()
        if looks_shared(file.name) and openmp_runtime(file.name)
    ]
    # A conda environment keeps the libraries of all its packages in one folder.
    folder = environment.prefix / "lib"
    found += [path for path in _listed(folder) if openmp_runtime(path.name)]
    yield from sorted({os.path.realpath(path) for path in found if path.is_file()})


def _listed(folder: Path) -> list[Path]:
    try:
        return sorted(path for path in folder.iterdir() if looks_shared(path.name))
    except OSError:
        return []


def _bundled(environment: Environment, torch: FoundTorch) -> dict[str, str]:
    """Libraries by name that torch brings, or NVIDIA's packages beside it."""
    beside = Path(torch.path).parent
    folders = [Path(torch.path) / "lib", *sorted(beside.glob("nvidia/*/lib"))]
    folders += [beside / "torch.libs", environment.prefix / "lib"]
    places: dict[str, str] = {}
    for folder in folders:
        for path in _listed(folder):
            places.setdefault(path.name, str(path))
    return places


def _shadowed(environ: Mapping[str, str], bundled: Mapping[str, str]) -> Iterator[Shadowed]:
    """What the loader is told to take before what torch brings."""
    for entry in re.split(r"[:\s]+", environ.get("LD_PRELOAD", "")):
        path = Path(entry)
        if path.is_absolute() and path.name in bundled:
            yield from _other(path, bundled[path.name], "LD_PRELOAD")
    taken: set[str] = set()
    for entry in environ.get("LD_LIBRARY_PATH", "").split(":"):
        for path in _listed(Path(entry)) if entry else ():
            if path.name in bundled and path.name not in taken:
                taken.add(path.name)
                yield from _other(path, bundled[path.name], "LD_LIBRARY_PATH")


def _other(path: Path, bundled: str, variable: str) -> Iterator[Shadowed]:
    real = os.path.realpath(path)
    if real != os.path.realpath(bundled):
        yield Shadowed(path.name, real, bundled, variable)


def _libcuda(environ: Mapping[str, str]) -> tuple[str, str]:
    """The driver's library as the loader finds it, and the version in its file's name."""
    folders = [Path(entry) for entry in environ.get("LD_LIBRARY_PATH", "").split(":") if entry]
    places = [folder / "libcuda.so.1" for folder in folders]
    places += [Path(path) for name, path in library_places() if name == "libcuda.so.1"]
    for place in places:
        real = os.path.realpath(place)
        if found := _LIBCUDA.search(real):
            return real, found[1]
    return "", ""


def _cpu_flags() -> frozenset[str]:
    text = read_text(Path("/proc/cpuinfo")) or ""
    found = re.search(r"^(?:flags|Features)\s*:(.*)$", text, re.MULTILINE)
    return frozenset(found[1].split()) if found else frozenset()

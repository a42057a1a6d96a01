"""Build MAGMA on a CUDA machine without a network, and solve linear systems with it there.

    # both in the repository's own folder
    python -m benchmarks.gpu_magma prepare FOLDER [--archive magma-2.9.0.tar.gz]
    python -m benchmarks.gpu_magma run FOLDER --output OUT --work WORK

`prepare` needs a network and torchsmith: it puts torchsmith's wheel and those it requires, an
OpenBLAS and a bundle with MAGMA's source into FOLDER. The source comes from upstream's address,
or is the release archive named with `--archive`.

`run` needs a CUDA machine with Python's venv module, a C++ compiler and nvcc, and nothing else: run
it with the Python that has the torch. It builds MAGMA from the bundle, compiles gpu_magma.cpp
against the headers and the static library that came of it, and runs that. It prints figures, writes
OUT/gpu-magma.json, and ends with 0 if everything holds. Stopped or killed, it goes on when called
again with the same WORK.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import platform
import shutil
import sys
import tempfile
import time
import zipfile
from pathlib import Path
from typing import Any

from benchmarks.gpu_extension import (
    HERE,
    MACHINE,
    SETTINGS,
    bring_bundles,
    bring_wheels,
    call,
    close,
    described,
    platform_words,
    prepare_arguments,
)

NAME = "gpu-magma"
REPORT = "gpu-magma.json"
ARCHIVE = "magma.tar.gz"
# Solutions of systems that are a thousand by a thousand, in double precision.
ALLOWED = 1e-8

_RECIPE = """\
# Written by benchmarks/gpu_magma.py.
name = "gpu-magma"
torch = {{ release = "{torch}", use = "installed"{environment} }}
python = "{python}"
cuda = "{cuda}"
gpus = ["{gpu}"]

[packages]
magma = true
magma_gpus = "{gpu}"
"""


def write_project(folder: Path, settings: dict[str, Any], environment: str = "") -> None:
    """A folder with the recipe; `environment` is the folder of the one that has the torch."""
    named = f', environment = "{environment}"' if environment else ""
    text = _RECIPE.format(environment=named, **settings)
    if sha256 := settings["sha256"]:
        text += f'magma_archive = "{ARCHIVE}"\nmagma_sha256 = "{sha256}"\n'
    folder.mkdir(parents=True, exist_ok=True)
    (folder / f"{NAME}.toml").write_text(text, encoding="utf-8")


def prepare(folder: Path, settings: dict[str, Any], has: list[str], archive: Path | None) -> None:
    """Put everything the other machine needs into a folder, which is replaced."""
    folder = folder.absolute()
    settings["sha256"] = hashlib.sha256(archive.read_bytes()).hexdigest() if archive else ""
    bring_wheels(folder, settings)
    # MAGMA calls LAPACK: a program that is linked with it needs one, too.
    pip = [sys.executable, "-m", "pip", "--quiet", "download", "--no-deps"]
    call(*pip, *platform_words(settings), "--dest", folder / "openblas", "scipy-openblas32")
    with tempfile.TemporaryDirectory() as place:
        project = Path(place) / "project"
        write_project(project, settings)
        if archive:
            shutil.copy(archive, project / ARCHIVE)
        host = Path(place) / "host.json"
        host.write_text(json.dumps(described(settings, has)), encoding="utf-8")
        bring_bundles(folder, project, (NAME,), host, Path(place) / "store")
    close(folder, {**settings, "has": has})


def nvcc() -> Path:
    """The compiler; its folder's parent is the toolkit."""
    homes = [os.environ.get(name) for name in ("CUDA_HOME", "CUDA_PATH")]
    places = [Path(home, "bin/nvcc") for home in (*homes, "/usr/local/cuda") if home]
    found = shutil.which("nvcc") or next((str(place) for place in places if place.is_file()), "")
    if not found:
        raise SystemExit("nvcc is not installed, or CUDA_HOME does not say where")
    return Path(found)


def lapack(folder: Path, work: Path, log: Path) -> tuple[Path, Path]:
    """The folder of the OpenBLAS that was brought, and an object that gives it LAPACK's names.

    Its own begin with scipy_, so that it can be loaded beside another.
    """
    from benchmarks.gpu_run import spoken

    place = work / "openblas"
    (wheel,) = (folder / "openblas").glob("*.whl")
    with zipfile.ZipFile(wheel) as file:
        file.extractall(place)
    (library,) = place.glob("*/lib/libscipy_openblas.so")
    listed = spoken(["nm", "-D", "--defined-only", library], log).split()
    names = sorted({word for word in listed if word.startswith("scipy_") and word.endswith("_")})
    jump = "b" if platform.machine() == "aarch64" else "jmp"
    after = "" if jump == "b" else "@PLT"
    lines = ['.section .note.GNU-stack,"",%progbits', ".text"]
    for name in names:
        plain = name.removeprefix("scipy_")
        lines += [f".globl {plain}", f".type {plain}, %function"]
        lines += [f"{plain}: {jump} {name}{after}"]
    source = work / "lapack_names.s"
    source.write_text("\n".join(lines) + "\n", encoding="utf-8")
    made = work / "lapack_names.o"
    spoken(["gcc", "-c", source, "-o", made], log)
    return library.parent, made


def program(folder: Path, work: Path, prefix: Path, gpu: str, log: Path) -> Path:
    """Compile gpu_magma.cpp with what was built."""
    from benchmarks.gpu_run import spoken

    blas, names = lapack(folder, work, log)
    made = work / "gpu_magma"
    words: list[str | Path] = [nvcc(), "-O2", f"-arch=sm_{gpu.replace('.', '')}", "-o", made]
    words += [f"-I{prefix}/include", HERE / "gpu_magma.cpp", prefix / "lib/libmagma.a", names]
    words += ["-lcublas", "-lcusparse", f"-L{blas}", "-lscipy_openblas"]
    words += ["-Xcompiler", "-fopenmp", "-Xlinker", f"-rpath={blas}"]
    spoken(words, log)
    return made


def prove(folder: Path, output: Path, work: Path, settings: dict[str, Any]) -> dict[str, Any]:
    """Build MAGMA, then a program with it, then run that; what each came to."""
    from benchmarks.gpu_run import build_steps, install, spoken

    log = output / f"{NAME}.log"
    torchsmith = install(folder, work, output / "install.log")
    write_project(work / "project", settings, sys.prefix)
    steps = (f"compile-magma-{NAME}", f"verify-magma-{NAME}")
    built = build_steps(torchsmith, folder, work, NAME, log, steps)
    place = work / "build" / NAME
    prefix = place / "build" / NAME / "magma-prefix"
    verified = json.loads(
        (place / "verify" / NAME / "magma/libmagma.a.verify.json").read_text("utf-8")
    )
    start = time.monotonic()
    made = program(folder, work, prefix, settings["gpu"], log)
    linked = round(time.monotonic() - start, 1)
    used = json.loads(spoken([made], log).strip().rpartition("\n")[2])
    return {
        "build": built,
        "library bytes": (prefix / "lib/libmagma.a").stat().st_size,
        "code": verified["archs"],
        "verified": verified["rating"],
        "link seconds": linked,
        "use": used,
    }


def run(folder: Path, output: Path, work: Path) -> int:
    """Everything; 0 if all of it holds."""
    from benchmarks.gpu_run import FailedError, look

    folder, output, work = (path.absolute() for path in (folder, output, work))
    settings = json.loads((folder / SETTINGS).read_text("utf-8"))
    look(settings)
    output.mkdir(parents=True, exist_ok=True)
    work.mkdir(parents=True, exist_ok=True)
    report: dict[str, Any] = {"settings": settings, "holds": False}
    try:
        report.update(prove(folder, output, work, settings))
        used = report["use"]
        report["holds"] = (
            report["verified"] == "pass" and used["one"] < ALLOWED and used["batch"] < ALLOWED
        )
        print(f"libmagma.a: {report['library bytes'] >> 20} MiB, {' '.join(report['code'])}")
        print(
            f"MAGMA {used['magma']}: {used['n']} equations in {used['seconds']} s, "
            f"off by {used['one']:.1e}; a batch off by {used['batch']:.1e}; {ALLOWED:.0e} due"
        )
    except (FailedError, OSError, ValueError, KeyError) as error:
        report["failed"] = f"{type(error).__name__}: {error}"
        print(f"x  {report['failed']}")
    (output / REPORT).write_text(json.dumps(report, indent=1) + "\n", encoding="utf-8")
    print("everything holds" if report["holds"] else "something does not hold")
    return 0 if report["holds"] else 1


def main() -> int:
    """Prepare, or run."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    commands = parser.add_subparsers(dest="command", required=True)
    there = commands.add_parser("prepare", help="where there is a network")
    prepare_arguments(there)
    there.add_argument("--archive", type=Path, help="MAGMA's release archive on this machine")
    here = commands.add_parser("run", help="on the CUDA machine")
    here.add_argument("folder", type=Path)
    here.add_argument("--output", type=Path, required=True)
    here.add_argument("--work", type=Path, required=True)
    given = parser.parse_args()
    if given.command == "run":
        return run(given.folder, given.output, given.work)
    settings = {name: getattr(given, name) for name in MACHINE}
    prepare(given.folder, settings, given.has, given.archive)
    return 0


if __name__ == "__main__":
    sys.exit(main())

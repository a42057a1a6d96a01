"""Is what `torchsmith fits` says true? Wheels against torches that are really installed.

    python -m benchmarks.fits WHEELS [--torch RELEASE ...] [--work FOLDER] [--beside FOLDER]
                                     [--only-load]

WHEELS is a folder of wheels for this machine and this Python: packages that were built against
some torch, and torches that no index has. A torch that is named by its release is installed with
all it requires, and removed before the next one comes: 8 GB for one with CUDA. Every package is
installed beside every torch with uv, each of its libraries is loaded as Python loads it, and the
package is imported. Nothing is counted where a library is missing that is neither torch's nor the
package's own. The folder given with --beside has what packages import, and what a torch of WHEELS
requires (numpy, typing_extensions and others).

With --only-load nothing is imported: torch's own libraries are loaded, then the package's. That
takes a tenth of the time, and is all that `fits` speaks of.
"""

from __future__ import annotations

import argparse
import json
import shutil
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Iterator, Sequence
from pathlib import Path

from msgspec import Struct
from packaging.utils import parse_wheel_filename

from torchsmith.facts.files import Facts
from torchsmith.facts.ranges import version_range
from torchsmith.verify.binary import looks_shared
from torchsmith.verify.fits import (
    Subject,
    alternatives,
    is_torch_library,
    judge_releases,
    read_subject,
)

# One process imports torch; each package is tried in a child of it, which nothing survives.
_TRIAL = """
import ctypes, importlib, json, os, sys
only_load = sys.argv[1:]
if only_load:
    for name in ("c10", "torch_cpu", "torch", "torch_python"):
        ctypes.CDLL(os.path.join(only_load[0], "torch/lib/lib%s.so" % name))
else:
    import torch
for line in sys.stdin:
    folder, libraries, modules = json.loads(line)
    child = os.fork()
    if child:
        os.waitpid(child, 0)
        continue
    sys.path.insert(0, folder)
    found, imported = {}, {}
    # Again while it helps: a package loads first what others of its libraries need.
    pending = list(libraries)
    for _ in libraries:
        for path in pending:
            try:
                ctypes.CDLL(os.path.join(folder, path))
                found[path] = ""
            except OSError as error:
                found[path] = str(error)
        pending = [path for path in libraries if found[path]]
    for name in () if only_load else modules:
        try:
            importlib.import_module(name)
            imported[name] = ""
        except BaseException as error:
            imported[name] = type(error).__name__ + ": " + str(error)
    print("TRIED " + json.dumps([folder, found, imported]), flush=True)
    os._exit(0)
"""
# The loader's words start with the name of what it did not find.
_ELSEWHERE = "cannot open shared object file"


class Pair(Struct, frozen=True):
    """A package and a torch: what was said, and what is so (`None`: it cannot be told here)."""

    package: str
    torch: str
    said: bool
    symbol: str
    loads: bool | None
    detail: str
    imported: dict[str, str]


def install(wanted: Path | str, folder: Path, *options: str) -> None:
    """Install a wheel or a release into a folder; what is fetched is not kept elsewhere."""
    uv = [sys.executable, "-m", "uv", "pip", "install", "--quiet", "--no-cache", *options]
    subprocess.run([*uv, "--python", sys.executable, "--target", folder, wanted], check=True)


def bring_torch(torch: Path | str, folder: Path, *, only_load: bool) -> str:
    """Install a torch, by its file or its release; return its release."""
    if isinstance(torch, str):
        install(f"torch=={torch}", folder)
        return torch
    unpack(torch, folder) if only_load else install(torch, folder, "--no-deps")
    return parse_wheel_filename(torch.name)[1].public


def really_loads(subject: Subject, found: dict[str, str]) -> tuple[bool | None, str]:
    """Whether the loader took one of each group of libraries that stand for each other."""
    if not subject.parts:
        return None, "takes nothing from torch"
    detail = ""
    unknown = False
    for group in alternatives(subject.parts):
        errors = [found[part.path] for part in group]
        if not all(errors):
            continue
        own = [
            text
            for text in errors
            if _ELSEWHERE not in text or is_torch_library(text.partition(":")[0])
        ]
        if len(own) == len(errors):
            return False, own[0]
        unknown, detail = True, errors[0]
    return (None if unknown else True), detail


def unpack(wheel: Path, folder: Path) -> None:
    """Unpack the libraries of a wheel, which is enough to load them."""
    with zipfile.ZipFile(wheel) as archive:
        for name in filter(looks_shared, archive.namelist()):
            archive.extract(name, folder)


def trials(
    torch: Path | str,
    subjects: Sequence[tuple[Subject, Path]],
    beside: str,
    work: Path,
    *,
    only_load: bool,
) -> Iterator[Pair]:
    """Try every package with one torch."""
    with tempfile.TemporaryDirectory(dir=work) as folder:
        release = bring_torch(torch, Path(folder), only_load=only_load)
        asked = "".join(
            json.dumps([str(place), [part.path for part in item.parts], item.wheel.modules]) + "\n"
            for item, place in subjects
        )
        done = subprocess.run(
            [sys.executable, "-c", _TRIAL, *([folder] if only_load else [])],
            input=asked,
            stdout=subprocess.PIPE,
            text=True,
            check=True,
            env={"PATH": "/usr/bin:/bin", "PYTHONPATH": f"{folder}:{beside}"},
        )
    lines = (line for line in done.stdout.splitlines() if line.startswith("TRIED "))
    tried = {folder: rest for folder, *rest in (json.loads(line[6:]) for line in lines)}
    for item, place in subjects:
        said = judge_releases(item, Facts(), version_range(release))[0]
        name = f"{item.wheel.name} {item.wheel.version}"
        if str(place) not in tried:
            yield Pair(name, release, said.fits, said.symbol, None, "the trial crashed", {})
            continue
        found, imported = tried[str(place)]
        loads, detail = really_loads(item, found)
        yield Pair(name, release, said.fits, said.symbol, loads, detail, imported)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the program; 0: nothing said was wrong, 1: something was."""
    parser = argparse.ArgumentParser(description="Hold `torchsmith fits` against reality.")
    parser.add_argument("wheels", type=Path, help="a folder of packages, and of torches")
    parser.add_argument(
        "--torch", action="append", default=[], help="a release on the index; may be repeated"
    )
    parser.add_argument("--beside", default="", help="a folder with what is imported besides")
    parser.add_argument("--only-load", action="store_true", help="import nothing")
    parser.add_argument("--work", type=Path, help="where packages are installed")
    options = parser.parse_args(arguments)
    files = sorted(options.wheels.glob("*.whl"))
    torches = [file for file in files if file.name.startswith("torch-")]
    work = Path(tempfile.mkdtemp(dir=options.work))
    pairs: list[Pair] = []
    try:
        subjects = []
        for file in files:
            if file not in torches:
                if options.only_load:
                    unpack(file, work / file.name)
                else:
                    install(file, work / file.name, "--no-deps")
                subjects.append((read_subject(file), work / file.name))
        for torch in [*torches, *options.torch]:
            beside, only_load = options.beside, options.only_load
            for pair in trials(torch, subjects, beside, work, only_load=only_load):
                pairs.append(pair)
                print(json.dumps(pair_line(pair)), flush=True)
    finally:
        shutil.rmtree(work)
    known = [pair for pair in pairs if pair.loads is not None]
    wrong = [pair for pair in known if pair.loads != pair.said]
    fit = sum(pair.said for pair in known)
    print(f"{len(known)} pairs: {fit} fit, {len(known) - fit} do not; {len(wrong)} wrong")
    print(f"{len(pairs) - len(known)} pairs could not be tried here")
    return 1 if wrong else 0


def pair_line(pair: Pair) -> dict[str, object]:
    """What is printed of a pair."""
    verdict = {None: "untold", pair.said: "right"}.get(pair.loads, "WRONG")
    failed = [text for text in pair.imported.values() if text]
    return {
        "verdict": verdict,
        "package": pair.package,
        "torch": pair.torch,
        "said": pair.said,
        "symbol": pair.symbol,
        "detail": pair.detail[:300],
        "import": failed[0][:200] if failed else "",
    }


if __name__ == "__main__":
    sys.exit(main())

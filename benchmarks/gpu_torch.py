"""Build PyTorch with CUDA on a machine without a network, in pieces of time, and train with it.

    # all in the repository's own folder
    python -m benchmarks.gpu_torch prepare FOLDER
    python -m benchmarks.gpu_torch keep FOLDER/00 PLACE       # on the CUDA machine, for each piece
    python -m benchmarks.gpu_torch run PLACE --output OUT --work WORK [--seconds 540]

`prepare` needs a network, apt and torchsmith. It collects torchsmith's wheel and those it requires,
the Debian packages with the libraries that Debian's torch source is built with, and a bundle for
one recipe: torch 2.6.0 from Debian's source with CUDA, cuDNN, NCCL and distributed, and torchvision
on it. FOLDER then holds all of it in numbered pieces, each small enough to travel alone.

`keep` puts a piece into PLACE. The last one to arrive has them joined, their hash checked, and
unpacked.

`run` needs a CUDA machine with the toolkit, cuDNN and NCCL installed, Python with its venv module
and a torch with NVIDIA's wheels, a C++ compiler, and root where a Debian package is missing. It
builds the recipe from the bundle with `torchsmith build`, uses torch and torchvision on the GPU,
has pip install them from an index beside NVIDIA's wheels, and trains (benchmarks/gpu_ship.py). Then
it compares what nvcc's files took with plain nvcc, runs PyTorch's own tests of that release, and
measures it against the torch of the Python that runs this. All of that goes on in a
session of its own, which `run` waits for: after `--seconds` it says how far it is, and called again
it waits on. It copies report and logs to OUT, and ends with 0 if everything holds, with 3 if there
is more to do.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import shutil
import subprocess
import sys
import tarfile
import tempfile
from pathlib import Path
from typing import Any

from benchmarks.gpu_extension import (
    SETTINGS,
    bring_bundles,
    bring_wheels,
    call,
    described,
    platform_words,
)

NAME = "gpu-torch"
PIECES = "pieces.json"
PIECE_MIB = 48
KEYS = "/usr/share/keyrings/debian-archive-keyring.gpg"

_RECIPE = """\
# Written by benchmarks/gpu_torch.py.
name = "gpu-torch"
torch = "{torch}"
python = "{python}"
gpus = ["{gpu}"]
profile = "minimal"

[cuda]
version = "{cuda}"
toolkit = "system"

[features]
cudnn = "on"
distributed = "on"
gloo = "on"
nccl = "system"

[companions]
vision = "{vision}"

[source]
kind = "debian"
suite = "{suite}"
"""

# What PyTorch's own tests import, and what torchvision does.
TESTERS = ("pytest", "pytest-xdist", "expecttest", "hypothesis", "psutil", "numpy<2.3", "pillow")
# What torch requires beside NVIDIA's wheels.
REQUIRED = (
    "filelock",
    "typing-extensions",
    "networkx",
    "jinja2",
    "fsspec",
    "sympy==1.13.1",
    "setuptools<81",
)


def write_project(folder: Path, settings: dict[str, Any], libraries: str = "system") -> Path:
    """A folder with the recipe; `libraries` is whose the wheel is to load."""
    folder.mkdir(parents=True, exist_ok=True)
    file = folder / f"{NAME}.toml"
    packages = f'\n[packages]\nlibraries = "{libraries}"\n' if libraries != "system" else ""
    file.write_text(_RECIPE.format(**settings) + packages, encoding="utf-8")
    return file


# ------------------------------------------------------------------ where there is a network


def packages_wanted(recipe: Path, host: Path) -> list[str]:
    """The Debian packages the plan asks for."""
    words = [sys.executable, "-m", "torchsmith", "plan", recipe, "--host", host, "--json"]
    told = subprocess.run(
        [str(word) for word in words], check=True, stdout=subprocess.PIPE, text=True
    ).stdout
    details = [dict(step.get("details") or {}) for step in json.loads(told)["steps"]]
    named = [item.get("system packages", "") for item in details]
    # NCCL comes with the machine, as CUDA does.
    return sorted({word for text in named for word in text.split() if "nccl" not in word})


def bring_packages(folder: Path, names: list[str], settings: dict[str, Any]) -> None:
    """Download packages for another machine and what they depend on; apt checks the signatures."""
    machine = {"linux-x86_64": "amd64", "linux-aarch64": "arm64"}[settings["platform"]]
    with tempfile.TemporaryDirectory() as place:
        home = Path(place)
        for name in ("lists/partial", "cache/archives/partial"):
            (home / name).mkdir(parents=True)
        (home / "status").touch()
        (home / "sources.list").write_text(
            f"deb [signed-by={KEYS} arch={machine}] {settings['mirror']} {settings['libraries']} "
            "main\n"
        )
        options = {
            "Dir::Etc::SourceList": home / "sources.list",
            "Dir::Etc::SourceParts": "/dev/null",
            "Dir::State::Lists": home / "lists",
            "Dir::State::Status": home / "status",
            "Dir::Cache": home / "cache",
            "APT::Architecture": machine,
            "APT::Architectures": machine,
            "APT::Sandbox::User": "root",
            "APT::Install-Recommends": "false",
        }
        apt = ["apt-get", "-qq"]
        apt += [word for name, value in options.items() for word in ("-o", f"{name}={value}")]
        call(*apt, "update")
        call(*apt, "install", "--yes", "--download-only", *names)
        folder.mkdir(parents=True)
        for file in sorted((home / "cache/archives").glob("*.deb")):
            # A colon is no character for every file system.
            shutil.copy(file, folder / file.name.replace("%3a", "_"))


def cut(folder: Path, into: Path) -> None:
    """Cut all that lies in a folder into numbered pieces."""
    archive = into / "all.tar"
    with tarfile.open(archive, "w") as tar:
        for path in sorted(folder.iterdir()):
            tar.add(path, arcname=path.name)
    whole = hashlib.sha256()
    count = 0
    with archive.open("rb") as file:
        while data := file.read(PIECE_MIB << 20):
            whole.update(data)
            place = into / f"{count:02}"
            place.mkdir()
            (place / "piece").write_bytes(data)
            count += 1
    told = json.dumps({"count": count, "sha256": whole.hexdigest()})
    for place in into.iterdir():
        if place.is_dir():
            (place / PIECES).write_text(told, encoding="utf-8")
    print(f"{archive.stat().st_size / (1 << 20):.1f} MiB in {count} pieces")
    archive.unlink()


def prepare(folder: Path, settings: dict[str, Any]) -> None:
    """Put everything the other machine needs into a folder, which is replaced."""
    folder = folder.absolute()
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    with tempfile.TemporaryDirectory() as place:
        whole, project = Path(place) / "whole", Path(place) / "project"
        bring_wheels(whole, settings)
        pip = [sys.executable, "-m", "pip", "--quiet", "download", *platform_words(settings)]
        call(*pip, "--dest", whole / "testers", *TESTERS, *REQUIRED)
        recipe = write_project(project, settings)
        host = Path(place) / "host.json"
        machine = {**described(settings, []), "torches": []}
        host.write_text(json.dumps(machine), encoding="utf-8")
        bring_packages(whole / "packages", packages_wanted(recipe, host), settings)
        bring_bundles(whole, project, (NAME,), host, Path(place) / "store")
        if settings.get("examples"):
            shutil.copytree(settings.pop("examples"), whole / "examples")
        (whole / SETTINGS).write_text(json.dumps(settings, indent=1) + "\n", encoding="utf-8")
        for path in sorted(whole.rglob("*")):
            if path.is_file() and path.stat().st_size >> 20:
                print(f"{path.stat().st_size / (1 << 20):8.2f} MiB  {path.relative_to(whole)}")
        cut(whole, folder)


# ------------------------------------------------------------------- on the CUDA machine


def keep(piece: Path, place: Path) -> bool:
    """Put one piece with the others; join and unpack them if it was the last: then it is true."""
    place.mkdir(parents=True, exist_ok=True)
    told = json.loads((piece / PIECES).read_text("utf-8"))
    if (place / SETTINGS).is_file():
        return True
    shutil.copy(piece / "piece", place / f"piece-{piece.name}")
    here = sorted(place.glob("piece-*"))
    print(f"{len(here)} of {told['count']} pieces are here")
    if len(here) < told["count"]:
        return False
    whole = hashlib.sha256()
    archive = place / "all.tar"
    with archive.open("wb") as file:
        for path in here:
            data = path.read_bytes()
            whole.update(data)
            file.write(data)
    if whole.hexdigest() != told["sha256"]:
        raise SystemExit("the pieces do not make what was cut: bring them again")
    with tarfile.open(archive) as tar:
        tar.extractall(place, filter="data")
    for path in (*here, archive):
        path.unlink()
    return True


def main() -> int:
    """Prepare, keep a piece, or run."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    commands = parser.add_subparsers(dest="command", required=True)
    there = commands.add_parser("prepare", help="where there is a network")
    there.add_argument("folder", type=Path)
    for name, default in (
        ("torch", "2.6.0"),
        ("vision", "0.21.0"),
        ("suite", "trixie"),
        ("cuda", "13.0"),
        ("python", "3.12"),
        ("gpu", "9.0"),
        ("gcc", "13.3.0"),
        ("glibc", "2.39"),
        ("platform", "linux-x86_64"),
        # The oldest whose libraries this torch is built with: they run on any newer glibc.
        ("libraries", "bookworm"),
        ("mirror", "http://deb.debian.org/debian"),
        # A checkout of github.com/pytorch/examples, to train with.
        ("examples", ""),
    ):
        there.add_argument(f"--{name}", default=default)
    piece = commands.add_parser("keep", help="on the CUDA machine, for each piece")
    piece.add_argument("piece", type=Path)
    piece.add_argument("place", type=Path)
    here = commands.add_parser("run", help="on the CUDA machine")
    here.add_argument("--output", type=Path, required=True)
    here.add_argument("--seconds", type=float, default=540)
    inner = commands.add_parser("go", help="what `run` starts")
    for parsed in (here, inner):
        parsed.add_argument("folder", type=Path)
        parsed.add_argument("--work", type=Path, required=True)
    given = parser.parse_args()
    if given.command == "prepare":
        chosen = vars(given).items()
        prepare(given.folder, {key: text for key, text in chosen if isinstance(text, str)})
        return 0
    if given.command == "keep":
        keep(given.piece, given.place)
        return 0
    from benchmarks.gpu_torch_run import go, run

    if given.command == "go":
        return go(given.folder.absolute(), given.work.absolute())
    return run(given.folder, given.output, given.work, given.seconds)


if __name__ == "__main__":
    sys.exit(main())

"""Build CUDA code against an installed torch on a machine without a network, and prove it there.

    # both in the repository's own folder
    python -m benchmarks.gpu_extension prepare FOLDER [--torch 2.11.0 --cuda 13.0 --python 3.12]
    python -m benchmarks.gpu_extension run FOLDER --output OUT --work WORK

`prepare` needs a network and torchsmith: it puts torchsmith's wheel and those it requires, and a
bundle for each of two recipes, into FOLDER. One recipe builds the extension in gpu_ops beside this
file, the other torchvision from source. What the other machine has beside its torch is assumed
(`--has`), or read from what `torchsmith doctor RECIPE --json` wrote there (`--host`).

`run` needs a CUDA machine with that torch, Python's venv module, a C++ compiler and nvcc, and
nothing else: run it with the Python that has the torch. It installs torchsmith from FOLDER, builds
both recipes from their bundles, uses what was built on the GPU and on the CPU, and looks for the
code that is inside. It prints figures, writes OUT/gpu-extension.json, and ends with 0 if everything
holds.
"""

from __future__ import annotations

import argparse
import json
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
LIMIT_MIB = 60
NAMES = ("gpu-ops", "gpu-vision")
SETTINGS = "settings.json"
# Large, and certain to be beside a torch that has its torchvision: they need not travel.
HAS = ("numpy==2.1.0", "pillow==11.0.0", "scipy==1.15.0")

_RECIPE = """\
# Written by benchmarks/gpu_extension.py.
name = "{name}"
torch = {{ release = "{torch}", use = "installed"{environment} }}
python = "{python}"
cuda = "{cuda}"
gpus = ["{gpu}"]
"""
_PARTS = {
    "gpu-ops": """
[[companions.extension]]
name = "gpu-ops"
folder = "gpu_ops"
check = "import gpu_ops; assert gpu_ops.row_sums(torch.ones(2, 3)).tolist() == [3.0, 3.0]"
""",
    # Made for another torch: the newest of which the whole source is in Debian.
    "gpu-vision": """
[build.env]
TORCHVISION_USE_NVJPEG = "0"
TORCHVISION_USE_VIDEO_CODEC = "0"
TORCHVISION_USE_FFMPEG = "0"

[companions]
vision = "{vision}"
unmatched = true

[source]
kind = "auto"
""",
}


def recipe(name: str, settings: dict[str, Any], environment: str = "") -> str:
    """One of the two recipes; `environment` is the folder of the one that has the torch."""
    named = f', environment = "{environment}"' if environment else ""
    text = _RECIPE.format(name=name, environment=named, **settings)
    return text + _PARTS[name].format(**settings)


def write_project(folder: Path, settings: dict[str, Any], environment: str = "") -> None:
    """A folder with both recipes and the extension's sources."""
    folder.mkdir(parents=True, exist_ok=True)
    for name in NAMES:
        text = recipe(name, settings, environment)
        (folder / f"{name}.toml").write_text(text, encoding="utf-8")
    shutil.rmtree(folder / "gpu_ops", ignore_errors=True)
    ignore = shutil.ignore_patterns("__pycache__", "build", "*.egg-info")
    shutil.copytree(HERE / "gpu_ops", folder / "gpu_ops", ignore=ignore)


def described(settings: dict[str, Any], has: list[str]) -> dict[str, Any]:
    """The other machine as far as a plan for it depends on it; the paths are never opened here."""
    label = "cu" + settings["cuda"].replace(".", "")
    beside = dict(text.split("==") for text in has)
    python = f"{settings['python']}.0"
    return {
        "platform": settings["platform"],
        "libc": {"kind": "glibc", "version": settings["glibc"]},
        "pythons": [{"version": python, "path": "/usr/bin/python3", "headers": True}],
        "compilers": [
            {
                "kind": "gcc",
                "version": settings["gcc"],
                "path": "/usr/bin/gcc",
                "cxx": "/usr/bin/g++",
            }
        ],
        "cuda": [
            {
                "version": settings["cuda"],
                "path": "/usr/local/cuda",
                "nvcc": "/usr/local/cuda/bin/nvcc",
            }
        ],
        "torches": [
            {
                "version": f"{settings['torch']}+{label}",
                "cuda": settings["cuda"],
                "python": python,
                "path": "/usr/bin/python3",
                "module": "/usr/lib/python3/torch",
                "packages": ["/usr/lib/python3"],
                "beside": beside,
            }
        ],
    }


def call(*words: str | Path, folder: Path | None = None) -> None:
    """Run a program to its end; what it says is shown."""
    print("$", " ".join(map(str, words)), flush=True)
    done = subprocess.run([str(word) for word in words], cwd=folder, check=False)
    if done.returncode:
        raise SystemExit(f"{words[0]} failed with {done.returncode}")


def platform_words(settings: dict[str, Any]) -> list[str]:
    """What tells pip of another machine."""
    machine = settings["platform"].partition("-")[2]
    minors = range(int(settings["glibc"].split(".")[1]), 16, -1)
    names = [*(f"manylinux_2_{minor}_{machine}" for minor in minors), f"manylinux2014_{machine}"]
    words = [word for name in names for word in ("--platform", name)]
    return ["--only-binary", ":all:", "--python-version", settings["python"], *words]


def bring_wheels(folder: Path, settings: dict[str, Any], *others: str) -> None:
    """Replace a folder with one that has torchsmith's wheel, those it requires, and others."""
    shutil.rmtree(folder, ignore_errors=True)
    wheels = folder / "wheels"
    wheels.mkdir(parents=True)
    pip = [sys.executable, "-m", "pip", "--quiet"]
    call(*pip, "wheel", "--no-deps", "--wheel-dir", wheels, HERE.parent)
    (own,) = wheels.glob("torchsmith-*.whl")
    call(*pip, "download", *platform_words(settings), "--dest", wheels, own, *others)


def bring_bundles(
    folder: Path, project: Path, names: tuple[str, ...], host: Path, store: Path
) -> None:
    """Write a bundle for each of a project's recipes, for the machine `host` describes."""
    for name in names:
        words: list[str | Path] = ["-m", "torchsmith", "bundle", f"{name}.toml", "--host", host]
        words += ["--store", store, "--output", folder / f"{name}.bundle"]
        call(sys.executable, *words, folder=project)


def close(folder: Path, settings: dict[str, Any]) -> None:
    """Keep the settings with the rest, and say how much it all is."""
    (folder / SETTINGS).write_text(json.dumps(settings, indent=1) + "\n", encoding="utf-8")
    total = 0
    for path in sorted(folder.rglob("*")):
        if path.is_file():
            size = path.stat().st_size
            total += size
            print(f"{size / (1 << 20):8.2f} MiB  {path.relative_to(folder)}")
    print(f"{total / (1 << 20):8.2f} MiB in all")
    if total > LIMIT_MIB << 20:
        raise SystemExit(f"that is more than {LIMIT_MIB} MiB: say with --has what is there already")


def prepare(folder: Path, settings: dict[str, Any], has: list[str], host: Path | None) -> None:
    """Put everything the other machine needs into a folder, which is replaced."""
    folder = folder.absolute()
    bring_wheels(folder, settings)
    with tempfile.TemporaryDirectory() as place:
        project = Path(place) / "project"
        write_project(project, settings)
        described_in = Path(place) / "host.json"
        described_in.write_text(json.dumps(described(settings, has)), encoding="utf-8")
        machine = host.absolute() if host is not None else described_in
        bring_bundles(folder, project, NAMES, machine, Path(place) / "store")
    close(folder, {**settings, "has": [] if host is not None else has})


MACHINE = ("torch", "cuda", "python", "gpu", "gcc", "glibc", "platform")


def prepare_arguments(there: argparse.ArgumentParser) -> None:
    """What is said of the other machine."""
    there.add_argument("folder", type=Path)
    there.add_argument("--torch", default="2.11.0")
    there.add_argument("--cuda", default="13.0")
    there.add_argument("--python", default="3.12")
    there.add_argument("--gpu", default="9.0", help="its compute capability")
    there.add_argument("--gcc", default="13.3.0")
    there.add_argument("--glibc", default="2.39")
    there.add_argument("--platform", default="linux-x86_64")
    there.add_argument(
        "--has", nargs="*", default=list(HAS), help="NAME==VERSION beside the torch there"
    )


def main() -> int:
    """Prepare, or run."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    commands = parser.add_subparsers(dest="command", required=True)
    there = commands.add_parser("prepare", help="where there is a network")
    prepare_arguments(there)
    there.add_argument("--vision", default="0.21.0")
    there.add_argument("--host", type=Path, help="what doctor --json wrote there, instead of --has")
    here = commands.add_parser("run", help="on the CUDA machine")
    here.add_argument("folder", type=Path)
    here.add_argument("--output", type=Path, required=True)
    here.add_argument("--work", type=Path, required=True)
    given = parser.parse_args()
    if given.command == "prepare":
        settings = {name: getattr(given, name) for name in (*MACHINE, "vision")}
        prepare(given.folder, settings, given.has, given.host)
        return 0
    from benchmarks.gpu_run import run

    return run(given.folder, given.output, given.work)


if __name__ == "__main__":
    sys.exit(main())

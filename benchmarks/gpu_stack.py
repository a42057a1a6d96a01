"""Build a stack of CUDA packages on a machine without a network, and use, publish and lock it.

    # both in the repository's own folder
    python -m benchmarks.gpu_stack prepare FOLDER [--packages torch-scatter causal-conv1d ...]
    python -m benchmarks.gpu_stack run FOLDER --output OUT --work WORK

`prepare` needs a network and torchsmith: it puts torchsmith's wheel and those it requires, and a
bundle of a recipe with a [stack], into FOLDER. `run` needs a CUDA machine with that torch, as for
gpu_extension.py. It builds the stack from the bundle, which tries each package on the GPU,
publishes it and locks it. Then it installs everything from the lock into an empty folder, and once
more from the index, and holds what the packages compute on the GPU against the CPU. It prints
figures, writes OUT/gpu-stack.json, and ends with 0 if everything holds. Called again with the same
WORK it goes on where it was stopped.
"""

from __future__ import annotations

import argparse
import json
import shutil
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from benchmarks.gpu_extension import (
    MACHINE,
    SETTINGS,
    bring_bundles,
    bring_wheels,
    close,
    described,
    prepare_arguments,
)

NAME = "gpu-stack"
REPORT = f"{NAME}.json"
# What compiles in a few minutes, and requires little else.
PACKAGES = ("torch-scatter", "torch-spline-conv", "torch-cluster")

_RECIPE = """\
# Written by benchmarks/gpu_stack.py.
name = "{name}"
torch = {{ release = "{torch}", use = "installed"{environment} }}
python = "{python}"
cuda = "{cuda}"
gpus = ["{gpu}"]

[publish]
index = "index"

[stack]
"""


def write_project(folder: Path, settings: dict[str, Any], environment: str = "") -> None:
    """A folder with the recipe; `environment` is the folder of the one that has the torch."""
    folder.mkdir(parents=True, exist_ok=True)
    named = f', environment = "{environment}"' if environment else ""
    text = _RECIPE.format(name=NAME, environment=named, **settings)
    text += "".join(f'{name} = "match"\n' for name in settings["packages"])
    (folder / f"{NAME}.toml").write_text(text, encoding="utf-8")


def prepare(folder: Path, settings: dict[str, Any], has: list[str]) -> None:
    """Put everything the other machine needs into a folder, which is replaced."""
    folder = folder.absolute()
    # uv installs from a pylock.toml; the pip there may not.
    bring_wheels(folder, settings, "uv")
    with tempfile.TemporaryDirectory() as place:
        project = Path(place) / "project"
        write_project(project, settings)
        host = Path(place) / "host.json"
        host.write_text(json.dumps(described(settings, has)), encoding="utf-8")
        bring_bundles(folder, project, (NAME,), host, Path(place) / "store")
    close(folder, {**settings, "has": has})


def run(folder: Path, output: Path, work: Path) -> int:
    """Everything, as far as it goes; 0 if all of it holds."""
    from benchmarks.gpu_run import FailedError, install, look

    folder, output, work = (path.absolute() for path in (folder, output, work))
    settings = json.loads((folder / SETTINGS).read_text("utf-8"))
    look(settings)
    output.mkdir(parents=True, exist_ok=True)
    work.mkdir(parents=True, exist_ok=True)
    report: dict[str, Any] = {"settings": settings, "python": sys.version, "holds": False}
    try:
        torchsmith = install(folder, work, output / "install.log", "uv")
        write_project(work / "project", settings, sys.prefix)
        _prove(report, torchsmith, folder, work, output)
    except (FailedError, OSError, ValueError, KeyError) as error:
        report["failed"] = f"{type(error).__name__}: {error}"
        print(f"x  {report['failed']}", flush=True)
    (output / REPORT).write_text(json.dumps(report, indent=1) + "\n", encoding="utf-8")
    print("everything holds" if report["holds"] else "something does not hold")
    return 0 if report["holds"] else 1


def _prove(
    report: dict[str, Any], torchsmith: Path, folder: Path, work: Path, output: Path
) -> None:
    """Build, look inside, install both ways, use: each part is reported as soon as it is there."""
    from benchmarks.gpu_run import build_steps, built_with, checked, cuobjdump, spoken

    settings = report["settings"]
    wanted = "sm_" + settings["gpu"].replace(".", "")
    log = output / f"{NAME}.log"
    report["build"] = build_steps(torchsmith, folder, work, NAME, log)
    dist = work / "build" / NAME / "dist" / NAME
    wheels = sorted(dist.glob("*.whl"))
    report["wheels"] = {
        wheel.name: {"bytes": wheel.stat().st_size, "code": cuobjdump(wheel, log)}
        for wheel in wheels
    }
    coded = all(wanted in (item["code"] or [wanted]) for item in report["wheels"].values())
    for name, item in report["wheels"].items():
        print(f"  {name}: {item['bytes']} bytes, code {item['code']}", flush=True)
    shutil.copy(dist / "pylock.toml", output)

    pages = sorted((work / "project/index/simple").glob("*/index.json"))
    listed = {file["filename"] for page in pages for file in json.loads(page.read_bytes())["files"]}
    report["published"] = sorted(listed)
    complete = listed >= {wheel.name for wheel in wheels}

    python = built_with(work, NAME)
    uv: list[str | Path] = [work / "torchsmith/bin/uv", "pip", "install", "--offline", "--quiet"]
    index = (work / "project/index/simple").as_uri()
    installs: dict[str, list[str | Path]] = {
        "lock": ["--requirements", dist / "pylock.toml"],
        # What they require lies beside the torch, and is in no index here.
        "index": ["--no-deps", "--default-index", index, *settings["packages"]],
    }
    report["use"] = {}
    for way, words in installs.items():
        place = work / "use" / way
        shutil.rmtree(place, ignore_errors=True)
        start = time.monotonic()
        spoken([*uv, "--python", python, "--target", place, *words], log)
        env = {"PYTHONPATH": str(place)}
        used = [checked(python, name, log, env) for name in settings["packages"]]
        report["use"][way] = {"seconds": round(time.monotonic() - start, 1), "packages": used}
    checks = [
        check
        for way in report["use"].values()
        for used in way["packages"]
        for check in used["checks"]
    ]
    good = sum(check["holds"] for check in checks)
    for check in checks:
        if not check["holds"]:
            print(f"  x  {check['check']}: off by {check['worst']:.2g}")
    report["holds"] = bool(checks) and good == len(checks) and coded and complete
    print(
        f"{len(wheels)} wheels built in {report['build']['seconds']} s, {len(listed)} published, "
        f"{good} of {len(checks)} checks hold, code {'as asked' if coded else 'MISSING'}",
        flush=True,
    )


def main() -> int:
    """Prepare, or run."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    commands = parser.add_subparsers(dest="command", required=True)
    there = commands.add_parser("prepare", help="where there is a network")
    prepare_arguments(there)
    there.add_argument("--packages", nargs="+", default=list(PACKAGES))
    here = commands.add_parser("run", help="on the CUDA machine")
    here.add_argument("folder", type=Path)
    here.add_argument("--output", type=Path, required=True)
    here.add_argument("--work", type=Path, required=True)
    given = parser.parse_args()
    if given.command == "prepare":
        settings = {name: getattr(given, name) for name in (*MACHINE, "packages")}
        prepare(given.folder, settings, given.has)
        return 0
    return run(given.folder, given.output, given.work)


if __name__ == "__main__":
    sys.exit(main())

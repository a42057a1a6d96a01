"""The part of gpu_torch.py that runs on the CUDA machine, where there is only Python itself."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import subprocess
import sys
import tarfile
import time
from pathlib import Path
from typing import Any

from benchmarks import gpu_ship
from benchmarks.gpu_extension import HERE, SETTINGS
from benchmarks.gpu_run import FailedError, checked, follow_build, install, spoken
from benchmarks.gpu_torch import NAME, TESTERS, write_project

REPORT = "gpu-torch.json"
PROGRESS = "progress.log"
UNFINISHED = 3
_SUITES = ("test_torch.py", "test_cuda.py", "test_nn.py")


def install_packages(folder: Path, log: Path) -> list[str]:
    """Install the packages that are not here under their own name or Ubuntu's; which they were."""
    asked = subprocess.run(
        ["dpkg-query", "--show", "--showformat=${Package}\n"],
        check=True,
        stdout=subprocess.PIPE,
        text=True,
    )
    # Ubuntu 24.04 and Debian 13 renamed libraries: libssl3 is libssl3t64.
    here = {name.removesuffix("t64") for name in asked.stdout.split()}
    files = [
        file for file in sorted(folder.glob("*.deb")) if file.name.partition("_")[0] not in here
    ]
    if files:
        # Another distribution's: what they depend on is here under other names.
        words = ["dpkg", "--install", "--force-depends", "--force-overwrite", *map(str, files)]
        with log.open("w", encoding="utf-8") as file:
            done = subprocess.run(
                words,
                check=False,
                stdout=file,
                stderr=subprocess.STDOUT,
                env={**os.environ, "DEBIAN_FRONTEND": "noninteractive"},
            )
        if done.returncode:
            print(f"dpkg ended with {done.returncode}: see {log}", flush=True)
    return [file.name.partition("_")[0] for file in files]


def build(
    torchsmith: Path, folder: Path, recipe: Path, work: Path, log: Path, *steps: str
) -> dict[str, Any]:
    """Build all of it, or these steps: what each took, and what failed."""
    words: list[str | Path] = [torchsmith, "build", recipe, "--json"]
    words += [word for step in steps for word in ("--step", step)]
    words += ["--bundle", folder / f"{NAME}.bundle", "--store", work / "store"]
    words += ["--work", work / "build"]
    return {**follow_build(words, log), "objects": objects(work / "build")}


def objects(work: Path) -> dict[str, int]:
    """How many files were compiled so far, by the language they are in."""
    found = [path for path in work.rglob("*.o") if "CMakeTmp" not in path.parts]
    cuda = sum(path.name.endswith(".cu.o") for path in found)
    return {"cuda": cuda, "others": len(found) - cuda}


def installed(work: Path) -> Path:
    """The Python of the environment into which the build put its torch."""
    return work / "build/build" / NAME / "env-torch/bin/python"


def add_vision(work: Path, testers: Path, log: Path) -> None:
    """Put torchvision's wheel, and what it imports, beside the torch it was built on."""
    wheels = sorted((work / "build/dist" / NAME).glob("torchvision-*.whl"))
    words: list[str | Path] = [sys.executable, "-m", "pip", "--python", installed(work), "install"]
    words += ["--quiet", "--no-index", "--no-deps", "--find-links", testers, "pillow"]
    spoken([*words, *wheels], log)


def tested(work: Path, testers: Path, output: Path, seconds: float) -> dict[str, Any]:
    """PyTorch's own tests of this release on the GPU: how many passed, and which did not."""
    place = work / "testers"
    brought: list[str | Path] = [
        "--quiet",
        "--no-index",
        "--find-links",
        testers,
        "--target",
        place,
        *TESTERS,
    ]
    if not place.is_dir():
        spoken([sys.executable, "-m", "pip", "install", *brought], output / "testers.log")
    found: dict[str, Any] = {}
    end = time.monotonic() + seconds
    for name in _SUITES:
        words: list[str | Path] = ["timeout", "-s", "INT", str(max(1, int(end - time.monotonic())))]
        words += [installed(work), "-m", "pytest", name, "-n", "12", "-q", "-rfE"]
        words += ["-p", "no:cacheprovider", "--tb=line", "--noconftest", "-c", os.devnull]
        done = subprocess.run(
            [str(word) for word in words],
            cwd=work / "build/build" / NAME / "torch/test",
            env={**os.environ, "PYTHONPATH": str(place), "PYTORCH_TESTING_DEVICE_ONLY_FOR": "cuda"},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
            check=False,
        )
        (output / f"{name}.log").write_text(done.stdout[-4_000_000:], encoding="utf-8")
        lines = done.stdout.splitlines()
        failed = [line for line in lines if line.startswith(("FAILED ", "ERROR "))]
        found[name] = {"status": done.returncode, "said": lines[-1:], "failed": failed}
        print(f"{name}: {' '.join(lines[-1:])}", flush=True)
    return found


def against_nvcc(work: Path, output: Path, files: int) -> str:
    """CPU time of CUDA files, ours against plain nvcc's, on a sample of what was built."""
    tree = work / "build/build" / NAME
    words: list[str | Path] = [work / "torchsmith/bin/python", "-m", "benchmarks.batches"]
    words += [tree / "torch/build", "--cuda", "--files", str(files), "--jobs", "16"]
    path = f"{tree / 'env/bin'}:{os.environ['PATH']}"
    return spoken(
        words, output / "against-nvcc.log", env={"PYTHONPATH": str(HERE.parent), "PATH": path}
    )


def measured(work: Path, output: Path, seconds: float) -> str:
    """The speed of what was built against the torch that is here."""
    words: list[str | Path] = [work / "torchsmith/bin/torchsmith", "bench", "--device", "cuda"]
    words += [f"ours={installed(work)}", f"theirs={sys.executable}"]
    words += ["--time", str(int(seconds)), "--output", output / "gpu-bench.json"]
    return spoken(words, output / "bench.log")


def go(folder: Path, work: Path) -> int:
    """Everything, one after the other; the report is written anew after each."""
    start = time.monotonic()
    settings = json.loads((folder / SETTINGS).read_text("utf-8"))
    output = work / "report"
    output.mkdir(parents=True, exist_ok=True)
    report: dict[str, Any] = {"settings": settings, "holds": False}

    def install_all() -> None:
        report["packages"] = install_packages(folder / "packages", output / "packages.log")
        if not (work / "torchsmith/bin/torchsmith").is_file():
            install(folder, work, output / "install.log")
        write_project(work / "project", settings)

    def build_all() -> None:
        program = work / "torchsmith/bin/torchsmith"
        recipe = work / "project" / f"{NAME}.toml"
        report["build"] = build(program, folder, recipe, work, output / "build.log")
        wheels = sorted((work / "build/dist" / NAME).glob("*.whl"))
        report["wheels"] = {file.name: file.stat().st_size for file in wheels}
        report["verified"] = {
            file.name: file.read_text("utf-8")
            for file in (work / "build/dist" / NAME).glob("*.verify.txt")
        }

    def use_all() -> None:
        # Whatever became of the rest, a torch that is there is used.
        if not installed(work).exists():
            raise FailedError("there is no torch to use")
        add_vision(work, folder / "testers", output / "vision.log")
        names = ("torch", "vision")
        python = installed(work)
        report["use"] = {name: checked(python, name, output / f"use-{name}.log") for name in names}
        checks = [check for used in report["use"].values() for check in used["checks"]]
        report["holds"] = all(check["holds"] for check in checks)

    def ship_all() -> None:
        program, log = work / "torchsmith/bin/torchsmith", output / "ship-build.log"
        wheels = write_project(work / "wheels", settings, "wheels")
        report["finish"] = build(program, folder, wheels, work, log, "package-wheel-torch")
        report["ship"] = gpu_ship.ship(work, folder, folder / "examples", output)

    def compare_all() -> None:
        report["against nvcc"] = against_nvcc(work, output, 40)
        print(report["against nvcc"], flush=True)

    def test_all() -> None:
        report["tests"] = tested(work, folder / "testers", output, 300)

    def measure_all() -> None:
        report["bench"] = measured(work, output, 150)
        print(report["bench"])

    for part in (install_all, build_all, use_all, ship_all, compare_all, test_all, measure_all):
        try:
            part()
            print(f"{part.__name__}: after {time.monotonic() - start:.0f} s", flush=True)
        except (FailedError, OSError, ValueError, KeyError) as error:
            report.setdefault("failed", []).append(f"{type(error).__name__}: {error}")
            print(f"x  {error}", flush=True)
        (output / REPORT).write_text(json.dumps(report, indent=1) + "\n", encoding="utf-8")
        if part is use_all and not report.get("use"):
            break
    return 0


def run(folder: Path, output: Path, work: Path, seconds: float) -> int:
    """Wait for it, after starting it where nobody has: 0 if all holds, UNFINISHED if it goes on."""
    folder, output, work = (path.absolute() for path in (folder, output, work))
    output.mkdir(parents=True, exist_ok=True)
    work.mkdir(parents=True, exist_ok=True)
    note, log, kept = work / "started", work / PROGRESS, work / "report"
    if not _runs(note):
        # What an earlier one said is no news; what it built is taken up again.
        (kept / REPORT).unlink(missing_ok=True)
        words = [sys.executable, "-u", "-m", "benchmarks.gpu_torch", "go", folder, "--work", work]
        with log.open("w", encoding="utf-8") as file:
            # It outlives whoever started it: a compile that is stopped is made again.
            process = subprocess.Popen(
                [str(word) for word in words],
                cwd=HERE.parent,
                stdout=file,
                stderr=subprocess.STDOUT,
                stdin=subprocess.DEVNULL,
                start_new_session=True,
            )
        note.write_text(str(process.pid))
    end = time.monotonic() + seconds
    while _runs(note) and time.monotonic() < end:
        time.sleep(2)
    report: dict[str, Any] = {}
    # It may be in the middle of writing, or have written nothing yet.
    with contextlib.suppress(ValueError, OSError):
        report = json.loads((kept / REPORT).read_text("utf-8"))
    print(log.read_text("utf-8", errors="replace")[-6000:])
    print(f"compiled so far: {objects(work / 'build')}")
    shutil.copy(log, output / PROGRESS)
    if kept.is_dir():
        for said in kept.glob("*.json"):
            shutil.copy(said, output)
        with tarfile.open(output / "logs.tar.gz", "w:gz") as tar:
            for said in sorted(kept.rglob("*.log")):
                tar.add(said, arcname=said.name)
    if _runs(note):
        print("not finished: call it again with the same WORK")
        return UNFINISHED
    holds = bool(report.get("holds"))
    print("everything holds" if holds else "something does not hold")
    return 0 if holds else 1


def _runs(note: Path) -> bool:
    """Whether the process of that number is at work; one that ended may still be listed."""
    try:
        said = Path(f"/proc/{note.read_text()}/stat").read_text()
    except OSError:
        return False
    return said.rpartition(")")[2].split()[0] != "Z"

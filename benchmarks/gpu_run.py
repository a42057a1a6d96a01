"""The part of gpu_extension.py that runs on the CUDA machine, where there is only Python itself."""

from __future__ import annotations

import importlib.metadata
import importlib.util
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from benchmarks.gpu_extension import HERE, NAMES, SETTINGS, write_project

# The recipes, and the checks for each.
SUITES = {"gpu-ops": "ops", "gpu-vision": "vision"}
REPORT = "gpu-extension.json"


class FailedError(Exception):
    """Something did not work; the rest is tried all the same."""


def look(settings: dict[str, Any]) -> None:
    """See in a second what would otherwise fail after minutes."""
    problems = []
    here = ".".join(map(str, sys.version_info[:2]))
    if here != settings["python"]:
        problems.append(f"this is Python {here}, and the wheels are for {settings['python']}")
    try:
        torch = importlib.metadata.version("torch")
        if torch.partition("+")[0] != settings["torch"]:
            problems.append(f"torch {torch} is installed here, not {settings['torch']}")
    except importlib.metadata.PackageNotFoundError:
        problems.append(f"{sys.executable} has no torch: use the Python that has it")
    for text in settings["has"]:
        name = text.partition("==")[0]
        try:
            importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            problems.append(f"{name} is not beside that torch: prepare without it in --has")
    if problems:
        raise SystemExit("\n".join(problems))


def spoken(words: list[str | Path], log: Path, env: dict[str, str] | None = None) -> str:
    """What a program writes to its standard output; all of it is kept in a log."""
    texts = [str(word) for word in words]
    with log.open("a", encoding="utf-8") as file:
        file.write(f"$ {' '.join(texts)}\n")
        file.flush()
        done = subprocess.run(
            texts,
            stdout=subprocess.PIPE,
            stderr=file,
            text=True,
            errors="replace",
            check=False,
            env={**os.environ, **(env or {})},
        )
        file.write(done.stdout)
    if done.returncode:
        raise FailedError(f"{Path(texts[0]).name} ended with {done.returncode}: see {log}")
    return done.stdout


def install(folder: Path, work: Path, log: Path, *others: str) -> Path:
    """Make an environment with torchsmith and others in it, from the wheels brought alone."""
    place = work / "torchsmith"
    shutil.rmtree(place, ignore_errors=True)
    python = place / "bin/python"
    brought: list[str | Path] = [
        "--quiet",
        "--no-index",
        "--find-links",
        folder / "wheels",
        "torchsmith",
        *others,
    ]
    if importlib.util.find_spec("pip"):
        # Debian's Pythons cannot make one with pip in it without a package of their own.
        spoken([sys.executable, "-m", "venv", "--without-pip", place], log)
        spoken([sys.executable, "-m", "pip", "--python", python, "install", *brought], log)
    else:
        spoken([sys.executable, "-m", "venv", place], log)
        spoken([python, "-m", "pip", "install", *brought], log)
    return place / "bin/torchsmith"


def build_steps(
    torchsmith: Path, folder: Path, work: Path, name: str, log: Path, steps: tuple[str, ...] = ()
) -> dict[str, Any]:
    """Build a recipe from its bundle, or these steps of it; `steps` has the seconds of each."""
    words: list[str | Path] = [torchsmith, "build", work / "project" / f"{name}.toml", "--json"]
    words += ["--bundle", folder / f"{name}.bundle", "--store", work / "store"]
    words += ["--work", work / "build" / name]
    words += [word for step in steps for word in ("--step", step)]
    built = follow_build(words, log)
    if status := built.pop("status"):
        raise FailedError(f"torchsmith build ended with {status}: see {log}")
    return {"seconds": built["seconds"], "steps": built["steps"]}


def follow_build(words: list[str | Path], log: Path) -> dict[str, Any]:
    """Run `torchsmith build --json` and print its events: what each step took, and what failed."""
    start = time.monotonic()
    took: dict[str, float] = {}
    cpu: dict[str, float] = {}
    failed = ""
    with log.open("a", encoding="utf-8") as file:
        file.write(f"$ {' '.join(map(str, words))}\n")
        file.flush()
        process = subprocess.Popen(
            [str(word) for word in words],
            stdout=subprocess.PIPE,
            stderr=file,
            text=True,
            errors="replace",
        )
        assert process.stdout is not None
        for line in process.stdout:
            file.write(line)
            # A refusal is a document of many lines, and no event.
            event = json.loads(line) if line.startswith('{"') else {}
            title = event.get("title", "")[:60]
            if event.get("event") == "step-progress" and not event["done"] % 50:
                left = event["seconds_left"] or 0
                print(f"  {event['done']} of {event['total']} compiles, {left:.0f} s left")
            elif event.get("event") == "step-finished":
                took[title] = round(event["seconds"], 1)
                cpu[title] = round(event["cpu_seconds"] or 0, 1)
                print(f"  ok {title} ({event['seconds']:.1f} s)", flush=True)
            elif event.get("event") == "step-failed":
                failed = f"{title}: {event['reason']}"
                print(f"  x  {failed}", flush=True)
                print("\n".join(f"     | {text}" for text in event["excerpt"]), flush=True)
        status = process.wait()
    return {
        "seconds": round(time.monotonic() - start, 1),
        "status": status,
        "steps": took,
        "cpu_seconds": cpu,
        "failed": failed,
    }


def build(torchsmith: Path, folder: Path, work: Path, name: str, log: Path) -> dict[str, Any]:
    """Build a recipe from its bundle into a wheel."""
    built = build_steps(torchsmith, folder, work, name, log)
    (wheel,) = (work / "build" / name / "dist" / name).glob("*.whl")
    return {
        **built,
        "wheel": wheel.name,
        "bytes": wheel.stat().st_size,
        "path": str(wheel),
    }


def built_with(work: Path, name: str) -> Path:
    """The Python of the environment that a recipe was built in, on top of the torch's own."""
    return work / "build" / name / "build" / name / "env/bin/python"


def use(work: Path, name: str, wheel: Path, log: Path) -> dict[str, Any]:
    """Run the checks with the wheel, beside the torch it was built against."""
    python = built_with(work, name)
    place = work / "use" / name
    shutil.rmtree(place, ignore_errors=True)
    install: list[str | Path] = [python, "-m", "pip", "install", "--quiet", "--no-index"]
    spoken([*install, "--no-deps", "--target", place, wheel], log)
    return checked(python, SUITES[name], log, env={"PYTHONPATH": str(place)})


def checked(
    python: Path, suite: str, log: Path, env: dict[str, str] | None = None
) -> dict[str, Any]:
    """Run the checks of a suite."""
    try:
        answer = spoken([python, HERE / "gpu_checks.py", suite], log, env)
    except FailedError:
        # One that does not hold ends it with 1, and says which.
        answer = log.read_text("utf-8").rstrip().rpartition("\n")[2]
        if not answer.startswith('{"torch"'):
            raise
    found: dict[str, Any] = json.loads(answer.strip().rpartition("\n")[2])
    return found


def inside(torchsmith: Path, work: Path, name: str, wheel: Path, log: Path) -> dict[str, Any]:
    """The GPU code in the wheel, as torchsmith reads it and as NVIDIA's own program does."""
    report = work / f"{name}.verify.json"
    report.unlink(missing_ok=True)
    words: list[str | Path] = [torchsmith, "verify", wheel, "--no-run", "--report", report]
    words += ["--recipe", work / "project" / f"{name}.toml"]
    try:
        spoken(words, log)
    except FailedError:
        if not report.is_file():
            raise
    checks = json.loads(report.read_text("utf-8"))["checks"]
    (found,) = [check for check in checks if check["group"] == "GPU code"]
    return {
        "torchsmith": found["found"].split(),
        "holds": found["status"] == "pass",
        "cuobjdump": cuobjdump(wheel, log),
        "other checks that fail": [
            f"{check['name']}: {check.get('found', '')}"
            for check in checks
            if check["status"] == "fail" and check is not found
        ],
    }


def _cuobjdump_at() -> str | None:
    homes = [os.environ.get(name) for name in ("CUDA_HOME", "CUDA_PATH")]
    places = [Path(home, "bin/cuobjdump") for home in (*homes, "/usr/local/cuda") if home]
    there = [str(place) for place in places if place.is_file()]
    return shutil.which("cuobjdump") or next(iter(there), None)


def cuobjdump(wheel: Path, log: Path) -> list[str] | None:
    """The same by NVIDIA's own program; `None` where it is not installed."""
    program = _cuobjdump_at()
    if program is None:
        return None
    found: set[str] = set()
    with tempfile.TemporaryDirectory() as place, zipfile.ZipFile(wheel) as archive:
        for name in (name for name in archive.namelist() if name.endswith(".so")):
            library = archive.extract(name, place)
            for option in ("--list-elf", "--list-ptx"):
                try:
                    said = spoken([program, option, library], log)
                except FailedError:
                    continue  # it ends with 255 where there is none
                kind = "sm" if option == "--list-elf" else "compute"
                found |= {f"{kind}_{text}" for text in re.findall(r"sm_(\w+)\.", said)}
    return sorted(found)


def prove(
    torchsmith: Path, folder: Path, work: Path, output: Path, name: str, gpu: str
) -> Iterator[tuple[str, Any]]:
    """Build, use, look inside: each part of the report as soon as there is one."""
    log = output / f"{name}.log"
    log.unlink(missing_ok=True)
    print(name, flush=True)
    built = build(torchsmith, folder, work, name, log)
    wheel = Path(built.pop("path"))
    yield "build", built
    code = inside(torchsmith, work, name, wheel, log)
    wanted = ["sm_" + gpu.replace(".", "")]
    code["holds"] = code["holds"] and code["torchsmith"] == wanted
    if code["cuobjdump"] is not None:
        code["holds"] = code["holds"] and code["cuobjdump"] == wanted
    print(f"  {'ok' if code['holds'] else 'x '} code: {code['torchsmith']}", end="")
    print(f", cuobjdump: {code['cuobjdump'] or 'not installed'}", flush=True)
    yield "code", code
    used = use(work, name, wheel, log)
    for check in used["checks"]:
        mark = "ok" if check["holds"] else "x "
        print(f"  {mark} {check['check']}: off by {check['worst']:.2g}, {check['allowed']:.0e} due")
    yield "use", used


def run(folder: Path, output: Path, work: Path) -> int:
    """Everything, as far as it goes; 0 if all of it holds."""
    folder, output, work = (path.absolute() for path in (folder, output, work))
    settings = json.loads((folder / SETTINGS).read_text("utf-8"))
    look(settings)
    output.mkdir(parents=True, exist_ok=True)
    work.mkdir(parents=True, exist_ok=True)
    report: dict[str, Any] = {"settings": settings, "python": sys.version, "recipes": {}}
    holds = True
    try:
        start = time.monotonic()
        torchsmith = install(folder, work, output / "install.log")
        report["install seconds"] = round(time.monotonic() - start, 1)
        print(f"torchsmith installed in {report['install seconds']} s", flush=True)
        write_project(work / "project", settings, sys.prefix)
        for name in NAMES:
            part: dict[str, Any] = {}
            report["recipes"][name] = part
            try:
                # Piece by piece: what was found before a failure stays in the report.
                part.update(prove(torchsmith, folder, work, output, name, settings["gpu"]))
            except (FailedError, OSError, ValueError, KeyError) as error:
                part["failed"] = f"{type(error).__name__}: {error}"
                print(f"  x  {part['failed']}", flush=True)
            holds = holds and _held(part)
    except FailedError as error:
        report["failed"] = str(error)
        holds = False
        print(f"x  {error}", flush=True)
    report["holds"] = holds
    (output / REPORT).write_text(json.dumps(report, indent=1) + "\n", encoding="utf-8")
    _say_end(report)
    return 0 if holds else 1


def _held(part: dict[str, Any]) -> bool:
    if "use" not in part or "failed" in part:
        return False
    checks = part["use"]["checks"]
    return bool(checks and all(item["holds"] for item in checks) and part["code"]["holds"])


def _say_end(report: dict[str, Any]) -> None:
    for name, part in report["recipes"].items():
        if "build" not in part:
            continue
        checks = part.get("use", {}).get("checks", [])
        good = sum(item["holds"] for item in checks)
        most = max((item["worst"] for item in checks), default=float("nan"))
        print(
            f"{name}: built in {part['build']['seconds']} s, {good} of {len(checks)} checks hold, "
            f"worst difference {most:.2g}"
        )
    print("everything holds" if report["holds"] else "something does not hold")

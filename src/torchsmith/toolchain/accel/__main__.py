"""What the `ninja` of shims/ starts: forms batches, then becomes the real ninja.

python -m torchsmith.toolchain.accel REAL_NINJA [ARGUMENT...]
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from torchsmith.host.limits import read_cores
from torchsmith.toolchain.accel import CUDA, MEMORY, SAME, SWITCH
from torchsmith.toolchain.accel.accelerate import accelerate
from torchsmith.toolchain.accel.lessons import profile_name, read_lessons, shipped_lessons

# Where batches must not depend on the machine: enough for all to be busy on most.
_ANY_CORES = 8


def main(argv: list[str]) -> None:
    """Hand the real ninja a file with batches, or its own where that cannot be had."""
    ninja, arguments = argv[0], argv[1:]
    folder = Path.cwd()
    try:
        _bring_up_to_date(ninja, folder)
        version = os.environ.get("PYTORCH_BUILD_VERSION", "")
        lessons, kept = shipped_lessons("torch", version), ""
        same = os.environ.get(SWITCH) == SAME
        if not same and (place := os.environ.get("TORCHSMITH_LESSONS")):
            # What one release's files clash with says nothing of another's.
            kept = str(Path(place) / f"{profile_name('torch', version) or 'others'}.jsonl")
            lessons |= read_lessons(Path(kept))
        cores = _ANY_CORES if same else int(os.environ.get("TORCHSMITH_CORES") or read_cores())
        memory = None if same else int(os.environ.get(MEMORY) or 0)
        made = accelerate(
            folder,
            ninja,
            lessons,
            cores=cores,
            memory=memory,
            lessons_file=kept,
            cuda=os.environ.get(CUDA) == "on",
        )
    except (OSError, ValueError, subprocess.CalledProcessError) as error:
        print(f"torchsmith: no batches, every file by itself: {error}", file=sys.stderr)
        made = None
    chosen = ["-f", str(made)] if made else []
    sys.stdout.flush()
    os.execv(ninja, [ninja, *chosen, *arguments])


def _bring_up_to_date(ninja: str, folder: Path) -> None:
    """Have CMake write build.ninja anew first if it would: ninja does that for this file only."""
    if "\nbuild build.ninja" not in (folder / "build.ninja").read_text(encoding="utf-8"):
        return
    done = subprocess.run([ninja, "build.ninja"], cwd=folder, capture_output=True, text=True)
    if done.returncode != 0:
        # The real run says it again, and stops.
        raise ValueError("build.ninja could not be brought up to date")


if __name__ == "__main__":
    main(sys.argv[1:])

"""The building of one image of a plan.

    python -m torchsmith.images < TASK

It runs in the plan's work folder; $PROJECT is the recipe's folder.
"""

from __future__ import annotations

import os
import signal
import sys
from pathlib import Path
from types import FrameType

import msgspec

from torchsmith.errors import InterruptedRunError, TorchsmithError
from torchsmith.images.build import build_image
from torchsmith.plan.images import ImageTask


def _stop(number: int, _: FrameType | None) -> None:
    raise InterruptedRunError(number)


def main() -> int:
    """Build what standard input says; the exit code says what came of it."""
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, _stop)
    try:
        task = msgspec.json.decode(sys.stdin.buffer.read(), type=ImageTask)
        project = Path(os.environ.get("PROJECT", "."))
        made = build_image(task, project, lambda line: print(line, flush=True))
    except TorchsmithError as error:
        print(f"error: {error.message}\n  {error.hint}", flush=True)
        return error.exit_code
    print(f"{made.name} is {made.id[:12]}", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())

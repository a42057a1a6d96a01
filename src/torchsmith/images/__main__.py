"""The building of one image of a plan.

    python -m torchsmith.images < TASK

It runs in the plan's work folder; $PROJECT is the recipe's folder.
"""

from __future__ import annotations

import os
import signal
from pathlib import Path

from torchsmith.engine.process import heeding_signals
from torchsmith.images.build import build_image
from torchsmith.plan.images import ImageTask
from torchsmith.tasks import run_task


def _build(task: ImageTask) -> None:
    project = Path(os.environ.get("PROJECT", "."))
    with heeding_signals(signal.SIGINT):
        made = build_image(task, project, lambda line: print(line, flush=True))
    print(f"{made.name} is {made.id[:12]}", flush=True)


if __name__ == "__main__":
    run_task(ImageTask, _build)

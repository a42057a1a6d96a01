"""The pushing of a plan's images.

    python -m torchsmith.images.publish < DELIVERY

The registry is asked before and after, as `torchsmith image push` does.
"""

from __future__ import annotations

from pathlib import Path

from torchsmith.engine.made_images import PushedImage, note
from torchsmith.engine.process import heeding_signals
from torchsmith.images.reference import at_registry
from torchsmith.images.tools import find_tool
from torchsmith.images.transfer import push
from torchsmith.plan.publish import Delivery
from torchsmith.tasks import run_task


def _push(delivery: Delivery) -> None:
    pushed: list[PushedImage] = []
    tool = find_tool()
    with heeding_signals():
        for image in delivery.images:
            to = at_registry(f"{delivery.registry}/{image}")
            made = push(tool, image, to, on_line=lambda line: print(line, flush=True))
            print(f"{made.name} is {made.digest}", flush=True)
            pushed.append(PushedImage(made.name, made.digest))
            note(Path(delivery.record), tuple(pushed))


if __name__ == "__main__":
    run_task(Delivery, _push)

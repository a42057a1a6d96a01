"""The pushing of a plan's images.

    python -m torchsmith.images.publish < DELIVERY

The registry is asked before and after, as `torchsmith image push` does.
"""

from __future__ import annotations

import sys
from pathlib import Path

import msgspec

from torchsmith.engine.made_images import PushedImage, note
from torchsmith.engine.process import heeding_signals
from torchsmith.errors import TorchsmithError
from torchsmith.images.find import find_engine
from torchsmith.images.reference import at_registry
from torchsmith.images.transfer import push
from torchsmith.plan.publish import Delivery


def main() -> int:
    """Push what standard input says; the exit code says what came of it."""
    pushed: list[PushedImage] = []
    try:
        delivery = msgspec.json.decode(sys.stdin.buffer.read(), type=Delivery)
        engine = find_engine()
        with heeding_signals():
            for image in delivery.images:
                to = at_registry(f"{delivery.registry}/{image}")
                made = push(engine, image, to, on_line=lambda line: print(line, flush=True))
                print(f"{made.name} is {made.digest}", flush=True)
                pushed.append(PushedImage(made.name, made.digest))
                note(Path(delivery.record), tuple(pushed))
    except TorchsmithError as error:
        print(f"error: {error.message}\n  {error.hint}", flush=True)
        return error.exit_code
    return 0


if __name__ == "__main__":
    sys.exit(main())

"""The publishing of one step of a plan.

    python -m torchsmith.ship < SHIPMENT

It runs in the plan's work folder; $PROJECT is the recipe's folder, where the index and the channel
are.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

import msgspec

from torchsmith.errors import TorchsmithError
from torchsmith.plan.publish import Shipment
from torchsmith.ship.deliver import deliver
from torchsmith.ship.folder import Change


def ship(shipment: Shipment, project: Path) -> list[Change]:
    """Ship what the patterns of a shipment find in the current folder."""
    found = [path for pattern in shipment.files for path in sorted(Path().glob(pattern))]
    return deliver(
        found,
        index=project / shipment.index if shipment.index else None,
        channel=project / shipment.channel if shipment.channel else None,
        to=shipment.to,
        accounts=shipment.accounts,
        say=lambda text: print(text, flush=True),
    )


def main() -> int:
    """Ship what standard input says; the exit code says what came of it."""
    try:
        shipment = msgspec.json.decode(sys.stdin.buffer.read(), type=Shipment)
        made = ship(shipment, Path(os.environ["PROJECT"]))
    except TorchsmithError as error:
        print(f"error: {error.message}\n  {error.hint}", file=sys.stderr)
        return error.exit_code
    for change in made:
        print(f"{change.action} {change.path}")
    return 0


if __name__ == "__main__":
    sys.exit(main())

"""The publishing of one step of a plan.

    python -m torchsmith.ship < SHIPMENT

It runs in the plan's work folder; $PROJECT is the recipe's folder, where the index and the channel
are.
"""

from __future__ import annotations

import os
from pathlib import Path

from torchsmith.plan.publish import Shipment
from torchsmith.ship.deliver import deliver
from torchsmith.ship.folder import Change
from torchsmith.tasks import run_task


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


def _ship(shipment: Shipment) -> None:
    for change in ship(shipment, Path(os.environ["PROJECT"])):
        print(f"{change.action} {change.path}")


if __name__ == "__main__":
    run_task(Shipment, _ship)

"""Compress wheels that were packed without, make the rest normal, and add what they are made of.

    python -m torchsmith.package WHEEL...

SOURCE_DATE_EPOCH is the date of what they were built from; TORCHSMITH_BILL has what the plan knows
of them (`about_wheel`), and is set by the engine.
"""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path

from torchsmith.package.pack import EARLIEST, DosDate, compress_wheel
from torchsmith.plan.attest import INSIDE, Attest


def _source_date() -> DosDate | None:
    seconds = os.environ.get("SOURCE_DATE_EPOCH", "")
    if not seconds.isdecimal():
        return None
    year, month, day, hour, minute, second, *_ = time.gmtime(int(seconds))
    return max((year, month, day, hour, minute, second // 2 * 2), EARLIEST)


def _bill(wheel: Path) -> bytes:
    """What is put into a wheel; nothing where no plan says anything of it."""
    told = os.environ.get(INSIDE, "")
    if not told:
        return b""
    # Only then: it takes imports that compressing needs not.
    import msgspec

    from torchsmith.package.inside import inner_bill

    date = int(os.environ.get("SOURCE_DATE_EPOCH") or 0)
    return inner_bill(msgspec.json.decode(told, type=Attest), wheel, date)


for name in sys.argv[1:]:
    compress_wheel(Path(name), latest=_source_date(), bill=_bill(Path(name)))

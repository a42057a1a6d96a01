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
from torchsmith.sources.tree import epoch


def _source_date() -> DosDate | None:
    if "SOURCE_DATE_EPOCH" not in os.environ:
        return None
    year, month, day, hour, minute, second, *_ = time.gmtime(epoch())
    return max((year, month, day, hour, minute, second // 2 * 2), EARLIEST)


def _bill(wheel: Path) -> bytes:
    """What is put into a wheel; nothing where no plan says anything of it."""
    plan = os.environ.get(INSIDE, "")
    if not plan:
        return b""
    # Only then: it takes imports that compressing needs not.
    import msgspec

    from torchsmith.package.sbom import inner_bill

    return inner_bill(msgspec.json.decode(plan, type=Attest), wheel, epoch())


for name in sys.argv[1:]:
    compress_wheel(Path(name), latest=_source_date(), bill=_bill(Path(name)))

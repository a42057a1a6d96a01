"""Compress wheels that were packed without, and make the rest normal.

    python -m torchsmith.package WHEEL...

SOURCE_DATE_EPOCH is the date of what they were built from.
"""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path

from torchsmith.package.pack import EARLIEST, DosDate, compress_wheel


def _source_date() -> DosDate | None:
    seconds = os.environ.get("SOURCE_DATE_EPOCH", "")
    if not seconds.isdecimal():
        return None
    year, month, day, hour, minute, second, *_ = time.gmtime(int(seconds))
    return max((year, month, day, hour, minute, second // 2 * 2), EARLIEST)


for name in sys.argv[1:]:
    compress_wheel(Path(name), latest=_source_date())

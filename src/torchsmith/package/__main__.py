"""Compress wheels that were packed without: python -m torchsmith.package WHEEL..."""

from __future__ import annotations

import sys
from pathlib import Path

from torchsmith.package.pack import compress_wheel

for name in sys.argv[1:]:
    compress_wheel(Path(name))

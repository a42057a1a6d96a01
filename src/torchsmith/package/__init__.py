"""Packages out of what was built."""

from __future__ import annotations

from pathlib import Path

# What makes setuptools pack wheels without compressing them.
UNCOMPRESSED = Path(__file__).parent / "stored.cfg"

"""Reading archives with suspicion: every name looked at."""

from __future__ import annotations

CHUNK = 1 << 20


def escapes(name: str) -> bool:
    """Whether a name leads out of the folder an archive is unpacked in."""
    return name.startswith("/") or ".." in name.split("/")

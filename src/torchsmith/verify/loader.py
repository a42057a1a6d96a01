"""What the machine's own loader finds; ldconfig is asked here and nowhere else."""

from __future__ import annotations

from pathlib import Path

from torchsmith.host.probe import run


def library_places() -> list[tuple[str, str]]:
    """Each library the loader knows and where it lies, in the order it looks in."""
    for program in ("ldconfig", "/sbin/ldconfig"):
        if said := run([program, "-p"]):
            pairs = (line.strip().partition(" => ") for line in said.splitlines())
            return [(name.split()[0], path.strip()) for name, arrow, path in pairs if arrow]
    return []


def system_libraries() -> frozenset[str]:
    """Names the machine's loader finds; not in a person's own folder, which no other has."""
    home = f"{Path.home()}/"
    return frozenset(name for name, path in library_places() if not path.startswith(home))

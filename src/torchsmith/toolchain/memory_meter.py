"""How much memory is free at this moment, how hard it is to come by, and who holds it."""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import Protocol

from torchsmith.host.limits import control_groups, read_memory
from torchsmith.toolchain.processes import process_tree


class Meter(Protocol):
    """Where the governor reads memory."""

    def available(self) -> int | None:
        """Bytes free now, within every limit on this process; `None` if nobody can say."""

    def pressure(self) -> float | None:
        """Percent of the last ten seconds in which something waited for memory."""

    def resident(self, pid: int) -> int:
        """Bytes that a process and everything under it hold now."""


class HostMeter:
    """This machine's memory, and this process's control groups."""

    def __init__(self) -> None:
        groups = [folder / "memory.pressure" for folder in control_groups("memory")]
        places = [*groups, Path("/proc/pressure/memory")]
        self._pressure = next((place for place in places if place.is_file()), None)

    def available(self) -> int | None:
        """Bytes free now, within every limit on this process."""
        return read_memory()[1]

    def pressure(self) -> float | None:
        """Percent of the last ten seconds in which something waited for memory."""
        if self._pressure is None:
            return None
        try:
            text = self._pressure.read_text()
        except OSError:
            return None
        found = re.search(r"^some avg10=([0-9.]+)", text, re.MULTILINE)
        return float(found[1]) if found else None

    def resident(self, pid: int) -> int:
        """Bytes that a process and everything under it hold now."""
        return sum(_resident(each) for each in process_tree(pid))


_PAGE = os.sysconf("SC_PAGE_SIZE")


def _resident(pid: int) -> int:
    try:
        return int(Path(f"/proc/{pid}/statm").read_bytes().split()[1]) * _PAGE
    except (OSError, IndexError, ValueError):
        return 0

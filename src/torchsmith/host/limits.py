"""How much of the machine this process may use: cores, memory, disk, shared memory.

In a container or a batch job the machine's own numbers are not the answer; the limits of this
process's control group, and of every group above it, are.
"""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Literal

from torchsmith.host.probe import read_text

HugePages = Literal["", "always", "madvise", "never"]
_WHEN: tuple[HugePages, ...] = ("always", "madvise", "never")
# Where the kernel says it.
HUGE_PAGES = "sys/kernel/mm/transparent_hugepage"


@dataclass(frozen=True, slots=True)
class _Mount:
    """A mounted control group hierarchy; version 2 has all controllers in one."""

    top: PurePosixPath
    place: str
    controllers: frozenset[str] | None

    def holds(self, controller: str) -> bool:
        return self.controllers is None or controller in self.controllers


def control_groups(controller: str, root: Path = Path("/")) -> list[Path]:
    """Return the folders whose limits bind this process, its own group's first.

    Version 1, version 2, and both at once (where a controller lives in either) are the same
    question: every folder from the process's group up to where the hierarchy is mounted.
    """
    folders: list[Path] = []
    for line in (read_text(root / "proc/self/cgroup") or "").splitlines():
        number, _, rest = line.partition(":")
        controllers, _, group = rest.partition(":")
        version2 = number == "0" and not controllers
        if not version2 and controller not in controllers.split(","):
            continue
        for mount in _mounts(root):
            if mount.holds(controller) and (mount.controllers is None) == version2:
                folders += _chain(mount, PurePosixPath(group), root)
                break
    return folders


def _chain(mount: _Mount, group: PurePosixPath, root: Path) -> list[Path]:
    place = root / mount.place.lstrip("/")
    # Inside a container the group is often named from the real machine's top while only its
    # own part is mounted here.
    inner = group.relative_to(mount.top) if group.is_relative_to(mount.top) else PurePosixPath()
    if ".." in inner.parts:  # the process stands outside its control group namespace
        inner = PurePosixPath()
    return [place / step for step in (inner, *inner.parents)]


def _mounts(root: Path) -> Iterator[_Mount]:
    text = read_text(root / "proc/self/mountinfo")
    if text is None:
        yield _Mount(PurePosixPath("/"), "sys/fs/cgroup", None)
        for controller in ("memory", "cpu"):
            yield _Mount(PurePosixPath("/"), f"sys/fs/cgroup/{controller}", frozenset({controller}))
        return
    # "34 33 0:31 /top /sys/fs/cgroup/cpu rw,relatime shared:9 - cgroup cgroup rw,cpu,cpuacct"
    for line in text.splitlines():
        before, _, after = line.partition(" - ")
        left, right = before.split(" "), after.split(" ")
        if len(left) < 6 or right[0] not in ("cgroup", "cgroup2"):
            continue
        controllers = None if right[0] == "cgroup2" else frozenset(right[-1].split(","))
        yield _Mount(PurePosixPath(_unescaped(left[3])), _unescaped(left[4]), controllers)


def _unescaped(field: str) -> str:
    return re.sub(r"\\([0-7]{3})", lambda octal: chr(int(octal[1], 8)), field)


def _number(path: Path) -> int | None:
    """Return a file's number; `None` for ``max``, -1 and whatever else means no limit."""
    text = (read_text(path) or "").strip()
    # Version 1 writes "no limit" as 2**63 less a page.
    return int(text) if re.fullmatch(r"[0-9]{1,20}", text) and int(text) < 2**60 else None


def read_cores(root: Path = Path("/")) -> int:
    """Return the cores this process may use, by its affinity and its groups' CPU quota."""
    try:
        allowed = len(os.sched_getaffinity(0))
    except (OSError, AttributeError):
        allowed = os.cpu_count() or 1
    return max(1, min([allowed, *_quotas(root)]))


def _quotas(root: Path) -> Iterator[int]:
    for folder in control_groups("cpu", root):
        quota, period = _number(folder / "cpu.cfs_quota_us"), _number(folder / "cpu.cfs_period_us")
        found = re.fullmatch(r"([0-9]{1,18}) ([0-9]{1,18})\s*", read_text(folder / "cpu.max") or "")
        if found:
            quota, period = int(found[1]), int(found[2])
        if quota and period:
            # Rounded up: two jobs at three quarters each use all of one and a half cores.
            yield -(-quota // period)


def read_memory(root: Path = Path("/")) -> tuple[int | None, int | None]:
    """Return the bytes of memory this process may use, and how many of them are free now."""
    info = dict(_pairs(read_text(root / "proc/meminfo") or "", unit=1024))
    totals = [info[key] for key in ("MemTotal:",) if key in info]
    frees = [info[key] for key in ("MemAvailable:",) if key in info]
    for folder in control_groups("memory", root):
        # Over memory.high the kernel stops nothing, but slows a process to a crawl.
        names = ("memory.max", "memory.high", "memory.limit_in_bytes")
        limits = [limit for name in names if (limit := _number(folder / name)) is not None]
        if not limits:
            continue
        limit = min(limits)
        totals.append(limit)
        used = _used(folder)
        if used is not None:
            frees.append(max(0, limit - used))
    total = min(totals, default=None)
    free = min(frees, default=None)
    return total, free if total is None or free is None else min(total, free)


def _used(folder: Path) -> int | None:
    """Return what a group holds, less the file cache the kernel gives up when asked."""
    stat = dict(_pairs(read_text(folder / "memory.stat") or ""))
    for usage, cache in (
        ("memory.current", "inactive_file"),
        ("memory.usage_in_bytes", "total_inactive_file"),
    ):
        used = _number(folder / usage)
        if used is not None:
            return max(0, used - stat.get(cache, 0))
    return None


def _pairs(text: str, unit: int = 1) -> Iterator[tuple[str, int]]:
    for line in text.splitlines():
        found = re.match(r"(\S+)\s+([0-9]{1,20})\b", line)
        if found:
            yield found[1], int(found[2]) * unit


def read_disk_free(folder: Path) -> int | None:
    """Return the free bytes where this folder is, or will be once it is made."""
    try:
        place = folder.absolute()
        while not place.exists() and place != place.parent:
            place = place.parent
        return shutil.disk_usage(place).free
    except (OSError, ValueError):
        return None


def read_shm(root: Path = Path("/")) -> int | None:
    """Return the size of /dev/shm, on which data loaders hand over their batches."""
    try:
        return shutil.disk_usage(root / "dev/shm").total
    except OSError:
        return None


def read_huge_pages(root: Path = Path("/")) -> HugePages:
    """Return when the kernel gives a program huge pages, from ``always [madvise] never``."""
    text = read_text(root / HUGE_PAGES / "enabled") or ""
    return next((word for word in _WHEN if f"[{word}]" in text), "")

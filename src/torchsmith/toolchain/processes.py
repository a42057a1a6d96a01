"""Which processes a compile consists of, and ending them."""

from __future__ import annotations

import contextlib
import os
import signal
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, slots=True)
class Process:
    """A process that cannot be mistaken for a later one of the same number."""

    pid: int
    parent: int
    born: int

    @property
    def alive(self) -> bool:
        """Whether it is still this one."""
        now = find_process(self.pid)
        return now is not None and now.born == self.born


def find_process(pid: int) -> Process | None:
    """Return the process that has this number now."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        return Process(pid, int(fields[1]), int(fields[19]))
    except (OSError, IndexError, ValueError):
        return None


def find_child(parent: int, number: int) -> Process | None:
    """The process a parent started, by the number it has where the parent lives.

    That may be a container, whose processes have numbers of their own.
    """
    found = find_process(number)
    if found is not None and found.parent == parent and _number_inside(parent) == parent:
        return found
    for pid in process_tree(parent)[1:]:
        if _number_inside(pid) == number:
            child = find_process(pid)
            return child if child is not None and child.parent == parent else None
    return None


def _number_inside(pid: int) -> int:
    """The number a process has in its own namespace; its number here where there is no other."""
    try:
        for line in Path(f"/proc/{pid}/status").read_text().splitlines():
            if line.startswith("NSpid:"):
                return int(line.split()[-1])
    except (OSError, ValueError):
        pass
    return pid


def own_group(pid: int) -> int:
    """The process group that a process leads, as ninja's and make's commands do; 0 if none."""
    try:
        return pid if pid > 0 and os.getpgid(pid) == pid else 0
    except OSError:
        return 0


def end(pid: int, kind: signal.Signals = signal.SIGTERM) -> None:
    """Signal a process and all under it."""
    for each in process_tree(pid):
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.kill(each, kind)


def process_tree(pid: int) -> list[int]:
    """A process and all under it, as far as the kernel tells."""
    found = [pid]
    for each in found:
        found += children(each)
    return found


def children(pid: int) -> list[int]:
    """The children of a process that still run."""
    found: list[int] = []
    with contextlib.suppress(OSError):
        # Read for every thread: a child belongs to the one that started it.
        for task in os.listdir(f"/proc/{pid}/task"):  # noqa: PTH208
            text = Path(f"/proc/{pid}/task/{task}/children").read_bytes()
            found += [int(child) for child in text.split()]
    return found


def session_members(leader: int) -> list[int]:
    """The processes of a session, in any group; also those a command left behind."""
    found: list[int] = []
    for name in os.listdir("/proc"):  # noqa: PTH208
        with contextlib.suppress(OSError, ValueError, IndexError):
            fields = Path(f"/proc/{int(name)}/stat").read_text().rpartition(")")[2].split()
            if int(fields[3]) == leader and fields[0] != "Z":
                found.append(int(name))
    return found

"""The limits a container may be given: no more than whoever starts it can give."""

from __future__ import annotations

import contextlib
import os
import resource
import socket
import struct
from pathlib import Path

# capabilities(7)
_SYS_RESOURCE = 1 << 24
# What NVIDIA's own images ask for: deep recursion in C++, and pinned memory of any size.
_STACK = 64 << 20
_SECONDS = 5.0


def ulimit_words(engine: str) -> list[str]:
    """Options for the stack and for locked memory, where they are allowed."""
    pid = "self" if engine != "docker" else _daemon()
    if not pid:
        return []
    words: list[str] = []
    if pid == "self":
        hard = resource.getrlimit(resource.RLIMIT_MEMLOCK)[1]
        stack = resource.getrlimit(resource.RLIMIT_STACK)[1]
    else:
        hard = stack = 0
    free = _may_raise(pid)
    if free or hard == resource.RLIM_INFINITY:
        words += ["--ulimit", "memlock=-1:-1"]
    if free or stack == resource.RLIM_INFINITY or stack >= _STACK:
        words += ["--ulimit", f"stack={_STACK}:{_STACK}"]
    return words


def _may_raise(pid: str) -> bool:
    """Whether a process may give more than it has: /proc says so, to everybody."""
    try:
        for line in Path(f"/proc/{pid}/status").read_text().splitlines():
            name, _, value = line.partition(":")
            if name == "CapEff":
                return bool(int(value, 16) & _SYS_RESOURCE)
    except (OSError, ValueError):
        pass
    return False


def _daemon() -> str:
    """The number of the process behind docker's socket; empty if it is not on this machine."""
    address = os.environ.get("DOCKER_HOST", "unix:///var/run/docker.sock")
    if not address.startswith("unix://"):
        return ""
    with contextlib.suppress(OSError), socket.socket(socket.AF_UNIX) as there:
        there.settimeout(_SECONDS)
        there.connect(address.removeprefix("unix://"))
        size = struct.calcsize("3i")
        said = there.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, size)
        pid, _, _ = struct.unpack("3i", said)
        return str(pid) if pid else ""
    return ""

"""The limits a container may be given: no more than whoever starts it can give."""

from __future__ import annotations

import contextlib
import os
import socket
import struct
from collections.abc import Mapping
from pathlib import Path

# capabilities(7)
_SYS_RESOURCE = 1 << 24
# What NVIDIA's own images ask for: deep recursion in C++, and pinned memory of any size.
_STACK = 64 << 20
_SECONDS = 5.0


def ulimit_words(engine: str, environ: Mapping[str, str] | None = None) -> list[str]:
    """Options for the stack and for locked memory, where they are allowed."""
    pid = _daemon(os.environ if environ is None else environ) if engine == "docker" else os.getpid()
    # Without the right to raise them none is given: one option would put aside all the limits
    # that a person's containers.conf has for just this case.
    if not pid or not _may_raise(pid):
        return []
    return ["--ulimit", "memlock=-1:-1", "--ulimit", f"stack={_STACK}:{_STACK}"]


def _may_raise(pid: int) -> bool:
    """Whether a process may give more than it has: /proc says so, to everybody."""
    try:
        for line in Path(f"/proc/{pid}/status").read_text().splitlines():
            name, _, value = line.partition(":")
            if name == "CapEff":
                return bool(int(value, 16) & _SYS_RESOURCE)
    except (OSError, ValueError):
        pass
    return False


def _daemon(environ: Mapping[str, str]) -> int:
    """The number of the process behind docker's socket; 0 if it is not on this machine."""
    address = environ.get("DOCKER_HOST", "unix:///var/run/docker.sock")
    if not address.startswith("unix://"):
        return 0
    with contextlib.suppress(OSError), socket.socket(socket.AF_UNIX) as there:
        there.settimeout(_SECONDS)
        there.connect(address.removeprefix("unix://"))
        size = struct.calcsize("3i")
        said = there.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, size)
        pid, _, _ = struct.unpack("3i", said)
        return int(pid)
    return 0

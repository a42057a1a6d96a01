"""Run a program without a network.

    python3 -I -S offline.py PROGRAM [ARGUMENT…]

The program gets a network of its own that holds nothing but the loopback. Linux lets root have
one, and everybody in a user namespace of their own where that is allowed. Ends with 125, having run
nothing, where it is not.
"""

from __future__ import annotations

import ctypes
import fcntl
import functools
import os
import socket
import struct
import subprocess
import sys

_NEW_NETWORK = 0x40000000
_NEW_USER = 0x10000000
_SET_FLAGS = 0x8914
_UP_AND_RUNNING = 0x41
CANNOT = 125


def without_network(command: list[str]) -> list[str]:
    """The words that run a command without a network."""
    return [sys.executable, "-I", "-S", __file__, *command]


@functools.cache
def can_be_had() -> bool:
    """Whether this machine lets us have it."""
    done = subprocess.run(without_network(["true"]), check=False, capture_output=True)
    return done.returncode == 0


def _cut_off() -> None:
    user, group = os.geteuid(), os.getegid()
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.unshare(_NEW_NETWORK):
        if libc.unshare(_NEW_USER | _NEW_NETWORK):
            raise OSError(ctypes.get_errno(), "no network namespace")
        # The same person inside as outside.
        for name, text in (
            ("setgroups", "deny"),
            ("uid_map", f"{user} {user} 1"),
            ("gid_map", f"{group} {group} 1"),
        ):
            with open(f"/proc/self/{name}", "w") as file:  # noqa: PTH123
                file.write(text)
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as any_socket:
        fcntl.ioctl(any_socket, _SET_FLAGS, struct.pack("16sH14x", b"lo", _UP_AND_RUNNING))


if __name__ == "__main__":
    try:
        _cut_off()
    except OSError as error:
        print(f"offline.py: {error}", file=sys.stderr)
        sys.exit(CANNOT)
    os.execvp(sys.argv[1], sys.argv[1:])

"""A GNU make jobserver on a named pipe: one pool of job slots for every tool of a build.

Ninja 1.13 and make 4.4 take a token from the pipe before each job after their first and give
it back when the job ends, so nested and neighbouring builds share the cores.
https://www.gnu.org/software/make/manual/html_node/POSIX-Jobserver.html
"""

from __future__ import annotations

import fcntl
import os
import struct
import termios
from pathlib import Path

_TOKEN = b"+"


class Jobserver:
    """The pool: `cores` jobs at once, of which each client runs one without a token."""

    def __init__(self, path: Path, cores: int) -> None:
        self.path = path
        self.cores = cores
        self._pipe = -1

    def __enter__(self) -> Jobserver:
        os.mkfifo(self.path, 0o600)
        # Open for both: a pipe with no writer at some moment would read as ended.
        self._pipe = os.open(self.path, os.O_RDWR | os.O_NONBLOCK | os.O_CLOEXEC)
        self.put(self.cores - 1)
        return self

    def __exit__(self, *_: object) -> None:
        if self._pipe >= 0:
            os.close(self._pipe)
            self._pipe = -1
        self.path.unlink(missing_ok=True)

    @property
    def makeflags(self) -> str:
        """What MAKEFLAGS has to be for a client to find the pool."""
        return f" -j{self.cores} --jobserver-auth=fifo:{self.path}"

    def put(self, count: int = 1) -> None:
        """Let clients start this many jobs more."""
        if count > 0:
            os.write(self._pipe, _TOKEN * count)

    def take(self) -> bool:
        """Take one job slot out of the pool, if one is free now."""
        try:
            return bool(os.read(self._pipe, 1))
        except BlockingIOError:
            return False

    @property
    def free(self) -> int:
        """How many tokens lie in the pipe."""
        return int(struct.unpack("i", fcntl.ioctl(self._pipe, termios.FIONREAD, b"\0" * 4))[0])

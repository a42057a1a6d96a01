"""Locks between processes: `flock` on a file, so a lock dies with its holder.

A lock's file goes away when it is released. Whoever waited for it then holds a lock on a file
nobody else can find, which is why the file is looked at again once the lock is held.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import stat
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from torchsmith.owners import make_folder


@dataclass(frozen=True, slots=True)
class Holder:
    """The process that holds a lock: 0 if unknown; `host` only where it may be another."""

    pid: int
    host: str = ""

    def __str__(self) -> str:
        return f"pid {self.pid} on {self.host}" if self.host else f"pid {self.pid}"


class Lock:
    """One lock, held by at most one holder at a time, threads of one process included."""

    poll = 0.1

    def __init__(self, path: Path) -> None:
        self.path = path
        self._descriptor: int | None = None

    @property
    def descriptor(self) -> int:
        """The open file; a child that inherits it keeps the lock held."""
        if self._descriptor is None:
            raise RuntimeError(f"{self.path} is not held")
        return self._descriptor

    def try_acquire(self) -> bool:
        """Take the lock if nobody has it."""
        make_folder(self.path.parent)
        while True:
            descriptor = self._open()
            if descriptor is None:
                continue
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                os.close(descriptor)
                return False
            except BaseException:
                os.close(descriptor)
                raise
            if self._is_current(descriptor):
                # Who holds it is only told to those who wait: a full disk may keep it out.
                with contextlib.suppress(OSError):
                    os.ftruncate(descriptor, 0)
                    os.pwrite(descriptor, str(os.getpid()).encode(), 0)
                self._descriptor = descriptor
                return True
            os.close(descriptor)

    def _open(self) -> int | None:
        """Open the lock's file; None if something else lay in its place, which is gone now.

        A link, or a second name of another file, would have that file overwritten.
        """
        flags = os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
        try:
            descriptor = os.open(self.path, flags, 0o644)
        except OSError as error:
            if error.errno not in (errno.ELOOP, errno.ENXIO):
                raise
            self.path.unlink(missing_ok=True)
            return None
        status = os.fstat(descriptor)
        # No name at all: its holder let go of it just now, which is looked at later.
        if stat.S_ISREG(status.st_mode) and status.st_nlink < 2:
            return descriptor
        os.close(descriptor)
        self.path.unlink(missing_ok=True)
        return None

    def acquire(
        self,
        on_wait: Callable[[Holder], None] | None = None,
        stopped: Callable[[], bool] = lambda: False,
    ) -> bool:
        """Wait for the lock; `on_wait` hears once whose it is. False when told to stop."""
        told = False
        while not self.try_acquire():
            if stopped():
                return False
            if not told and on_wait is not None:
                on_wait(self.holder())
                told = True
            time.sleep(self.poll)
        return True

    def holder(self) -> Holder:
        """Who holds it."""
        try:
            return Holder(int(self.path.read_text() or 0))
        except (OSError, ValueError):
            return Holder(0)

    def release(self) -> None:
        """Let go; the file goes first, while nobody else can hold it."""
        if self._descriptor is not None:
            with contextlib.suppress(OSError):
                self.path.unlink()
            os.close(self._descriptor)
            self._descriptor = None

    def _is_current(self, descriptor: int) -> bool:
        try:
            return os.path.samestat(os.fstat(descriptor), self.path.stat())
        except FileNotFoundError:
            return False

    def __enter__(self) -> Lock:
        self.acquire()
        return self

    def __exit__(self, *_: object) -> None:
        self.release()

"""A wish to stop while an engine works: an error like others, so that its program is ended."""

from __future__ import annotations

import contextlib
import signal
import threading
from collections.abc import Iterator
from types import FrameType

from torchsmith.errors import InterruptedRunError

# Ctrl-C is Python's own, and an error already.
_SIGNALS = (signal.SIGTERM, signal.SIGHUP)


@contextlib.contextmanager
def heeding_signals() -> Iterator[None]:
    """Raise where a signal would end us on the spot and leave a program behind."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def heard(number: int, _: FrameType | None) -> None:
        raise InterruptedRunError(number)

    before = {number: signal.getsignal(number) for number in _SIGNALS}
    try:
        for number, handler in before.items():
            if handler != signal.SIG_IGN:
                signal.signal(number, heard)
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)

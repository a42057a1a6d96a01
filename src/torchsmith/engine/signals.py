"""Hearing the signals that ask a program to stop."""

from __future__ import annotations

import contextlib
import signal
import threading
from collections.abc import Callable, Iterable, Iterator


@contextlib.contextmanager
def hearing(signals: Iterable[signal.Signals], heard: Callable[[int], None]) -> Iterator[None]:
    """Have a function called for each of these signals, for as long as this lasts."""
    if threading.current_thread() is not threading.main_thread():
        # Python lets only the main thread listen.
        yield
        return
    before = {number: signal.getsignal(number) for number in signals}
    try:
        for number, handler in before.items():
            # `nohup` and a shell's `&` have signals ignored, and mean it.
            if handler != signal.SIG_IGN:
                signal.signal(number, lambda number, _: heard(number))
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)

"""A wish to stop while an engine works: an error like others, so that its program is ended."""

from __future__ import annotations

import contextlib
import signal
from collections.abc import Iterator

from torchsmith.engine.signals import hearing
from torchsmith.errors import InterruptedRunError

# Ctrl-C is Python's own, and an error already.
_SIGNALS = (signal.SIGTERM, signal.SIGHUP)


@contextlib.contextmanager
def heeding_signals() -> Iterator[None]:
    """Raise where a signal would end us on the spot and leave a program behind."""

    def heard(number: int) -> None:
        raise InterruptedRunError(number)

    with hearing(_SIGNALS, heard):
        yield

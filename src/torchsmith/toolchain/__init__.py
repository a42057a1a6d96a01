"""Compilers and what drives them: for now, compiling within a memory budget.

``governor`` is what a build uses. ``admission`` decides who may start, ``admission_server``
speaks with the ``launch`` program that stands before each compiler, ``jobserver`` shares the
cores, ``memory_book`` remembers what each file took, ``memory_meter`` reads what is free.
"""

from torchsmith.toolchain.governor import Governor, launcher
from torchsmith.toolchain.governor_events import (
    Event,
    Finished,
    GaveUp,
    Retried,
    Started,
    WaitingForMemory,
)
from torchsmith.toolchain.memory_book import Estimate, MemoryBook, Totals

__all__ = [
    "Estimate",
    "Event",
    "Finished",
    "GaveUp",
    "Governor",
    "MemoryBook",
    "Retried",
    "Started",
    "Totals",
    "WaitingForMemory",
    "launcher",
]

"""Events of the memory governor, for a progress display or a timeline.

`at` is seconds since the governor began; sizes are bytes.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class WaitingForMemory:
    """A compile has to wait."""

    at: float
    job: int
    file: str
    estimate: int
    basis: str


@dataclass(frozen=True, slots=True)
class Started:
    """A compile starts; all `running` together are expected to take `reserved`."""

    at: float
    job: int
    file: str
    estimate: int
    basis: str
    attempt: int
    alone: bool
    running: int
    reserved: int


@dataclass(frozen=True, slots=True)
class Finished:
    """A compile ended by itself, well or badly; `output` is the path of what it makes."""

    at: float
    job: int
    file: str
    output: str
    status: int
    peak: int
    cpu_seconds: float
    wall_seconds: float


@dataclass(frozen=True, slots=True)
class FilesDone:
    """setuptools has compiled `done` of its `total` files; `file` is the last."""

    at: float
    file: str
    done: int
    total: int


@dataclass(frozen=True, slots=True)
class Retried:
    """A compile was killed for memory at `peak`, and will run again, alone."""

    at: float
    job: int
    file: str
    peak: int
    attempt: int


@dataclass(frozen=True, slots=True)
class GaveUp:
    """A compile was killed for memory, even alone, as often as it was tried."""

    at: float
    job: int
    file: str
    peak: int
    attempts: int
    allowed: int

    @property
    def cause(self) -> str:
        """What happened, in a sentence."""
        return (
            f"{self.file}: killed for memory {self.attempts} times, at last while running alone;"
            f" it had reached {_size(self.peak)} of the {_size(self.allowed)} this build may use"
        )

    @property
    def cure(self) -> str:
        """What to do about it."""
        return (
            "Give the build more memory (a larger limit on its container or job, or swap),"
            " build for fewer GPU architectures, or compile with clang, which needs less."
        )


Event = WaitingForMemory | Started | Finished | FilesDone | Retried | GaveUp
Listener = Callable[[Event], None]


def _size(size: int) -> str:
    return f"{size / (1 << 30):.1f} GiB" if size >= 1 << 30 else f"{size / (1 << 20):.0f} MiB"

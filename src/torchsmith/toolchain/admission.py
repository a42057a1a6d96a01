"""Which waiting compile may start: the policy, without clocks, sockets or processes.

Heavy ones go first, so that a build does not end with heavy files compiled one at a time; light
ones fill the cores beside them. A compile that was passed over often enough is due: from then on
only those that fit beside it start before it. One that was killed for memory runs alone.
"""

from __future__ import annotations

from dataclasses import dataclass

# A machine that stalls this share of its time on memory is about to run out of it.
PRESSURE_LIMIT = 25.0


@dataclass(frozen=True, slots=True)
class Room:
    """Free memory and its pressure now; `None` where the machine reports neither."""

    available: int | None = None
    pressure: float | None = None


@dataclass(slots=True)
class _Waiting:
    estimate: int
    arrived: int
    alone: bool = False
    passed: int = 0
    due_since: int | None = None


@dataclass(slots=True)
class _Running:
    estimate: int
    started: int
    alone: bool
    resident: int = 0

    @property
    def reserved(self) -> int:
        return max(self.estimate, self.resident)


class Admission:
    """The compiles that wait and that run, and the room between them.

    `budget` is what all running compiles together may be expected to take; `margin` is what
    has to stay free beside it; a compile is due once `patience` others have started before it.
    """

    def __init__(self, budget: int, cores: int, *, margin: int = 0, patience: int = 0) -> None:
        self.budget = budget
        self.cores = cores
        self.margin = margin
        self.patience = patience or max(8, 4 * cores)
        self._waiting: dict[int, _Waiting] = {}
        self._running: dict[int, _Running] = {}
        self._turn = 0

    @property
    def waiting(self) -> int:
        """How many compiles wait."""
        return len(self._waiting)

    @property
    def running(self) -> tuple[int, ...]:
        """The compiles that run."""
        return tuple(self._running)

    @property
    def reserved(self) -> int:
        """Bytes the running ones are expected to take, or hold already if that is more."""
        return sum(each.reserved for each in self._running.values())

    @property
    def solitary(self) -> bool:
        """Whether a compile runs alone, or waits to."""
        return any(each.alone for each in self._waiting.values()) or any(
            each.alone for each in self._running.values()
        )

    def arrive(self, job: int, estimate: int, *, alone: bool = False) -> None:
        """Take in a compile that wants to start."""
        self._turn += 1
        self._waiting[job] = _Waiting(estimate, self._turn, alone)

    def measure(self, job: int, resident: int) -> None:
        """Note what a running compile holds now; its reservation never shrinks."""
        if job in self._running:
            each = self._running[job]
            each.resident = resident
            each.estimate = max(each.estimate, resident)

    def leave(self, job: int) -> None:
        """Forget a compile that ended, or went away while it waited."""
        self._waiting.pop(job, None)
        self._running.pop(job, None)

    def start(self, job: int) -> None:
        """Move a compile from waiting to running."""
        self._turn += 1
        chosen = self._waiting.pop(job)
        for other in self._waiting.values():
            if other.arrived < chosen.arrived:
                other.passed += 1
                if other.passed >= self.patience and other.due_since is None:
                    other.due_since = self._turn
        self._running[job] = _Running(chosen.estimate, self._turn, chosen.alone)

    def candidate(self, room: Room) -> int | None:
        """Return the compile that should start now, or `None` if none may."""
        if not self._waiting or len(self._running) >= self.cores:
            return None
        if self.solitary:
            # Nothing joins a compile that runs alone, and it joins nothing.
            ready = [job for job, each in self._waiting.items() if each.alone]
            return ready[0] if ready and not self._running else None
        order = sorted(self._waiting, key=self._rank)
        if not self._running:
            # One compile always runs: otherwise nothing of ours would ever free memory.
            return order[0]
        if room.pressure is not None and room.pressure > PRESSURE_LIMIT:
            return None
        free = self._free(room)
        due = self._due()
        for job in order:
            each = self._waiting[job]
            if each.estimate <= free and (due is None or due is each or self._fits(each, due)):
                return job
        return None

    def _rank(self, job: int) -> tuple[bool, int, int]:
        each = self._waiting[job]
        return each.due_since is None, -each.estimate, each.arrived

    def _due(self) -> _Waiting | None:
        due = [each for each in self._waiting.values() if each.due_since is not None]
        return min(due, key=lambda each: each.due_since or 0, default=None)

    def _fits(self, each: _Waiting, due: _Waiting) -> bool:
        """Whether it will not delay the one that is due, once those already running end."""
        since = due.due_since or 0
        later = sum(run.reserved for run in self._running.values() if run.started > since)
        return later + each.estimate + due.estimate <= self.budget

    def _free(self, room: Room) -> int:
        """Bytes neither promised to a running compile nor taken by anyone else."""
        free = self.budget - self.reserved
        if room.available is not None:
            promised = sum(each.reserved - each.resident for each in self._running.values())
            free = min(free, room.available - self.margin - promised)
        return free

"""What happens during a run, as values: for a display, for the journal, for a JSON stream."""

from __future__ import annotations

import re
import time
from collections import deque
from collections.abc import Callable

import msgspec

_NINJA = re.compile(r"\[(\d+)/(\d+)\]\s*(.*)")
_CAMEL = re.compile(r"(?<!^)(?=[A-Z])")


class Event(msgspec.Struct, frozen=True, kw_only=True):
    """Something that happened, and when (seconds since 1970)."""

    at: float = msgspec.field(default_factory=time.time)


class PlannedStep(msgspec.Struct, frozen=True, kw_only=True):
    """A step of the plan: `needs` are those it waits for, `place` the system it is run in."""

    step: str
    title: str
    kind: str
    needs: tuple[str, ...]
    place: str


class RunStarted(Event, frozen=True, kw_only=True):
    """A run begins: `total` steps are looked at, `to_run` of them will be run."""

    run: str
    plan: str
    work: str
    total: int
    to_run: tuple[str, ...]
    steps: tuple[PlannedStep, ...] = ()


class StepExpectation(msgspec.Struct, frozen=True, kw_only=True):
    """How long a step is expected to take, and what that rests on."""

    step: str
    title: str
    seconds: float
    basis: str


class RunExpected(Event, frozen=True, kw_only=True):
    """What will be done and how long that takes, told before the first step."""

    run: str
    cores: int
    seconds: float
    steps: tuple[StepExpectation, ...]


class Waiting(Event, frozen=True, kw_only=True):
    """Another torchsmith holds what is wanted: `step` is empty when it is the work folder."""

    step: str
    pid: int
    message: str


class StepStarted(Event, frozen=True, kw_only=True):
    """A step begins, or goes on where it was stopped."""

    step: str
    title: str
    kind: str
    log: str
    resumed: bool
    # "none", "open", or "not closed": it should have had none, and that cannot be had here.
    network: str = "open"
    # "declared": it sees the files that the plan names; "open": all of the caller's; "not closed":
    # it should have seen the declared ones only, and that cannot be had here.
    files: str = "open"


class StepLine(Event, frozen=True, kw_only=True):
    """A line its programs wrote, secrets taken out."""

    step: str
    text: str


class StepProgress(Event, frozen=True, kw_only=True):
    """How far a compilation is; `rate` is files a second, `seconds_left` unknown at first."""

    step: str
    done: int
    total: int
    rate: float | None
    seconds_left: float | None
    what: str


class StepFinished(Event, frozen=True, kw_only=True):
    """A step was run and what it made is in the store."""

    step: str
    title: str
    seconds: float
    cpu_seconds: float
    peak_rss: int
    bytes_stored: int


class ImageBuilt(Event, frozen=True, kw_only=True):
    """A container tool has an image now; `digest` is its manifest's, if that is known."""

    step: str
    name: str
    id: str
    digest: str
    engine: str


class ImagePushed(Event, frozen=True, kw_only=True):
    """A registry has an image now, which it calls by this digest."""

    step: str
    name: str
    digest: str


class StepCached(Event, frozen=True, kw_only=True):
    """What the step makes was in the store already."""

    step: str
    title: str


class StepSkipped(Event, frozen=True, kw_only=True):
    """Not in the store, and nothing that has to be run reads it."""

    step: str
    title: str


class StepFailed(Event, frozen=True, kw_only=True):
    """A step ended badly."""

    step: str
    title: str
    reason: str
    excerpt: tuple[str, ...]
    log: str


class StepInterrupted(Event, frozen=True, kw_only=True):
    """A step was stopped from outside; it goes on where it was when run again."""

    step: str
    title: str


class Warned(Event, frozen=True, kw_only=True):
    """Something a person should know that stops nothing."""

    message: str


class CompilerCacheUsed(Event, frozen=True, kw_only=True):
    """How many compiles of a run were in the compiler cache; and nvcc's steps in the others."""

    hits: int
    misses: int
    cuda_parts_found: int = 0
    cuda_parts_compiled: int = 0


class RunFinished(Event, frozen=True, kw_only=True):
    """The run is over: `status` is done, failed or interrupted."""

    run: str
    status: str
    seconds: float
    artifacts: tuple[str, ...]
    error: str


OnEvent = Callable[[Event], None]


def event_name(event: Event | type[Event]) -> str:
    """StepStarted -> step-started."""
    kind = event if isinstance(event, type) else type(event)
    return _CAMEL.sub("-", kind.__name__).lower()


def as_json(event: Event) -> dict[str, object]:
    """Plain data for one line of a JSON stream."""
    return {"event": event_name(event), **msgspec.to_builtins(event)}


class Progress:
    """Reads ninja's `[123/1212]` lines of one step.

    The rate is that of the last files: a build slows down in its heavy parts. The time left is
    first computed from the time the step is `expected` to take, later from the time it has taken.
    """

    def __init__(
        self, step: str, clock: Callable[[], float] = time.monotonic, expected: float | None = None
    ) -> None:
        self.step = step
        self._clock = clock
        self._began = clock()
        self._expected = expected or None
        self._seen: deque[tuple[float, int]] = deque(maxlen=64)

    def read(self, line: str) -> StepProgress | None:
        """The progress in a line, if it is one of ninja's."""
        match = _NINJA.match(line)
        if match is None:
            return None
        done, total = int(match[1]), int(match[2])
        if total == 0 or done > total:
            return None
        if self._seen and done < self._seen[-1][1]:
            # A second ninja of the same step counts from one again.
            self._seen.clear()
        now = self._clock()
        self._seen.append((now, done))
        since, before = self._seen[0]
        rate = (done - before) / (now - since) if now > since and done > before else None
        return StepProgress(
            step=self.step,
            done=done,
            total=total,
            rate=rate,
            seconds_left=self._left(now, done / total, (total - done) / rate if rate else None),
            what=match[3],
        )

    def _left(self, now: float, share: float, by_rate: float | None) -> float | None:
        """The seconds left when this share of the files is done."""
        if self._expected is None:
            return by_rate
        took = now - self._began
        as_expected = max(0.0, self._expected - took)
        # Heavy files mostly come first: the remaining ones take less than their share.
        to_come = (1 - share) ** 1.5
        as_before = took * to_come / (1 - to_come) if share else as_expected
        trust = (1 - share) * as_expected / self._expected
        return trust * as_expected + (1 - trust) * as_before

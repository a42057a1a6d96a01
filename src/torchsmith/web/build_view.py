"""One build as its page shows it: steps and their graph, compiles, log, what is known of a failure.

Fifty readers of one build cost what one costs: what they see is read once a moment, for all.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple

from torchsmith.bench.timeline import Timeline, lay_out
from torchsmith.diagnose.diagnose import Diagnosis, explained
from torchsmith.diagnose.scan import scan_file
from torchsmith.engine.compile_log import InFlight, Moment, read_compiles, read_jobs
from torchsmith.engine.expected import last_count
from torchsmith.engine.journal import Journal, RunRecord, StepRecord, past_journal
from torchsmith.engine.store import Store
from torchsmith.engine.tail import kept_log
from torchsmith.errors import UsageError
from torchsmith.owners import open_plain

WIDE, HIGH = 1000, 100


@dataclass(frozen=True)
class Chart:
    """An area under a line, and the height of a limit above the floor."""

    area: str
    limit: float
    most: float
    latest: float


def charts(flight: InFlight) -> tuple[Chart, Chart] | None:
    """Compiles at once against cores, and their memory against the governor's budget."""
    moments = tuple(flight.over_time())
    if len(moments) < 2:
        return None
    return (
        _chart(moments, [float(item.running) for item in moments], flight.cores),
        _chart(moments, [float(item.memory) for item in moments], flight.budget),
    )


def _chart(moments: Sequence[Moment], values: Sequence[float], limit: float) -> Chart:
    first, last = moments[0].at, moments[-1].at
    scale = WIDE / ((last - first) or 1.0)
    top = max([*values, limit, 1.0]) * 1.08
    points = [f"M0 {HIGH}"]
    for item, value in zip(moments, values, strict=True):
        # What is true at one moment stays so until the next.
        points.append(f"H{(item.at - first) * scale:.1f}V{HIGH - value / top * HIGH:.1f}")
    points.append(f"H{WIDE}V{HIGH}Z")
    return Chart("".join(points), HIGH - limit / top * HIGH, max(values), values[-1])


_UNDER_WAY = ("running", "waiting")
_FRESH_S = 0.4
_KEPT = 64
# Only this much of the end of a log is scanned: that takes a second or two.
_DIAGNOSED = 8 << 20
_BOX, _HIGH, _GAP, _ROOM = 210, 46, 14, 60
# More boxes than these are no picture any more.
_MOST_BOXES = 80


@contextmanager
def journal_at(root: Path) -> Iterator[Journal | None]:
    """The journal of a store, for as long as one answer takes."""
    journal = past_journal(Store(root))
    if journal is None:
        yield None
        return
    with closing(journal):
        yield journal


@dataclass(frozen=True)
class StepView:
    """A step: where it is, what was expected of it, what it took so far."""

    step: str
    title: str
    kind: str
    status: str
    place: str
    needs: tuple[str, ...]
    log: str
    error: str
    started: float | None
    seconds: float | None
    expected: float | None
    done: int = 0
    total: int = 0

    @property
    def late(self) -> bool:
        """Whether it took clearly longer than was expected."""
        return bool(self.expected and self.seconds and self.seconds > 1.25 * self.expected + 5)


@dataclass(frozen=True)
class Box:
    """A step in the drawing."""

    view: StepView
    x: int
    y: int


@dataclass(frozen=True)
class Graph:
    """The steps as boxes and the arrows between them, each as x1, y1, x2, y2."""

    boxes: tuple[Box, ...]
    arrows: tuple[tuple[int, int, int, int], ...]
    width: int
    height: int


@dataclass(frozen=True)
class BuildView:
    """All of it at one moment."""

    run: RunRecord
    steps: tuple[StepView, ...]
    graph: Graph | None
    flight: InFlight
    warnings: tuple[str, ...]
    artifacts: tuple[str, ...]
    expected: float | None

    @property
    def over(self) -> bool:
        """Whether nothing more will come."""
        return self.run.status not in _UNDER_WAY

    @property
    def seconds(self) -> float:
        """How long it took, or takes so far."""
        return max(0.0, (self.run.ended or time.time()) - self.run.started)

    def step(self, name: str) -> StepView | None:
        """A step by its name; without one, the step a reader most likely wants."""
        if name:
            return next((item for item in self.steps if item.step == name), None)
        for status in ("failed", "running", "interrupted"):
            for item in self.steps:
                if item.status == status and item.log:
                    return item
        return next((item for item in reversed(self.steps) if item.log), None)


class Known(NamedTuple):
    """What is known of a failure, by a log without its first lines."""

    found: Diagnosis
    skipped: int


@dataclass
class Builds:
    """The builds of a store, read at most every moment."""

    root: Path
    _turn: threading.Lock = field(default_factory=threading.Lock)
    _views: dict[str, tuple[float, BuildView]] = field(default_factory=dict)
    _flights: dict[str, InFlight] = field(default_factory=dict)
    _known: dict[tuple[str, int, int], Known] = field(default_factory=dict)

    def view(self, run: str) -> BuildView:
        """A build as it is now."""
        with self._turn:
            at, known = self._views.get(run, (0.0, None))
            if known is None or (time.monotonic() - at > _FRESH_S and not known.over):
                known = self._read(run)
                _put(self._views, run, (time.monotonic(), known))
            return known

    def _read(self, run: str) -> BuildView:
        with journal_at(self.root) as journal:
            record = journal.run(run) if journal is not None else None
            if journal is None or record is None:
                raise UsageError(f"there is no build {run!r}", "The list has those that are known.")
            steps, events = journal.steps(run), journal.events(run)
        flight = self._flights.get(run) or InFlight(self.root / "logs", run)
        _put(self._flights, run, flight)
        flight.look()
        return _view(record, steps, events, flight.now(), self.log_path)

    def log_path(self, log: str) -> Path | None:
        """A log, if it is one of this store."""
        return kept_log(self.root, log)

    def timeline(self, run: str) -> Timeline | None:
        """Where the time of a build went."""
        logs = self.root / "logs"
        return lay_out(read_compiles(logs, run), read_jobs(logs, run))

    def diagnosis(self, step: StepView) -> Known | None:
        """What is known of a failure; of a very long log by its end."""
        path = self.log_path(step.log)
        if path is None:
            return None
        try:
            with os.fdopen(open_plain(path), "rb") as file:
                status = os.fstat(file.fileno())
                key = (str(path), status.st_size, status.st_mtime_ns)
                if key not in self._known:
                    skipped = _skip(file, status.st_size - _DIAGNOSED)
                    _put(self._known, key, Known(explained(scan_file(file)), skipped))
                return self._known[key]
        except (OSError, ValueError):
            return None


def _skip(file: BinaryIO, count: int) -> int:
    """Go on behind so many bytes, and the line they end in; how many lines that were."""
    lines = 0
    while count > 0 and (chunk := file.read(min(count, 1 << 20))):
        lines += chunk.count(b"\n")
        count -= len(chunk)
    return lines + file.readline().count(b"\n") if file.tell() else 0


def _put(kept: dict[Any, Any], key: object, value: object) -> None:
    """Keep a value, and no more than the latest few."""
    kept.pop(key, None)
    kept[key] = value
    while len(kept) > _KEPT:
        del kept[next(iter(kept))]


def _view(
    run: RunRecord,
    records: Sequence[StepRecord],
    events: Sequence[Mapping[str, object]],
    flight: InFlight,
    log_path: Callable[[str], Path | None],
) -> BuildView:
    planned: dict[str, Mapping[str, Any]] = {}
    expected: dict[str, float] = {}
    warnings: list[str] = []
    artifacts: list[str] = []
    total: float | None = None
    for event in events:
        # Older journals lack some of these, and half-written ones hold anything.
        match event:
            case {"event": "run-started", "steps": list(steps)}:
                planned = {str(item["step"]): item for item in steps if _is_planned(item)}
            case {
                "event": "run-expected",
                "steps": list(steps),
                "seconds": int() | float() as all_,
            }:
                total = float(all_)
                for item in steps:
                    if isinstance(item, dict) and isinstance(item.get("seconds"), int | float):
                        expected[str(item.get("step"))] = float(item["seconds"])
            case {"event": "warned" | "waiting", "message": str(message)}:
                warnings.append(message)
            case {"event": "run-finished", "artifacts": list(paths)}:
                artifacts = [str(path) for path in paths]
    known = {item.step: item for item in records}
    names = [*planned, *(name for name in known if name not in planned)]
    views = [
        _step_view(name, known.get(name), planned.get(name, {}), expected.get(name), log_path)
        for name in names
    ]
    return BuildView(
        *(run, tuple(views), _graph(views), flight),
        *(tuple(warnings[-20:]), tuple(artifacts), total),
    )


def _is_planned(item: object) -> bool:
    return (
        isinstance(item, dict)
        and isinstance(item.get("step"), str)
        and isinstance(item.get("needs"), list)
    )


def _step_view(
    name: str,
    record: StepRecord | None,
    planned: Mapping[str, Any],
    expected: float | None,
    log_path: Callable[[str], Path | None],
) -> StepView:
    status = record.status if record else "to come"
    kind = str(planned.get("kind", ""))
    seconds: float | None = None
    done = total = 0
    if record is not None and record.started:
        seconds = max(0.0, (record.ended or time.time()) - record.started)
        path = log_path(record.log)
        if status in _UNDER_WAY and kind in ("compile", "") and path is not None:
            done, total = last_count(path) or (0, 0)
    title = (record.title if record else "") or str(planned.get("title", name))
    return StepView(
        step=name,
        title=title,
        kind=kind,
        status=status,
        place=str(planned.get("place", "")),
        needs=tuple(map(str, planned.get("needs", ()))),
        log=record.log if record else "",
        error=record.error if record else "",
        started=record.started if record else None,
        seconds=seconds,
        expected=expected,
        done=done,
        total=total,
    )


def _graph(views: Sequence[StepView]) -> Graph | None:
    """The steps in columns, each behind all that it needs; None where there is nothing to draw."""
    names = {item.step for item in views}
    if not any(item.needs for item in views) or len(views) > _MOST_BOXES:
        return None
    column: dict[str, int] = {}
    pending = list(views)
    while pending:
        ready = [
            item for item in pending if all(need in column for need in item.needs if need in names)
        ]
        if not ready:
            # A plan has no cycles: another program wrote this.
            return None
        for item in ready:
            column[item.step] = max(
                (column[need] + 1 for need in item.needs if need in names), default=0
            )
        pending = [item for item in pending if item.step not in column]
    rows: dict[int, int] = {}
    boxes: dict[str, Box] = {}
    arrows: list[tuple[int, int, int, int]] = []

    def take(place: int) -> tuple[int, int]:
        row = rows.get(place, 0)
        rows[place] = row + 1
        return 4 + place * (_BOX + _ROOM), 4 + row * (_HIGH + _GAP)

    # From the left: an arrow that crosses a column gets a row there, as a box does.
    passing: dict[str, tuple[int, int]] = {}
    last = {
        item.step: max((column[on.step] for on in views if item.step in on.needs), default=0)
        for item in views
    }
    for place in range(max(column.values()) + 1):
        for item in (item for item in views if column[item.step] == place):
            box = boxes[item.step] = Box(item, *take(place))
            middle = box.y + _HIGH // 2
            arrows += [(*passing[need], box.x, middle) for need in item.needs if need in passing]
            passing[item.step] = (box.x + _BOX, middle)
        for name in [name for name in passing if column[name] < place < last[name]]:
            x, y = take(place)
            middle = y + _HIGH // 2
            arrows += [(*passing[name], x, middle), (x, middle, x + _BOX, middle)]
            passing[name] = (x + _BOX, middle)
    width = 8 + (max(column.values()) + 1) * (_BOX + _ROOM) - _ROOM
    height = 8 + max(rows.values()) * (_HIGH + _GAP) - _GAP
    return Graph(tuple(boxes.values()), tuple(arrows), width, height)

"""What a job keeps of itself in a folder, on targets that have one: output, and how it ended.

    started       the target's id of it, and when
    ended         its exit code, and when
    ROLE-N.log    what a task said
    ROLE-N.exit   the exit code of a task
    script.log    what the job's own script said

An array has a folder of its own for each element; what the script of one said is in
script.ELEMENT.log.
"""

from __future__ import annotations

import contextlib
import re
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from torchsmith.foreign import whole
from torchsmith.jobs.client import LineCutter, Output, Submitted, TaskStatus, chooser
from torchsmith.jobs.states import State, of_exit

# No role can be called so: its tasks have a number behind a dash.
SCRIPT_LOG = "script.log"
_LOG = re.compile(r"(?:(?P<role>[A-Za-z_]\w*)-(?P<index>\d+)|script(?:\.(?P<element>\d+))?)\.log")
_CHUNK = 1 << 16
_POLL_S = 0.2
# What is read of all logs together, and at least of each, where their ends are enough.
_RECENT = 1 << 20
_LEAST = 1 << 14


@dataclass(frozen=True)
class Mark:
    """A line of a word and a time: the start or the end of a job."""

    word: str
    at: float


def mark(folder: Path, name: str) -> Mark | None:
    """What a job wrote at its start or end; `None` if it did not come to that."""
    try:
        word, at = (folder / name).read_text(encoding="utf-8").split()
        return Mark(word, float(at))
    except (OSError, ValueError):
        return None


def elements(folder: Path) -> list[str]:
    """The elements of an array that have begun; none where there is no array."""
    with contextlib.suppress(OSError):
        found = (
            item.name for item in folder.iterdir() if whole(item.name) is not None and item.is_dir()
        )
        return sorted(found, key=int)
    return []


def exit_code(folder: Path, task: str) -> int | None:
    """How a task ended, if it did by itself."""
    try:
        return int((folder / f"{task}.exit").read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None


def tasks(
    folder: Path, roles: Mapping[str, int], state: State, *, element: str = ""
) -> tuple[TaskStatus, ...]:
    """Each task of a job that is in this state, by what it kept."""
    place = folder / element if element else folder
    names = [(role, index) for role, count in roles.items() for index in range(count)]
    codes = {(role, index): exit_code(place, f"{role}-{index}") for role, index in names}
    failed = any(codes.values())
    found = []
    for role, index in names:
        code = codes[role, index]
        if code is not None:
            own = of_exit(code)
            # 143: ended for another one that failed, or together with the whole job.
            if code == 143 and (failed or state is State.CANCELLED):
                own = State.CANCELLED
        elif state is State.FAILED and failed:
            own = State.CANCELLED
        else:
            own = state
        found.append(TaskStatus(role, index, own, code, element=element))
    return tuple(found)


@dataclass(frozen=True)
class _Log:
    """What a task printed, or without a task what the job's own script did."""

    path: Path
    task: TaskStatus | None
    element: str

    @property
    def name(self) -> str:
        own = self.task.own_name if self.task else "script"
        return f"{self.element}/{own}" if self.element else own


def _logs(folder: Path) -> Iterator[_Log]:
    """The logs there are by now, in order: the script's before those of the tasks."""
    for element in ("", *elements(folder)):
        place = folder / element
        found: list[tuple[str, int, str, _Log]] = []
        for path in place.iterdir() if place.is_dir() else ():
            if match := _LOG.fullmatch(path.name):
                at = element or match["element"] or ""
                role, index = match["role"] or "", int(match["index"] or 0)
                task = TaskStatus(role, index, State.RUNNING, element=at) if role else None
                found.append((role, index, path.name, _Log(path, task, at)))
        yield from (log for *_, log in sorted(found, key=lambda item: item[:3]))


class _Tail:
    """A log as it grows."""

    def __init__(self, log: _Log, most: int | None = None) -> None:
        self.log = log
        self._cutter = LineCutter()
        self._skipped = most is not None and self._skip(most)

    def _skip(self, most: int) -> bool:
        """Begin near the end."""
        with contextlib.suppress(OSError):
            self._cutter.taken = max(0, self.log.path.stat().st_size - most)
        return self._cutter.taken > 0

    def lines(self, *, last: bool) -> Iterator[str]:
        """The lines that came since; `last`: also one that has no end."""
        try:
            with self.log.path.open("rb") as file:
                file.seek(self._cutter.taken)
                if self._skipped:
                    # In the middle of a line, most likely.
                    self._cutter.taken += len(file.readline(_CHUNK))
                    self._skipped = False
                while chunk := file.read(_CHUNK):
                    yield from self._cutter.feed(chunk)
        except OSError:
            return
        if last:
            yield from self._cutter.finish()


def lines(job: Submitted, wanted: Output, over: Callable[[], bool] = lambda: True) -> Iterator[str]:
    """A job's output; where it has several tasks, each line says whose it is."""
    is_wanted = chooser(job, wanted)
    # What the script prints belongs to no task.
    with_script = not (wanted.role or wanted.task)
    alone = sum(job.roles.values()) == 1
    tails: dict[Path, _Tail] = {}
    while True:
        # Asked before reading: what is written before the end is read after it.
        last = not wanted.follow or over()
        logs = [
            log for log in _logs(job.kept) if (is_wanted(log.task) if log.task else with_script)
        ]
        most = max(_LEAST, _RECENT // max(1, len(logs))) if wanted.recent else None
        for log in logs:
            tail = tails.get(log.path) or tails.setdefault(log.path, _Tail(log, most))
            named = not wanted.task and (log.element or (log.task and not alone))
            for line in tail.lines(last=last):
                yield f"{log.name} | {line}" if named else line
        if last:
            return
        time.sleep(_POLL_S)


def last_of_script(job: Submitted, count: int) -> list[str]:
    """The end of what the job's own script said, which is that of no task."""
    tail: deque[str] = deque(maxlen=count)
    for log in _logs(job.kept):
        if log.task is None:
            tail.extend(_Tail(log, _RECENT).lines(last=True))
    return list(tail)

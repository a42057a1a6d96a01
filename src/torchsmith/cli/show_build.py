"""A build on the terminal: live progress for people, lines for a log, JSON for scripts."""

from __future__ import annotations

import contextlib
import re
import shlex
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING

from torchsmith.cli.output import (
    counted,
    duration,
    log_line,
    print_json,
    print_json_line,
    rich_console,
    say,
    style,
    tell,
)
from torchsmith.engine import events
from torchsmith.errors import TorchsmithError
from torchsmith.toolchain import governor_events

if TYPE_CHECKING:
    from rich.progress import Progress, TaskID

    from torchsmith.engine.guard import Guarded
    from torchsmith.engine.runner import Outlook
    from torchsmith.plan.models import Step

# A log wants a sign of life, not a line for every file.
_EVERY_SECONDS = 15.0
_GIB = 1 << 30
# `STEP 3/9: RUN …` of podman and buildah, `#7 [install 2/3] RUN …` of docker.
_ENGINE_STEP = re.compile(r"(\[\d+/\d+\] )?STEP \d+/\d+:|#\d+ \[(?!internal)")


def _so_far(done: int, total: int) -> str:
    share = f" ({done / total:.0%})" if total else ""
    return f"{done}/{total} compiles{share}"


class Json:
    """Every event as a JSON document, a line each."""

    def __init__(self) -> None:
        self._lock = threading.Lock()

    def event(self, event: events.Event) -> None:
        """Tell of an event."""
        with self._lock:
            print_json_line(events.as_json(event))

    def memory(self, event: governor_events.Event) -> None:
        """Leave compiles out: the lines of the steps have them."""


class Lines:
    """One line for each thing worth one; `quiet` leaves those about success out."""

    def __init__(self, *, quiet: bool) -> None:
        self.quiet = quiet
        self.running = 0
        self.reserved = 0
        self._last_line = 0.0
        self._compiled = 0
        self._counted = False

    def line(self, text: str) -> None:
        """Write a line."""
        log_line(text)

    def event(self, event: events.Event) -> None:
        """Tell of an event."""
        match event:
            case events.StepFailed():
                self.line(f"x  {event.title}: {event.reason}")
                for text in event.excerpt:
                    self.line(f"   {text}")
                self.line(f"   the whole log: {event.log}")
            case events.Warned() | events.Waiting():
                self.line(f"!  {event.message}")
            case _ if self.quiet:
                return
            case events.RunExpected():
                self.expected(event)
            case events.StepStarted():
                again = "goes on: " if event.resumed else ""
                self.line(f"   {again}{event.title}")
            case events.StepLine() if _ENGINE_STEP.match(event.text):
                self.line(f"   {event.text[:100]}")
            case events.ImageBuilt():
                self.line(f"   {event.name} is {event.id[:12]} in {event.engine}")
            case events.ImagePushed():
                self.line(f"   {event.name} is {event.digest} there")
            case events.StepCached():
                self.line(f"=  {event.title} (in the store)")
            case events.StepFinished():
                peak = f", {event.peak_rss / _GIB:.1f} GiB" if event.peak_rss >= _GIB / 10 else ""
                self.line(f"ok {event.title} ({duration(event.seconds)}{peak})")
            case events.StepProgress():
                self.progress(event)
            case events.CompilerCacheUsed():
                every = event.hits + event.misses
                self.line(f"   {event.hits} of {every} compiles were in the compiler cache")
                if parts := event.cuda_parts_found + event.cuda_parts_compiled:
                    found = f"{event.cuda_parts_found} of {parts}"
                    self.line(f"   {found} steps of nvcc in the others were there, too")
            case events.RunFinished() if event.status == "done":
                self.line(f"done in {duration(event.seconds)}")

    def expected(self, event: events.RunExpected) -> None:
        """What will be done and how long that takes, before any of it is."""
        if not event.steps:
            self.line("nothing to be run: every result is in the store")
            return
        count = len(event.steps)
        self.line(
            f"{counted(count, 'step')} to be run, about {duration(event.seconds)} "
            f"on {counted(event.cores, 'core')}; stop it with Ctrl-C, the same command goes on"
        )
        for item in event.steps:
            self.line(f"   {duration(item.seconds):>7}  {item.title} ({item.basis})")

    def progress(self, event: events.StepProgress) -> None:
        """How far a step is with its compiles."""
        self._counted = True
        if self._is_time() or event.done == event.total:
            left = f", {duration(event.seconds_left)} left" if event.seconds_left else ""
            self.line(f"   {_so_far(event.done, event.total)}{left}")

    def _is_time(self) -> bool:
        now = time.monotonic()
        if now - self._last_line < _EVERY_SECONDS:
            return False
        self._last_line = now
        return True

    def memory(self, event: governor_events.Event) -> None:
        """Tell of a compile."""
        match event:
            case governor_events.Retried():
                self.line(f"!  {event.file} was killed for memory; it is compiled again, alone")
            case _ if self.quiet:
                return
            case governor_events.Started():
                self.running, self.reserved = event.running, event.reserved
            case governor_events.FilesDone():
                self.files(event)
            case governor_events.Finished() if not self._counted:
                # The number of compiles is not known.
                self._compiled += 1
                if self._is_time():
                    at_once = f"{self.running} at once, {self.reserved / _GIB:.1f} GiB"
                    self.line(f"   {counted(self._compiled, 'compile')}; {at_once}")

    def files(self, event: governor_events.FilesDone) -> None:
        """How far setuptools is with the files that it compiles."""
        self._counted = True
        if self._is_time() or event.done == event.total:
            self.line(f"   {_so_far(event.done, event.total)}")


class _Guarded(Lines):
    """The same for a command that is not ours, whose own output is passed on."""

    def event(self, event: events.Event) -> None:
        if isinstance(event, events.StepLine):
            print(event.text, flush=True)
        else:
            super().event(event)


class OnTerminal(Lines):
    """The same above live lines at the foot of the terminal, one for each task."""

    def __init__(self, progress: Progress) -> None:
        super().__init__(quiet=False)
        self._progress = progress
        self._tasks: dict[str, TaskID] = {}

    def line(self, text: str) -> None:
        """Write a line above the live ones."""
        self._progress.console.print(text, highlight=False, markup=False)

    def begin(self, key: str, title: str) -> None:
        """Show a task, unless it is shown already."""
        if key not in self._tasks:
            self._tasks[key] = self._progress.add_task(title, total=None, count="", now="")

    def end(self, key: str) -> None:
        """Show a task no longer."""
        if (task := self._tasks.pop(key, None)) is not None:
            self._progress.remove_task(task)


class _Live(OnTerminal):
    """The steps that run, and what each does now."""

    def event(self, event: events.Event) -> None:
        match event:
            case events.StepStarted():
                self.begin(event.step, event.title)
                return
            case events.StepFinished() | events.StepFailed() | events.StepInterrupted():
                self.end(event.step)
            case events.StepLine() if event.step in self._tasks:
                self._progress.update(self._tasks[event.step], now=event.text.strip()[-60:])
                return
        super().event(event)

    def files(self, event: governor_events.FilesDone) -> None:
        # Steps that compile run one at a time.
        for task in self._tasks.values():
            count = f"{event.done}/{event.total}"
            now = event.file[-70:]
            self._progress.update(
                task, completed=event.done, total=event.total, count=count, now=now
            )

    def progress(self, event: events.StepProgress) -> None:
        if event.step not in self._tasks:
            return
        rate = f"{event.rate * 60:.0f} compiles/min" if event.rate else ""
        memory = f"{self.running} at once, {self.reserved / _GIB:.1f} GiB" if self.running else ""
        now = "  ".join(part for part in (rate, memory, event.what.split()[-1]) if part)
        self._progress.update(
            self._tasks[event.step],
            completed=event.done,
            total=event.total,
            count=f"{event.done}/{event.total}",
            now=now[-70:],
        )


def guard_display(*, json: bool, quiet: bool) -> Json | Lines:
    """The display for a command that is not ours: its output, and lines about it."""
    return Json() if json else _Guarded(quiet=quiet)


@contextlib.contextmanager
def display(
    *, json: bool, quiet: bool, lines: type[Lines] = Lines, live: type[OnTerminal] = _Live
) -> Iterator[Json | Lines]:
    """The display that fits: JSON, lines, or live on a terminal."""
    if json:
        yield Json()
        return
    if quiet or not sys.stderr.isatty():
        yield lines(quiet=quiet)
        return
    from rich.progress import (
        BarColumn,
        Progress,
        SpinnerColumn,
        TextColumn,
        TimeElapsedColumn,
        TimeRemainingColumn,
    )

    columns = (
        SpinnerColumn(),
        TextColumn("{task.description}", markup=False),
        BarColumn(bar_width=24),
        TextColumn("{task.fields[count]}", markup=False),
        TimeElapsedColumn(),
        TimeRemainingColumn(compact=True),
        TextColumn("{task.fields[now]}", style="dim", markup=False),
    )
    with Progress(*columns, console=rich_console(sys.stderr), transient=True) as progress:
        yield live(progress)


def tell_refusals(*checks: Callable[[], object]) -> None:
    """Print why the build itself would be refused; a dry run goes on all the same."""
    printed: set[str] = set()
    for check in checks:
        try:
            check()
        except TorchsmithError as error:
            if error.message not in printed:
                printed.add(error.message)
                tell(f"! {error.message}; the build itself would end here. {error.hint}")


def show_dry_run(ahead: Outlook, *, json: bool) -> None:
    """What is in the store, what would be run, and how long that is expected to take."""
    if json:
        steps = [
            {
                "id": step.id,
                "kind": step.kind,
                "title": step.title,
                "status": _status(step, ahead),
                "seconds": item.seconds if (item := ahead.expected.get(step.id)) else 0.0,
                "basis": item.basis if item else "",
            }
            for step in ahead.steps
        ]
        print_json(
            {"dry_run": True, "cores": ahead.cores, "seconds": ahead.seconds, "steps": steps}
        )
        return
    marks = {
        "stored": style("green", "=  in the store"),
        "not needed": style("dim", "-  not needed  "),
        "to run": style("bold", ">  to be run   "),
    }
    for step in ahead.steps:
        print(f"{marks[_status(step, ahead)]}  {step.kind:<11} {step.title}")
    took = f"About {duration(ahead.seconds)} on {counted(ahead.cores, 'core')}. "
    say(f"{took if ahead.expected else ''}Nothing was run.")


def show_guarded(guarded: Guarded, command: Sequence[str], *, json: bool) -> None:
    """What a command would be given by `torchsmith guard`."""
    if json:
        settings = {
            "command": list(command),
            "jobs": guarded.cores,
            "memory": guarded.memory,
            "compiler_cache": guarded.cached,
            "environment": dict(guarded.environment),
        }
        print_json({"dry_run": True, **settings})
        return
    memory = f"{guarded.memory / _GIB:.1f} GiB"
    cache = "a compiler cache" if guarded.cached else "no compiler cache (install ccache)"
    print(f"{counted(guarded.cores, 'compiler')} at once, {memory} for all of them, {cache}")
    for name, value in sorted(guarded.environment.items()):
        print(f"  {name}={shlex.quote(value)}")
    say("Nothing was run.")


def _status(step: Step, ahead: Outlook) -> str:
    if step.id in ahead.expected:
        return "to run"
    return "stored" if step.id in ahead.stored else "not needed"

"""A farm on the terminal: what every variant does, live or as lines; JSON for scripts."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Iterator
from typing import TYPE_CHECKING

from torchsmith.cli.output import counted, duration
from torchsmith.cli.show_build import Display, Json, Lines
from torchsmith.cli.terminal import rich_console
from torchsmith.engine.events import Event, Waiting
from torchsmith.jobs.farm import events

if TYPE_CHECKING:
    from rich.progress import Progress, TaskID


class _Lines(Lines):
    """One line for each thing worth one; `quiet` leaves those about success out."""

    def __init__(self, *, quiet: bool) -> None:
        super().__init__(quiet=quiet)
        self._seen: dict[str, tuple[str, str]] = {}

    def event(self, event: Event) -> None:
        match event:
            case events.VariantFailed():
                self.failed(event)
            case events.VariantLost():
                again = "; it is submitted again and goes on" if event.again else ""
                self.line(f"!  {event.variant}: its job was lost ({event.reason}){again}")
            case Waiting():
                self.line(f"!  {event.message}")
            case _ if self.quiet:
                return
            case events.FarmStarted():
                count = counted(len(event.variants), "variant")
                self.line(
                    f"{count} on {event.engine}, {event.done} of them built before; "
                    "Ctrl-C leaves them to themselves, the same command finds them"
                )
            case events.VariantSubmitted():
                tried = f", attempt {event.attempt}" if event.attempt > 1 else ""
                self.line(f"   {event.variant}: job {event.job}{tried}")
            case events.VariantMoved():
                self.moved(event)
            case events.VariantBuilt() if event.before:
                self.line(f"=  {event.variant} (built before)")
            case events.VariantBuilt():
                where = f" on {event.node}" if event.node else ""
                self.line(
                    f"ok {event.variant}{where} ({duration(event.seconds)}, "
                    f"{counted(event.checks, 'check')} passed)"
                )
            case events.FarmFinished() if event.status == "left":
                count = counted(len(event.left), "job")
                self.line(f"{count} still running; the same command finds them")
            case events.FarmFinished() if event.status == "done":
                self.line(f"done in {duration(event.seconds)}")

    def moved(self, event: events.VariantMoved) -> None:
        # A log has no use for the count of files.
        now = (event.state, event.step.partition(" [")[0])
        if self._seen.get(event.variant) != now:
            self._seen[event.variant] = now
            self.line(f"   {event.variant}: {where(event)}")

    def failed(self, event: events.VariantFailed) -> None:
        from torchsmith.cli.known import known_of_step
        from torchsmith.errors import StepFailed

        on = f" on {event.node}" if event.node else ""
        self.line(f"x  {event.variant}{on}: {event.reason}")
        for text in event.excerpt:
            self.line(f"   {text}")
        if event.log:
            self.line(f"   the whole log: {event.log}")
        failure = StepFailed(event.variant, event.variant, event.reason, event.excerpt, event.log)
        for text in known_of_step(failure):
            self.line(f"   {text}")


def where(event: events.VariantMoved) -> str:
    """What a variant does, and where."""
    parts = (event.state, f"on {event.node}" if event.node else "", event.step)
    return " ".join(part for part in parts[:2] if part) + (f": {parts[2]}" if parts[2] else "")


class _Live(_Lines):
    """The same, with a line for each variant that is under way at the foot of the terminal."""

    def __init__(self, progress: Progress) -> None:
        super().__init__(quiet=False)
        self._progress = progress
        self._tasks: dict[str, TaskID] = {}

    def line(self, text: str) -> None:
        self._progress.console.print(text, highlight=False, markup=False)

    def moved(self, event: events.VariantMoved) -> None:
        # What only waits would fill the terminal.
        if event.state != "running":
            return
        if event.variant not in self._tasks:
            self._tasks[event.variant] = self._progress.add_task(event.variant, total=None, now="")
        self._progress.update(self._tasks[event.variant], now=where(event))

    def event(self, event: Event) -> None:
        match event:
            case events.VariantBuilt() | events.VariantFailed() | events.VariantLost():
                if (task := self._tasks.pop(event.variant, None)) is not None:
                    self._progress.remove_task(task)
        super().event(event)


@contextlib.contextmanager
def display(*, json: bool, quiet: bool) -> Iterator[Display]:
    """The display that fits: JSON, lines, or live on a terminal."""
    if json:
        yield Json()
        return
    if quiet or not sys.stderr.isatty():
        yield _Lines(quiet=quiet)
        return
    from rich.progress import Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

    columns = (
        SpinnerColumn(),
        TextColumn("{task.description}", markup=False),
        TimeElapsedColumn(),
        TextColumn("{task.fields[now]}", style="dim", markup=False),
    )
    with Progress(*columns, console=rich_console(sys.stderr), transient=True) as progress:
        yield _Live(progress)

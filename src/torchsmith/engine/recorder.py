"""Reporting what happens to the journal and to a listener."""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

from torchsmith.engine import events
from torchsmith.engine.disk import UNTELLABLE
from torchsmith.engine.expected import Known, known_of
from torchsmith.engine.journal import Journal, RunStatus, StepRecord, StepStatus
from torchsmith.engine.process import Outcome
from torchsmith.errors import DiskFullError, InterruptedRunError, StepFailed
from torchsmith.plan.models import Step


class Recorder:
    """Reports one run and its steps."""

    def __init__(self, journal: Journal, run: str, on_event: events.OnEvent) -> None:
        self.run = run
        self.statuses: dict[str, StepStatus] = {}
        self._journal = journal
        self._on_event = on_event
        self._turn = threading.RLock()

    def emit(self, event: events.Event) -> None:
        """Report an event, one thread at a time."""
        with self._turn:
            self._journal.add(self.run, event)
            self._on_event(event)

    def warn(self, message: str) -> None:
        """Report a warning."""
        self.emit(events.Warned(message=message))

    @contextlib.contextmanager
    def until_end(
        self, clean: Callable[[str], str], artifacts: Callable[[], tuple[str, ...]] = lambda: ()
    ) -> Iterator[None]:
        """Report how the run ends; `clean` takes secrets out of an error."""
        began = time.monotonic()
        status: RunStatus = "failed"
        error = ""
        try:
            yield
            status = "done"
        except InterruptedRunError as interruption:
            status, error = "interrupted", interruption.message
            raise
        except BaseException as failure:
            error = clean(str(failure) or type(failure).__name__)
            raise
        finally:
            seconds = time.monotonic() - began
            # A journal that cannot be written must not hide the error of the run.
            ignored = (DiskFullError,) if status == "done" else UNTELLABLE
            with contextlib.suppress(*ignored):
                self._journal.end(self.run, status, error)
            with contextlib.suppress(*ignored):
                self.emit(
                    events.RunFinished(
                        run=self.run,
                        status=status,
                        seconds=seconds,
                        artifacts=artifacts(),
                        error=error,
                    )
                )

    def started(
        self,
        step: Step,
        log: Path,
        *,
        resumed: bool = False,
        network: str = "open",
        files: str = "open",
    ) -> None:
        """Report that a step begins."""
        self.note(step, "running", log=log)
        self.emit(
            events.StepStarted(
                step=step.id,
                title=step.title,
                kind=step.kind,
                log=str(log),
                resumed=resumed,
                network=network,
                files=files,
            )
        )

    def finished(self, step: Step, log: Path, outcome: Outcome, stored: int = 0) -> None:
        """Report that a step is done and how many bytes of it are stored."""
        self.note(step, "done", log=log, outcome=outcome)
        self.emit(
            events.StepFinished(
                step=step.id,
                title=step.title,
                seconds=outcome.seconds,
                cpu_seconds=outcome.cpu_seconds,
                peak_rss=outcome.peak_rss,
                bytes_stored=stored,
            )
        )

    def interrupted(self, step: Step, log: Path, outcome: Outcome) -> None:
        """Report that a request stopped a step."""
        self.note(step, "interrupted", log=log, outcome=outcome)
        self.emit(events.StepInterrupted(step=step.id, title=step.title))

    def failed(self, step: Step, failure: StepFailed, outcome: Outcome) -> StepFailed:
        """Report a failure, as far as that is possible; return it."""
        with contextlib.suppress(*UNTELLABLE):
            error = "\n".join((failure.message, *failure.excerpt))
            self.note(step, "failed", log=Path(failure.log), error=error, outcome=outcome)
            self.emit(
                events.StepFailed(
                    step=step.id,
                    title=step.title,
                    reason=failure.reason,
                    excerpt=failure.excerpt,
                    log=failure.log,
                )
            )
        return failure

    def note(
        self,
        step: Step,
        status: StepStatus,
        *,
        log: Path | None = None,
        error: str = "",
        outcome: Outcome | None = None,
    ) -> None:
        """Keep the status of a step."""
        self.statuses[step.id] = status
        self._journal.step(
            self.run,
            step.id,
            status,
            key=step.key,
            title=step.title,
            log=str(log or ""),
            error=error,
            cpu_seconds=outcome.cpu_seconds if outcome else None,
            peak_rss=outcome.peak_rss if outcome else None,
        )

    def cached(self, step: Step) -> None:
        """Report that a step's result was in the store."""
        self.note(step, "cached")
        self.emit(events.StepCached(step=step.id, title=step.title))

    def earlier(self, plan: str, step: Step) -> Known:
        """Earlier runs of a step."""
        return known_of(self._journal, plan, step, self.run)

    def reached(self, record: StepRecord) -> tuple[str, str]:
        """The network that a step had and the files; empty what was not written down."""
        for event in self._journal.events(record.run):
            if event.get("event") == "step-started" and event.get("step") == record.step:
                return str(event.get("network", "")), str(event.get("files", ""))
        return "", ""

    def done(self, step: Step) -> StepRecord | None:
        """The last time a step with this key was done, in this run or before."""
        found = self._journal.earlier("", "", step.key)
        return next((record for record in found if record.status == "done"), None)

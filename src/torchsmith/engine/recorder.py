"""Telling what happens: to the journal, and to whoever listens."""

from __future__ import annotations

import threading
from pathlib import Path

from torchsmith.engine import events
from torchsmith.engine.expected import Known, known_of
from torchsmith.engine.journal import Journal, StepRecord, StepStatus
from torchsmith.engine.process import Outcome
from torchsmith.plan.models import Step


class Recorder:
    """The voice of one run."""

    def __init__(self, journal: Journal, run: str, on_event: events.OnEvent) -> None:
        self.run = run
        self.statuses: dict[str, StepStatus] = {}
        self._journal = journal
        self._on_event = on_event
        self._turn = threading.RLock()

    def emit(self, event: events.Event) -> None:
        """Tell the journal and whoever listens, one thread at a time."""
        with self._turn:
            self._journal.add(self.run, event)
            self._on_event(event)

    def warn(self, message: str) -> None:
        """Tell something that stops nothing."""
        self.emit(events.Warned(message=message))

    def note(
        self,
        step: Step,
        status: StepStatus,
        *,
        log: Path | None = None,
        error: str = "",
        outcome: Outcome | None = None,
    ) -> None:
        """Keep where a step is."""
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
        """Tell that a step's result was there."""
        self.note(step, "cached")
        self.emit(events.StepCached(step=step.id, title=step.title))

    def earlier(self, plan: str, step: Step) -> Known:
        """What the journal tells of a step."""
        return known_of(self._journal, plan, step, self.run)

    def network(self, record: StepRecord) -> str:
        """The network that a step had; empty where nobody wrote it down."""
        for event in self._journal.events(record.run):
            if event.get("event") == "step-started" and event.get("step") == record.step:
                return str(event.get("network", ""))
        return ""

    def done(self, step: Step) -> StepRecord | None:
        """The last time just this was done, in this run or before."""
        found = self._journal.earlier("", "", step.key)
        return next((record for record in found if record.status == "done"), None)

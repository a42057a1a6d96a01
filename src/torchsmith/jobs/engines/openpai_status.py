"""What OpenPAI says of a job, as a status."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from torchsmith.jobs.client import Status, TaskStatus
from torchsmith.jobs.engines.answers import Table, number, table, tables, text
from torchsmith.jobs.states import State, of_exit, state_of


@dataclass(frozen=True)
class TaskLog:
    """Where the output of a task is told; of each attempt it is another place."""

    task: TaskStatus
    place: str


def status_of(detail: Table) -> Status:
    """The answer to a question for one job, of either protocol."""
    job = table(detail.get("jobStatus"))
    said = text(job, "state")
    code = number(job, "appExitCode")
    state = _state(said, code)
    tasks = tuple(log.task for log in task_logs(detail))
    return Status(
        state=state,
        said=said,
        reason=_reason(job, detail) if state in (State.FAILED, State.TIMEOUT) else "",
        exit_code=code,
        nodes=tuple(dict.fromkeys(task.node for task in tasks if task.node)),
        started=_seconds(job, "launchedTime", "appLaunchedTime"),
        ended=_seconds(job, "completedTime", "appCompletedTime"),
        tasks=tasks,
    )


def task_logs(detail: Table) -> Iterator[TaskLog]:
    """Every task of a job."""
    for role, inner in table(detail.get("taskRoles")).items():
        for one in tables(table(inner).get("taskStatuses")):
            code = number(one, "containerExitCode")
            task = TaskStatus(
                role=role,
                index=number(one, "taskIndex") or 0,
                state=_state(text(one, "taskState"), code),
                exit_code=code,
                node=text(one, "containerNodeName") or text(one, "containerIp"),
            )
            yield TaskLog(task, text(one, "containerLog"))


def _state(said: str, code: int | None) -> State:
    state = state_of("openpai", said)
    # Its time is kept by the task's own `timeout`: OpenPAI sees one that failed.
    return of_exit(code) if state is State.FAILED and code is not None and code > 0 else state


def _reason(job: Table, detail: Table) -> str:
    """Why it ended badly: the task that pulled the others down, and what OpenPAI knows of it."""
    role, index = text(job, "appExitTriggerTaskRoleName"), number(job, "appExitTriggerTaskIndex")
    spec = table(job.get("appExitSpec"))
    for one, inner in table(detail.get("taskRoles")).items():
        for task in tables(table(inner).get("taskStatuses")):
            if (one, number(task, "taskIndex")) == (role, index):
                spec = table(task.get("containerExitSpec")) or spec
    runtime = table(table(job.get("appExitMessages")).get("runtime"))
    said = text(runtime, "reason") or text(spec, "reason") or text(spec, "phrase")
    said = said or text(job, "appExitTriggerMessage") or text(job, "appExitDiagnostics")
    cures = spec.get("solution")
    cure = str(cures[0]) if isinstance(cures, list) and cures else ""
    where = f"{role}-{index}: " if role and index is not None else ""
    return f"{where}{said}".strip()[:500] + (f" ({cure})" if said and cure else "")


def _seconds(values: Table, *keys: str) -> float | None:
    """The first of several times that is there; OpenPAI counts milliseconds."""
    return next((value / 1000 for key in keys if (value := number(values, key))), None)

"""What Kubernetes says of a job and its pods, as a status."""

from __future__ import annotations

import datetime
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from torchsmith.jobs.client import Status, TaskStatus
from torchsmith.jobs.engines.answers import Table, number, table, tables, text
from torchsmith.jobs.states import KUBERNETES, State, state_of, together

ROLE = "app.kubernetes.io/component"
_INDEX = "batch.kubernetes.io/job-completion-index"
_REPLICA, _REPLICA_INDEX = (
    "training.kubeflow.org/replica-type",
    "training.kubeflow.org/replica-index",
)
_PULL = frozenset(("ErrImagePull", "ImagePullBackOff", "InvalidImageName", "ErrImageNeverPull"))


# A Job's own words, a PyTorchJob's, a JobSet's.
_DONE = ("Complete", "SuccessCriteriaMet", "Succeeded", "Completed")


@dataclass(frozen=True)
class Pod:
    """A pod, as the task it runs, and what is to be said of it."""

    task: TaskStatus
    name: str
    container: str
    begun: bool
    reason: str


def status_of(jobs: Iterable[Table], pods: Iterable[Pod]) -> Status:
    """The status of a job from those of its roles, each a Job or all of them one object."""
    jobs, pods = list(jobs), list(pods)
    told = [_job_state(job, pods) for job in jobs]
    state = together(state for state, _, _ in told)
    said, message = next(((word, more) for one, word, more in told if one is state), ("", ""))
    tasks = tuple(pod.task for pod in pods)
    bad = next((task for task in tasks if task.exit_code), None)
    return Status(
        state=state,
        said=said,
        reason=_reason(pods) or message if state is not State.SUCCEEDED else "",
        exit_code=0 if state is State.SUCCEEDED else bad.exit_code if bad else None,
        nodes=tuple(dict.fromkeys(task.node for task in tasks if task.node)),
        started=min(filter(None, (_time(job, "startTime") for job in jobs)), default=None),
        ended=max(filter(None, map(_ended, jobs)), default=None) if state.over else None,
        tasks=tasks,
    )


def pods_of(items: Iterable[Table], roles: Iterable[str]) -> list[Pod]:
    """The pod of each task; of one that was started again, the latest."""
    # A label may not begin or end with what a role may.
    names = {role.strip("_"): role for role in roles}
    latest: dict[tuple[str, int], tuple[str, Pod]] = {}
    for item in items:
        born = text(table(item.get("metadata")), "creationTimestamp")
        pod = _pod(item, names)
        key = (pod.task.role, pod.task.index)
        if key not in latest or latest[key][0] <= born:
            latest[key] = (born, pod)
    order = list(names.values())
    return sorted(
        (pod for _, pod in latest.values()),
        key=lambda pod: (
            order.index(pod.task.role) if pod.task.role in order else len(order),
            pod.task.index,
        ),
    )


def _pod(item: Table, roles: Mapping[str, str]) -> Pod:
    metadata, status, spec = (table(item.get(key)) for key in ("metadata", "status", "spec"))
    labels = table(metadata.get("labels"))
    container = next(iter(tables(spec.get("containers"))), {})
    role = text(labels, ROLE)
    ended = _last_end(status)
    state, reason = _pod_state(status, ended, container)
    task = TaskStatus(
        role=roles.get(role, role),
        index=_index(labels, table(metadata.get("annotations"))),
        state=state,
        exit_code=number(ended, "exitCode"),
        node=text(spec, "nodeName"),
    )
    begun = text(status, "phase") not in ("", "Pending")
    return Pod(task, text(metadata, "name"), text(container, "name"), begun, reason)


def _index(labels: Table, annotations: Table) -> int:
    index = text(labels, _INDEX) or text(annotations, _INDEX)
    if _REPLICA in labels:
        # The operator counts workers from 0, behind the one master.
        first = 1 if text(labels, _REPLICA).lower() == "worker" else 0
        worker = text(labels, _REPLICA_INDEX)
        return first + int(worker) if worker.isdigit() else first
    return int(index) if index.isdigit() else 0


def _pod_state(status: Table, ended: Table, container: Table) -> tuple[State, str]:
    phase, reason, message = (text(status, key) for key in ("phase", "reason", "message"))
    state = state_of("kubernetes", phase)
    if state is State.WAITING:
        return state, _waiting(status, container)
    if state is not State.FAILED:
        return state, ""
    if reason == "DeadlineExceeded":
        return State.TIMEOUT, "its time was up"
    gone = _condition(status, "DisruptionTarget")
    if reason or gone:
        # Evicted, Preempting, NodeLost, Shutdown, …: not the program's fault.
        word = reason or text(gone, "reason")
        return State.LOST, f"{word}: {message or text(gone, 'message')}".rstrip(": ")
    if text(ended, "reason") == "OOMKilled":
        limits = table(table(container.get("resources")).get("limits"))
        return state, f"it used more memory than its {limits.get('memory', 'limit')} (OOMKilled)"
    if text(ended, "reason") not in ("", "Error"):
        return state, f"{text(ended, 'reason')}: {text(ended, 'message')}".rstrip(": ")
    return state, f"it ended with {number(ended, 'exitCode')}" if ended else ""


def _waiting(status: Table, container: Table) -> str:
    """Why a pod has not begun, where that is not just a matter of time."""
    for one in _containers(status):
        waits = table(table(one.get("state")).get("waiting"))
        reason, message = text(waits, "reason"), text(waits, "message")
        if reason in _PULL:
            image = text(container, "image") or text(one, "image")
            return f"the image {image} cannot be pulled ({reason}): {message}".rstrip(": ")
        if reason not in ("", "ContainerCreating", "PodInitializing"):
            return f"{reason}: {message}".rstrip(": ")
    unplaced = _condition(status, "PodScheduled")
    return text(unplaced, "message") if text(unplaced, "status") == "False" else ""


def _containers(status: Table) -> Sequence[Table]:
    return tables(status.get("containerStatuses"))


def _last_end(status: Table) -> Table:
    """How the program of a pod ended."""
    for one in _containers(status):
        if ended := table(table(one.get("state")).get("terminated")):
            return ended
    return {}


def _job_state(job: Table, pods: list[Pod]) -> tuple[State, str, str]:
    """Where one object is, in its own word, and its message."""
    status = table(job.get("status"))
    holds = {
        text(one, "type"): one
        for one in tables(status.get("conditions"))
        if one.get("status") == "True"
    }
    for kind in ("Failed", "FailureTarget"):
        if kind in holds:
            reason = text(holds[kind], "reason")
            word = reason if reason in KUBERNETES else "Failed"
            return state_of("kubernetes", word), reason, text(holds[kind], "message")
    for kind in _DONE:
        if kind in holds:
            return State.SUCCEEDED, kind, ""
    if "Suspended" in holds:
        return State.WAITING, "Suspended", text(holds["Suspended"], "message")
    running = any(pod.task.state is State.RUNNING or pod.task.state.over for pod in pods)
    return (State.RUNNING, "Running", "") if running else (State.WAITING, "Pending", "")


def _reason(pods: list[Pod]) -> str:
    """What is to be said of the tasks: of one, and how many others say the like."""
    told = [pod for pod in pods if pod.reason and pod.task.state is not State.SUCCEEDED]
    # Those that failed of themselves before those that were taken down with them.
    told.sort(key=lambda pod: pod.task.state not in (State.FAILED, State.TIMEOUT))
    if not told:
        return ""
    more = f" (and {len(told) - 1} more)" if len(told) > 1 else ""
    return f"{told[0].task.name}: {told[0].reason}{more}"


def _ended(job: Table) -> float | None:
    if done := _time(job, "completionTime"):
        return done
    status = table(job.get("status"))
    ends = filter(None, (_condition(status, kind) for kind in ("Failed", *_DONE)))
    return _seconds(text(next(ends, {}), "lastTransitionTime"))


def _time(job: Table, key: str) -> float | None:
    return _seconds(text(table(job.get("status")), key))


def _seconds(when: str) -> float | None:
    try:
        return datetime.datetime.fromisoformat(when).timestamp()
    except ValueError:
        return None


def _condition(status: Table, kind: str) -> Table:
    return next((one for one in tables(status.get("conditions")) if one.get("type") == kind), {})

"""Jobs on Kubernetes: its own Jobs and JobSets, or what Kubeflow makes of them."""

from __future__ import annotations

import datetime
import json
import os
import selectors
import subprocess
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, MutableSequence, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from pydantic import JsonValue

from torchsmith import yaml_text
from torchsmith.engine.disk import write_whole
from torchsmith.errors import ClusterError, UnansweredError
from torchsmith.foreign import Table, number, read_json, table, tables, text, whole
from torchsmith.jobs import kubernetes
from torchsmith.jobs.client import (
    LineCutter,
    Listed,
    NoAnswerError,
    Output,
    Request,
    Status,
    Submitted,
    TargetId,
    TaskStatus,
    chooser,
    handed_over,
    nothing_before,
    patiently,
)
from torchsmith.jobs.clients import TARGETS
from torchsmith.jobs.kubectl import Kubectl, ServerRefusedError
from torchsmith.jobs.launch import pullable
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
    states = [_job_state(job, pods) for job in jobs]
    state = together(state for state, _, _ in states)
    word, message = next(((own, more) for one, own, more in states if one is state), ("", ""))
    tasks = tuple(pod.task for pod in pods)
    bad = next((task for task in tasks if task.exit_code), None)
    return Status(
        state=state,
        said=word,
        reason=_reason(pods) or message if state is not State.SUCCEEDED else "",
        exit_code=0 if state is State.SUCCEEDED else bad.exit_code if bad else None,
        nodes=tuple(dict.fromkeys(task.node for task in tasks if task.node)),
        started=min(filter(None, (_status_time(job, "startTime") for job in jobs)), default=None),
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
        return first + (whole(text(labels, _REPLICA_INDEX)) or 0)
    return whole(index) or 0


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
    failed = [pod for pod in pods if pod.reason and pod.task.state is not State.SUCCEEDED]
    # Those that failed of themselves before those that were taken down with them.
    failed.sort(key=lambda pod: pod.task.state not in (State.FAILED, State.TIMEOUT))
    if not failed:
        return ""
    more = f" (and {len(failed) - 1} more)" if len(failed) > 1 else ""
    return f"{failed[0].task.name}: {failed[0].reason}{more}"


def _ended(job: Table) -> float | None:
    if done := _status_time(job, "completionTime"):
        return done
    status = table(job.get("status"))
    ends = filter(None, (_condition(status, kind) for kind in ("Failed", *_DONE)))
    return _seconds(text(next(ends, {}), "lastTransitionTime"))


def _status_time(job: Table, key: str) -> float | None:
    return _seconds(text(table(job.get("status")), key))


def _seconds(when: str) -> float | None:
    try:
        return datetime.datetime.fromisoformat(when).timestamp()
    except ValueError:
        return None


def _condition(status: Table, kind: str) -> Table:
    return next((one for one in tables(status.get("conditions")) if one.get("type") == kind), {})


# On every object of a job, and on its pods: whose submission they are.
_TOKEN = "torchsmith-token"
_OURS = "app.kubernetes.io/managed-by=torchsmith"
_NAME = "app.kubernetes.io/name"
_REQUEST, _CANCELLED = "request.json", "cancelled"
_PLACES = {
    "Service": "/api/v1/namespaces/{}/services",
    "Job": "/apis/batch/v1/namespaces/{}/jobs",
    "JobSet": "/apis/jobset.x-k8s.io/v1alpha2/namespaces/{}/jobsets",
    "PyTorchJob": "/apis/kubeflow.org/v1/namespaces/{}/pytorchjobs",
    "TrainJob": "/apis/trainer.kubeflow.org/v1alpha1/namespaces/{}/trainjobs",
}
_MISSING = {
    "JobSet": "Roles that end each other need JobSet there (https://jobset.sigs.k8s.io).",
    "PyTorchJob": "PyTorchJobs need Kubeflow's training operator there; use --to kubernetes.",
    "TrainJob": "TrainJobs need Kubeflow Trainer there; use --to kubernetes.",
}
_HINTS = {
    "Forbidden": "Ask its administrator for the right, or name another namespace: "
    "--set kubernetes.namespace=NAME.",
    "NotFound": "Name a namespace that is there: --set kubernetes.namespace=NAME.",
    "BadRequest": "The cluster knows another form of the object than ours: a feature may be too "
    "new for it.",
    "Invalid": "The cluster's own rules say so; nothing was submitted.",
}


class UnknownKindError(ClusterError):
    """The cluster has no such kind of object."""


class Kubernetes:
    """The cluster of one of kubectl's contexts; a job is known as NAMESPACE/NAME."""

    engine = "kubernetes"
    # What a job is there.
    kinds: tuple[str, ...] = ("Job", "JobSet")

    def __init__(self, place: str = "") -> None:
        self._kubectl = Kubectl(place)
        self.place = self._kubectl.context

    def check(self, request: Request) -> tuple[str, ...]:
        """Refuse what a cluster would refuse, or could never start."""
        pullable(request.job, "Kubernetes")
        nothing_before(request, "Kubernetes")
        return TARGETS[self.engine].render(request.job).notes

    def submit(self, request: Request, token: str) -> TargetId:
        """Create its objects: all of them, or none."""
        nothing_before(request, "Kubernetes")
        job = request.job
        space = job.kubernetes.namespace or self._kubectl.namespace
        ((_, content),) = TARGETS[self.engine].render(job).files.items()
        objects = [_marked(table(one), token) for one in yaml_text.read_all(content.decode())]
        name = kubernetes.fit_name(job.name)
        kept = {"namespace": space, "name": name, "token": token, "objects": objects}
        write_whole(request.kept / _REQUEST, json.dumps(kept, indent=1).encode())
        if len(objects) > 1:
            for one in objects:
                handed_over(partial(self._create, space, one, token, dryRun="All"))
        self._create_all(space, objects, token)
        return TargetId(f"{space}/{name}")

    def find(self, token: str, kept: Path) -> TargetId | None:
        """The job of this token; which namespace it was for is in the request that was kept."""
        request = _kept(kept)
        space = str(request.get("namespace", ""))
        if not space:
            return None
        wanted = tables(request.get("objects"))
        kind = self._kind(kept)
        found = patiently(lambda: self._jobs(space, f"{_TOKEN}={token}", kind))
        if not found:
            return None
        if len(found) < sum(one.get("kind") == kind for one in wanted):
            # Some of its roles are no job: what was begun is brought to its end.
            self._create_all(space, wanted, token)
        return TargetId(f"{space}/{request['name']}")

    def status(self, job: Submitted) -> Status | None:
        """Where a job is, from its objects and its pods."""
        return self._look(job)[0]

    def logs(self, job: Submitted, wanted: Output) -> Iterator[str]:
        """What its pods wrote; of a task that is started again, what it writes then."""

        def look() -> tuple[Sequence[Pod], bool]:
            status, pods = self._look(job)
            return pods, status is None or status.state.over

        logs = _PodLogs(self._kubectl, job, chooser(job, wanted))
        return logs.followed(look) if wanted.follow else logs.so_far(self._pods(job))

    def cancel(self, job: Submitted) -> None:
        """Delete its objects, and with them its pods and what they wrote."""
        status = self.status(job)
        if status is None or status.state.over:
            return
        space, _ = _place(job)
        request = _kept(job.kept)
        objects = tables(request.get("objects"))
        if not objects:
            raise ClusterError(
                f"the request of {job.id} is not in {job.kept} any more",
                f"Delete it yourself: kubectl delete job,service -n {space} -l {_place(job)[1]}",
            )
        # Before the first is gone: whoever looks next has to know why.
        write_whole(job.kept / _CANCELLED, b"")
        self._delete(space, objects, str(request.get("token")))

    def list(self) -> tuple[Listed, ...]:
        """The jobs of torchsmith in the context's namespace."""
        space = self._kubectl.namespace
        jobs: dict[tuple[str, str], list[Table]] = {}
        found = patiently(lambda: [*self._all_jobs(space)])
        for one in found:
            labels = table(table(one.get("metadata")).get("labels"))
            key = (str(labels.get(_NAME, "")), str(labels.get(_TOKEN, "")))
            jobs.setdefault(key, []).append(one)
        return tuple(
            Listed(TargetId(f"{space}/{name}"), token, status_of(parts, ()).state)
            for (name, token), parts in jobs.items()
        )

    def _look(self, job: Submitted) -> tuple[Status | None, Sequence[Pod]]:
        space, select = _place(job)
        jobs = patiently(lambda: self._jobs(space, select, self._kind(job.kept)))
        if not jobs:
            cancelled = (job.kept / _CANCELLED).exists()
            deleted = Status(state_of("kubernetes", "Deleted"), "Deleted")
            return deleted if cancelled else None, ()
        pods = self._pods(job)
        return status_of(jobs, pods), pods

    def _kind(self, kept: Path) -> str:
        """What a job was submitted as."""
        sent = {str(one.get("kind")) for one in tables(_kept(kept).get("objects"))}
        return next((kind for kind in self.kinds if kind in sent), self.kinds[0])

    def _jobs(self, space: str, select: str, kind: str) -> Sequence[Table]:
        try:
            found = self._kubectl.get(_PLACES[kind].format(space), labelSelector=select)
        except ServerRefusedError as error:
            raise self._refused(f"a look at {space}", error, kind) from None
        return tables(found.get("items"))

    def _all_jobs(self, space: str) -> Iterator[Table]:
        """The jobs of every kind the cluster knows; the first it has to know."""
        for kind in self.kinds:
            try:
                yield from self._jobs(space, _OURS, kind)
            except UnknownKindError:
                if kind == self.kinds[0]:
                    raise

    def _pods(self, job: Submitted) -> Sequence[Pod]:
        space, select = _place(job)

        def look() -> Mapping[str, JsonValue]:
            return self._kubectl.get(f"/api/v1/namespaces/{space}/pods", labelSelector=select)

        try:
            return pods_of(tables(patiently(look).get("items")), job.roles)
        except ServerRefusedError as error:
            raise self._refused(f"a look at the pods in {space}", error) from None

    def _create_all(self, space: str, objects: Sequence[Table], token: str) -> None:
        """Create what is not there yet; if one is refused, those before it go."""
        made: MutableSequence[Table] = []
        try:
            for one in objects:
                handed_over(partial(self._create, space, one, token))
                made.append(one)
        except UnansweredError:
            raise
        except ClusterError:
            self._delete(space, made, token)
            raise

    def _create(self, space: str, one: Table, token: str, **query: str) -> None:
        """Create an object, unless it is there and ours."""
        kind, name = str(one["kind"]), str(table(one["metadata"])["name"])
        place = _PLACES[kind].format(space)
        try:
            # Unknown fields are refused and not dropped, as far as the server is able to.
            self._kubectl.create(place, one, fieldValidation="Strict", **query)
        except ServerRefusedError as error:
            if error.reason != "AlreadyExists":
                raise self._refused(f"{kind} {name}", error, kind) from None
            if self._token_of(place, name) != token:
                raise ClusterError(
                    f"there is a {kind} {name} in the namespace {space} already",
                    f"Give this one another name: --set name={name}-2.",
                ) from None

    def _token_of(self, place: str, name: str) -> str:
        """Whose an object is; nobody's if it went away in between."""
        try:
            there = self._kubectl.get(f"{place}/{name}")
        except ServerRefusedError as error:
            if error.reason != "NotFound":
                raise
            return ""
        return str(table(table(there.get("metadata")).get("labels")).get(_TOKEN, ""))

    def _delete(self, space: str, objects: Sequence[Table], token: str) -> None:
        for one in objects:
            place = _PLACES[str(one["kind"])].format(space)
            name = str(table(one["metadata"])["name"])
            patiently(partial(self._drop, place, name, token))

    def _drop(self, place: str, name: str, token: str) -> None:
        """Delete an object if it is ours; gone is gone."""
        try:
            if self._token_of(place, name) == token:
                self._kubectl.delete(f"{place}/{name}", propagationPolicy="Background")
        except ServerRefusedError as error:
            if error.reason != "NotFound":
                raise self._refused(f"to delete {name}", error) from None

    def _refused(self, what: str, error: ServerRefusedError, kind: str = "") -> ClusterError:
        if error.reason == "NotFound" and "could not find the requested resource" in error.message:
            return UnknownKindError(
                f"the cluster of {self.place} has no kind {kind or self.kinds[0]}",
                _MISSING.get(kind, "Check the server of this context: kubectl config view"),
            )
        code = f" ({error.reason})" if error.reason else ""
        return ClusterError(
            f"Kubernetes refused {what}: {error.message}{code}",
            error.hint or _HINTS.get(error.reason, ""),
        )


class Kubeflow(Kubernetes):
    """The same with PyTorchJobs."""

    engine = "kubeflow"
    kinds = ("PyTorchJob",)


class KubeflowTrainer(Kubernetes):
    """The same with TrainJobs."""

    engine = "kubeflow-trainer"
    kinds = ("TrainJob",)


def _marked(one: Table, token: str) -> dict[str, JsonValue]:
    """An object with the token on it and on everything it makes that carries our labels."""
    made = json.loads(json.dumps(one))
    _mark(made, token)
    return dict(made)


def _mark(value: JsonValue, token: str) -> None:
    if isinstance(value, list):
        for item in value:
            _mark(item, token)
    if not isinstance(value, dict):
        return
    for key, inner in value.items():
        labels = inner.get("labels") if key == "metadata" and isinstance(inner, dict) else None
        if isinstance(labels, dict):
            labels[_TOKEN] = token
        _mark(inner, token)


def _kept(folder: Path) -> Table:
    """The request as it was sent."""
    try:
        return table(read_json((folder / _REQUEST).read_bytes()))
    except (OSError, ValueError):
        return {}


def _place(job: Submitted) -> tuple[str, str]:
    """The namespace of a job, and what its objects and pods are selected by."""
    space, _, name = job.id.partition("/")
    token = _kept(job.kept).get("token")
    return space, f"{_TOKEN}={token}" if token else f"{_OURS},{_NAME}={name}"


_PIECE = 1 << 16
_LOOK_S = 2.0


@dataclass
class _Stream:
    """The output of one pod; `skip` is what was seen before its connection was lost."""

    pod: Pod
    process: subprocess.Popen[bytes]
    cutter: LineCutter
    skip: int = 0

    @property
    def descriptor(self) -> int:
        assert self.process.stdout is not None
        return self.process.stdout.fileno()

    def feed(self, piece: bytes) -> Iterator[str]:
        new = piece[self.skip :]
        self.skip = max(0, self.skip - len(piece))
        yield from self.cutter.feed(new)

    def stop(self) -> None:
        """Whoever stops reading stops the process too; one that has ended is left."""
        if self.process.poll() is None:
            self.process.kill()
            self.process.communicate()


@dataclass
class _PodLogs:
    """The output of a job's pods, of the tasks that are wanted."""

    kubectl: Kubectl
    job: Submitted
    is_wanted: Callable[[TaskStatus], bool]

    def so_far(self, pods: Sequence[Pod]) -> Iterator[str]:
        """What was written until now, one task after the other."""
        for pod in pods:
            if not self.is_wanted(pod.task) or not pod.begun:
                continue
            stream = self._open(pod, {}, follow=False)
            try:
                while piece := os.read(stream.descriptor, _PIECE):
                    yield from stream.feed(piece)
                self._ended_well(stream, last=True)
            finally:
                stream.stop()
            yield from stream.cutter.finish()

    def followed(self, look: Callable[[], tuple[Sequence[Pod], bool]]) -> Iterator[str]:
        """Output until the job is over.

        A broken connection is opened again, and what was seen of the log is skipped.
        """
        cutters: dict[str, LineCutter] = {}
        streams: dict[str, _Stream] = {}
        done: set[str] = set()
        over, looked = False, -_LOOK_S
        with selectors.DefaultSelector() as selector:
            try:
                while not (over and not streams):
                    if not over and time.monotonic() - looked >= _LOOK_S:
                        pods, over = look()
                        looked = time.monotonic()
                        for pod in pods:
                            # A server may close a log whose pod goes on.
                            read = pod.name in done and pod.task.state.over
                            ready = pod.begun and self.is_wanted(pod.task)
                            if read or pod.name in streams or not ready:
                                continue
                            stream = self._open(pod, cutters, follow=not over)
                            streams[pod.name] = stream
                            selector.register(stream.descriptor, selectors.EVENT_READ, stream)
                    for key, _ in selector.select(0.2):
                        stream = key.data
                        if piece := os.read(key.fd, _PIECE):
                            yield from stream.feed(piece)
                            continue
                        selector.unregister(key.fileobj)
                        del streams[stream.pod.name]
                        if self._ended_well(stream, last=over):
                            done.add(stream.pod.name)
                            yield from stream.cutter.finish()
                        # Else it is opened again at the next look.
            finally:
                for stream in streams.values():
                    stream.stop()

    def _open(self, pod: Pod, cutters: dict[str, LineCutter], *, follow: bool) -> _Stream:
        head = pod.task.name if sum(self.job.roles.values()) > 1 else ""
        cutter = cutters.setdefault(pod.name, LineCutter(head))
        query = {"container": pod.container, **({"follow": "true"} if follow else {})}
        space, _ = _place(self.job)
        path = f"/api/v1/namespaces/{space}/pods/{pod.name}/log"
        return _Stream(pod, self.kubectl.opened(path, **query), cutter, skip=cutter.taken)

    def _ended_well(self, stream: _Stream, *, last: bool) -> bool:
        """Whether a pod's output was read to its end; what cannot be mended is raised."""
        with stream.process as process:
            complaint = self.kubectl.complaint(process.stderr)
        if process.returncode == 0:
            return True
        if isinstance(complaint, NoAnswerError) and not last and not complaint.lasting:
            return False
        if isinstance(complaint, ServerRefusedError) and complaint.reason == "NotFound":
            # Deleted: a job whose time is up takes its pods with it.
            return True
        raise complaint

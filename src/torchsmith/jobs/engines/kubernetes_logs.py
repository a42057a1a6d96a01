"""What pods write, through kubectl: one process for each pod that is followed."""

from __future__ import annotations

import os
import selectors
import subprocess
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from torchsmith.jobs.client import Submitted
from torchsmith.jobs.engines.follow import chooser
from torchsmith.jobs.engines.kubernetes_status import Pod
from torchsmith.jobs.kubectl import Kubectl, ServerRefusedError
from torchsmith.jobs.lines import LineCutter
from torchsmith.jobs.patience import NoAnswerError

_PIECE = 1 << 16
_LOOK_S = 2.0


@dataclass
class _Stream:
    """The output of one pod; `skip` is what was seen before its connection was lost."""

    pod: Pod
    process: subprocess.Popen[bytes]
    cutter: LineCutter
    skip: int = 0

    def feed(self, piece: bytes) -> Iterator[str]:
        new = piece[self.skip :]
        self.skip = max(0, self.skip - len(piece))
        yield from self.cutter.feed(new)


def so_far(
    kubectl: Kubectl, space: str, job: Submitted, pods: Sequence[Pod], role: str, task: str
) -> Iterator[str]:
    """What was written until now, one task after the other."""
    wanted = chooser(job, role, task)
    for pod in pods:
        if not wanted(pod.task) or not pod.begun:
            continue
        stream = _opened(kubectl, space, job, pod, {}, follow=False)
        try:
            while piece := os.read(_out(stream), _PIECE):
                yield from stream.feed(piece)
            _ended_well(kubectl, stream, last=True)
        finally:
            _end(stream)
        yield from stream.cutter.finish()


def followed(
    kubectl: Kubectl,
    space: str,
    job: Submitted,
    look: Callable[[], tuple[Sequence[Pod], bool]],
    role: str,
    task: str,
) -> Iterator[str]:
    """What is written, until `look` says that the job is over and all of it was read.

    A connection that breaks is opened again: a pod's log comes from its beginning, and what was
    seen of it is skipped.
    """
    wanted = chooser(job, role, task)
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
                        if read or pod.name in streams or not (pod.begun and wanted(pod.task)):
                            continue
                        stream = _opened(kubectl, space, job, pod, cutters, follow=not over)
                        streams[pod.name] = stream
                        selector.register(_out(stream), selectors.EVENT_READ, stream)
                for key, _ in selector.select(0.2):
                    stream = key.data
                    if piece := os.read(key.fd, _PIECE):
                        yield from stream.feed(piece)
                        continue
                    selector.unregister(key.fileobj)
                    del streams[stream.pod.name]
                    if _ended_well(kubectl, stream, last=over):
                        done.add(stream.pod.name)
                        yield from stream.cutter.finish()
                    # Else it is opened again at the next look.
        finally:
            for stream in streams.values():
                _end(stream)


def _opened(
    kubectl: Kubectl,
    space: str,
    job: Submitted,
    pod: Pod,
    cutters: dict[str, LineCutter],
    *,
    follow: bool,
) -> _Stream:
    head = pod.task.name if sum(job.roles.values()) > 1 else ""
    cutter = cutters.setdefault(pod.name, LineCutter(head))
    query = {"container": pod.container, **({"follow": "true"} if follow else {})}
    process = kubectl.opened(f"/api/v1/namespaces/{space}/pods/{pod.name}/log", **query)
    return _Stream(pod, process, cutter, skip=cutter.taken)


def _end(stream: _Stream) -> None:
    """Whoever stops reading stops the process too; one that has ended is left."""
    if stream.process.poll() is None:
        stream.process.kill()
        stream.process.communicate()


def _out(stream: _Stream) -> int:
    assert stream.process.stdout is not None
    return stream.process.stdout.fileno()


def _ended_well(kubectl: Kubectl, stream: _Stream, *, last: bool) -> bool:
    """Whether a pod's output was read to its end; what cannot be mended is raised."""
    with stream.process as process:
        complaint = kubectl.complaint(process.stderr)
    if process.returncode == 0:
        return True
    if isinstance(complaint, NoAnswerError) and not last and not complaint.lasting:
        return False
    if isinstance(complaint, ServerRefusedError) and complaint.reason == "NotFound":
        # Deleted: a job whose time is up takes its pods with it.
        return True
    raise complaint

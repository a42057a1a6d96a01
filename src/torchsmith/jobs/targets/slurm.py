"""Slurm, through sbatch, squeue, scontrol, scancel, and sacct where there is accounting."""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

from torchsmith.engine.disk import write_whole
from torchsmith.errors import ClusterError, HostError, TookTooLongError, UnansweredError
from torchsmith.foreign import whole
from torchsmith.jobs import record, slurm
from torchsmith.jobs.client import Listed, Output, Request, Status, Submitted, TargetId
from torchsmith.jobs.kept_secrets import handed_on, kept_here
from torchsmith.jobs.states import State, of_exit, state_of, together
from torchsmith.programs import Answer, call

_FIELD = re.compile(
    r"(?<!\S)(JobId|ArrayTaskId|JobState|Reason|ExitCode|NodeList|StartTime|EndTime)=(\S*)"
)
# No cluster has more.
_MOST_NODES = 100_000
_NOTHING = ("", "(null)", "None", "Unknown", "N/A", "None assigned")


@dataclass(frozen=True)
class Part:
    """The job, a component of it, or elements of its array, such as 2-9."""

    element: str
    word: str
    reason: str
    exit_code: int | None
    nodes: tuple[str, ...]
    started: float | None
    ended: float | None

    @property
    def state(self) -> State:
        """Where it is."""
        # It would wait for ever for a job that failed.
        if self.word == "PENDING" and self.reason == "DependencyNeverSatisfied":
            return State.CANCELLED
        return state_of("slurm", self.word)


def parts(text: str) -> tuple[Part, ...]:
    """What `scontrol --oneliner show job` tells."""
    return tuple(
        _part(dict(_FIELD.findall(line))) for line in text.splitlines() if "JobId=" in line
    )


def _part(fields: dict[str, str]) -> Part:
    def known(name: str) -> str:
        value = fields.get(name, "")
        return "" if value in _NOTHING else value

    return Part(
        element=known("ArrayTaskId").partition("%")[0],
        word=fields.get("JobState", ""),
        reason=known("Reason"),
        exit_code=exit_code(known("ExitCode")),
        nodes=tuple(node_names(known("NodeList"))),
        started=_time(known("StartTime")),
        ended=_time(known("EndTime")),
    )


def accounted(text: str) -> tuple[Part, ...]:
    """What `sacct --parsable2 --format=JobID,State,ExitCode,Start,End,NodeList` tells."""
    found = []
    for line in text.splitlines():
        job, word, code, started, ended, nodes = [*line.split("|"), *[""] * 6][:6]
        # Steps of a job have a dot in their number; they are no jobs.
        if "." in job or not word:
            continue
        found.append(
            Part(
                element=job.partition("_")[2].strip("[]").partition("%")[0],
                # "CANCELLED by 0"
                word=word.split()[0].rstrip("+"),
                reason="",
                exit_code=exit_code(code),
                nodes=() if nodes in _NOTHING else tuple(node_names(nodes)),
                started=_time(started),
                ended=_time(ended),
            )
        )
    return tuple(found)


def exit_code(text: str) -> int | None:
    """The code in "1:0", as a shell says it: behind the colon is a signal."""
    code, _, signal = text.partition(":")
    return 128 + number if (number := whole(signal)) else whole(code)


def _time(text: str) -> float | None:
    """Slurm's programs are asked in UTC."""
    try:
        return datetime.fromisoformat(text).replace(tzinfo=UTC).timestamp()
    except ValueError:
        return None


def node_names(text: str) -> Iterator[str]:
    """The names in a list such as gpu[1-3,7],login."""
    for prefix, ranges, suffix in re.findall(r"([^,\[]+)(?:\[([^\]]*)\])?([^,\[]*)", text):
        if not ranges:
            yield prefix + suffix
            continue
        for item in ranges.split(","):
            first, _, last = item.partition("-")
            start, end = whole(first), whole(last or first)
            if start is None or end is None or end - start > _MOST_NODES:
                yield f"{prefix}[{item}]{suffix}"
                continue
            for number in range(start, end + 1):
                yield f"{prefix}{number:0{len(first)}}{suffix}"


def marked(text: str) -> Iterator[tuple[str, str, str]]:
    """The id, comment and state in lines of `squeue --format=%A|%T|%k`."""
    for line in text.splitlines():
        job, _, rest = line.partition("|")
        word, _, comment = rest.partition("|")
        yield job, word, comment


@dataclass(frozen=True)
class ClusterNode:
    """A node: its name, its state with the reason where there is one, and what it has."""

    name: str
    state: str
    has: str


def cluster_nodes(text: str) -> tuple[ClusterNode, ...]:
    """The nodes that sinfo lists, each once: it has a line for every partition of a node."""
    found: dict[str, ClusterNode] = {}
    for line in text.splitlines():
        fields = [field.strip() for field in line.split("|", 5)]
        if len(fields) == 6:
            name, state, cpus, memory, gres, reason = fields
            why = "" if reason.lower() in ("", "none", "(null)") else f": {reason}"
            more = "" if gres in _NOTHING else f", {gres}"
            found[name] = ClusterNode(name, state + why, f"{cpus} CPUs, {memory} MB{more}")
    return tuple(found.values())


_COMMENT = "torchsmith:"
_PROGRAMS = ("sbatch", "squeue", "scontrol", "scancel")
# sbatch itself waits for a controller that restarts, some MessageTimeouts long.
_PATIENCE_S = 120.0
# How often a controller is asked while output is followed: it answers to many.
_ASK_S = 2.0
# What the programs say where nobody can have heard them.
_UNHEARD = ("Unable to contact slurm controller (connect failure)", "configuration source")
_FORGOTTEN = "Invalid job id specified"


class Slurm:
    """The cluster of a slurm.conf; `place` is that file, empty for the one of the machine."""

    engine = "slurm"

    def __init__(self, place: str = "") -> None:
        self.place = place or os.environ.get("SLURM_CONF", "")

    def check(self, request: Request) -> tuple[str, ...]:
        """Refuse where there is no Slurm, or one that cannot run the job's image."""
        for program in _PROGRAMS:
            if shutil.which(program) is None:
                raise HostError(
                    f"Slurm is not installed here: there is no {program} on the PATH",
                    "Submit from a login node of the cluster, or run it here: --to local.",
                )
        job = request.job
        boxed = job.slurm.container == "pyxis" and any(role.image for role in job.roles)
        if boxed and "--container-image" not in self._ask("srun", "--help").out:
            raise HostError(
                f"job {job.name} runs in an image, and this Slurm has no pyxis to start it",
                "Use apptainer: --set slurm.container=apptainer; or an environment of the "
                "nodes: --set image= --set environment=FOLDER.",
            )
        kept_here(job)
        return slurm.render(job).notes

    def submit(self, request: Request, token: str) -> TargetId:
        """Hand it to sbatch; its environment is inherited, never written on a command line."""
        kept = request.kept
        kept.mkdir(parents=True, exist_ok=True)
        script = kept / "job.sbatch"
        write_whole(script, slurm.script(request.job, str(kept)).encode())
        name = "script.%a.log" if request.job.slurm.array else record.SCRIPT_LOG
        options = [
            "--parsable",
            f"--comment={_COMMENT}{token}",
            # In a file name of Slurm % begins a variable.
            f"--output={str(kept).replace('%', '%%')}/{name}",
            "--open-mode=append",
            "--export=ALL",
            f"--chdir={request.folder}",
        ]
        if request.after:
            options += [
                f"--dependency=afterok:{':'.join(request.after)}",
                "--kill-on-invalid-dep=yes",
            ]
        done = self._ask("sbatch", *options, str(script), env=handed_on(request.job, os.environ))
        if done.code != 0:
            raise _refusal(done, f"job {request.job.name} was not submitted")
        # 12, or 12;cluster
        return TargetId(done.out.strip().partition(";")[0])

    def find(self, token: str, kept: Path) -> TargetId | None:
        """By the comment it was given; once Slurm has forgotten it, by what it wrote itself."""
        for job in self.list():
            if job.token == token:
                return job.id
        if pid := _submitting(token):
            raise UnansweredError(
                f"sbatch is still running, as process {pid} of a torchsmith that is gone",
                "Wait for its end, or end it; then try again.",
            )
        for place in (kept, *(kept / element for element in record.elements(kept))):
            if began := record.mark(place, "started"):
                return TargetId(began.word)
        return None

    def status(self, job: Submitted) -> Status | None:
        """What the controller knows, or accounting, or what the job kept of itself."""
        done = self._ask("scontrol", "--oneliner", "--all", "show", "job", job.id)
        found: tuple[Part, ...] = ()
        if done.code == 0:
            found = parts(done.out)
        elif _FORGOTTEN not in done.err + done.out:
            raise _refusal(done, f"Slurm cannot say where job {job.id} is")
        found = found or self._accounted(job.id)
        return _status(found, job) if found else _remembered(job)

    def _accounted(self, job: TargetId) -> tuple[Part, ...]:
        if shutil.which("sacct") is None:
            return ()
        columns = "JobID,State,ExitCode,Start,End,NodeList"
        options = ("--noheader", "--parsable2", f"--format={columns}", f"--jobs={job}")
        done = self._ask("sacct", *options)
        # It ends badly where nothing is accounted.
        return accounted(done.out) if done.code == 0 else ()

    def logs(self, job: Submitted, wanted: Output) -> Iterator[str]:
        """Its output, out of the files its tasks write in a folder that all nodes see."""
        asked = -_ASK_S
        ended = False

        def over() -> bool:
            nonlocal asked, ended
            if not ended and time.monotonic() - asked >= _ASK_S:
                status = self.status(job)
                ended = status is None or status.state.over
                asked = time.monotonic()
            return ended

        return record.lines(job, wanted, over)

    def cancel(self, job: Submitted) -> None:
        """Stop it, or take it out of the queue."""
        done = self._ask("scancel", job.id)
        if done.code != 0 and _FORGOTTEN not in done.err:
            raise _refusal(done, f"job {job.id} was not stopped")

    def list(self) -> tuple[Listed, ...]:
        """The jobs with a comment of ours."""
        done = self._ask("squeue", "--all", "--states=all", "--noheader", "--format=%A|%T|%k")
        if done.code != 0:
            raise _refusal(done, "the jobs of Slurm cannot be listed")
        return tuple(
            Listed(TargetId(job), comment.removeprefix(_COMMENT), state_of("slurm", word))
            for job, word, comment in marked(done.out)
            if comment.startswith(_COMMENT)
        )

    def nodes(self) -> tuple[ClusterNode, ...]:
        """The nodes of the cluster."""
        done = self._ask("sinfo", "--noheader", "--Node", "--format=%N|%T|%c|%m|%G|%E")
        if done.code != 0:
            raise _refusal(done, "the nodes of Slurm cannot be listed")
        return cluster_nodes(done.out)

    def run_on(self, node: str, words: Sequence[str]) -> bytes:
        """What a short command says on a node; refused where the node has no room right now."""
        options = ("--nodes=1", "--ntasks=1", "--cpus-per-task=1", "--mem=500M", "--time=5")
        done = self._ask("srun", f"--nodelist={node}", *options, "--immediate=30", *words)
        if not done.out.lstrip().startswith("{"):
            raise _refusal(done, f"{node} cannot be asked")
        return done.out.encode()

    def _ask(self, program: str, *arguments: str, env: Mapping[str, str] | None = None) -> Answer:
        environ = dict(os.environ if env is None else env)
        # Times are read as UTC; a job keeps the time zone it was submitted with.
        extra = {"LC_ALL": "C", "TZ": "UTC"} if env is None else {}
        if self.place:
            extra["SLURM_CONF"] = self.place
        try:
            return call([program, *arguments], env={**environ, **extra}, timeout=_PATIENCE_S)
        except TookTooLongError:
            raise UnansweredError(
                f"Slurm did not answer {program} for {_PATIENCE_S:.0f} seconds",
                "`torchsmith job list` looks again.",
            ) from None
        except HostError:
            raise HostError(
                f"Slurm is not installed here: there is no {program} on the PATH"
            ) from None


def _submitting(token: str) -> int:
    """The sbatch that hands this job over right now: it outlives a torchsmith that is killed."""
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        with contextlib.suppress(OSError):
            if f"--comment={_COMMENT}{token}".encode() in path.read_bytes().split(b"\0"):
                return int(path.parent.name)
    return 0


def _refusal(done: Answer, what: str) -> ClusterError:
    message = done.last or f"it ended with {done.code}"
    for prefix in (
        *("sbatch: ", "scontrol: ", "squeue: ", "scancel: ", "sinfo: ", "srun: "),
        *("fatal: ", "error: "),
    ):
        message = message.removeprefix(prefix)
    if any(text in done.err for text in _UNHEARD):
        return ClusterError(
            f"{what}: Slurm's controller cannot be reached ({message})",
            "`scontrol ping` tells whether it is up; SLURM_CONF names its cluster.",
        )
    if "timed out" in message or "Unable to contact" in message or "Zero Bytes" in message:
        return UnansweredError(
            f"{what}, or its answer was lost: {message}", "`torchsmith job list` looks again."
        )
    return ClusterError(f"{what}: {message}", "That is Slurm's answer; nothing was changed.")


def _status(found: tuple[Part, ...], job: Submitted) -> Status:
    state = together(part.state for part in found)
    first = next((part for part in found if part.state is state), found[0])
    tasks = [
        task
        for part in found
        for task in record.tasks(job.kept, job.roles, part.state, element=part.element)
    ]
    # The components of a heterogeneous job have one record.
    tasks = tasks if first.element else tasks[: sum(job.roles.values())]
    starts = [part.started for part in found if part.started and part.state is not State.WAITING]
    ends = [part.ended for part in found if part.ended]
    reason = first.reason if state is not State.SUCCEEDED else ""
    places = record.elements(job.kept) or [""]
    if state is State.FAILED and not any(record.mark(job.kept / at, "started") for at in places):
        reason = f"{reason}: it wrote nothing into {job.kept}; do its nodes see that folder?"
    return Status(
        state,
        said=first.word,
        reason=reason,
        exit_code=first.exit_code if state.over else None,
        nodes=tuple(dict.fromkeys(node for part in found for node in part.nodes)),
        started=min(starts, default=None),
        ended=max(ends, default=None) if state.over else None,
        tasks=tuple(tasks),
    )


def _remembered(job: Submitted) -> Status | None:
    """What a job kept of itself, once nobody else knows it."""
    places = record.elements(job.kept) or [""]
    ends = {place: record.mark(job.kept / place, "ended") for place in places}
    if not all(ends.values()):
        return None
    codes = {place: int(end.word) for place, end in ends.items() if end}
    state = together(of_exit(code) for code in codes.values())
    starts = [began.at for place in places if (began := record.mark(job.kept / place, "started"))]
    return Status(
        state,
        reason="Slurm has forgotten it; this is its own record",
        exit_code=max(codes.values()),
        started=min(starts, default=None),
        ended=max(end.at for end in ends.values() if end),
        tasks=tuple(
            task
            for place, code in codes.items()
            for task in record.tasks(job.kept, job.roles, of_exit(code), element=place)
        ),
    )

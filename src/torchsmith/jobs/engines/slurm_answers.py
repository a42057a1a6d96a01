"""Reading what Slurm's programs say."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime

from torchsmith.jobs.states import State, state_of

_FIELD = re.compile(
    r"(?<!\S)(JobId|ArrayTaskId|JobState|Reason|ExitCode|NodeList|StartTime|EndTime)=(\S*)"
)
_NOTHING = ("", "(null)", "None", "Unknown", "N/A", "None assigned")


@dataclass(frozen=True)
class Part:
    """One element of an array, one component of a heterogeneous job, or simply the job.

    `element` is empty where there is no array; elements that wait come as one, such as 2-9.
    """

    element: str
    said: str
    reason: str
    exit_code: int | None
    nodes: tuple[str, ...]
    started: float | None
    ended: float | None

    @property
    def state(self) -> State:
        """Where it is."""
        # It would wait for ever for a job that failed.
        if self.said == "PENDING" and self.reason == "DependencyNeverSatisfied":
            return State.CANCELLED
        return state_of("slurm", self.said)


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
        said=fields.get("JobState", ""),
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
        job, said, code, started, ended, nodes = [*line.split("|"), *[""] * 6][:6]
        # Steps of a job have a dot in their number; they are no jobs.
        if "." in job or not said:
            continue
        found.append(
            Part(
                element=job.partition("_")[2].strip("[]").partition("%")[0],
                # "CANCELLED by 0"
                said=said.split()[0].rstrip("+"),
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
    code, _, number = text.partition(":")
    if not code.isdigit():
        return None
    return 128 + int(number) if number.isdigit() and int(number) else int(code)


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
            if not first.isdigit() or (last and not last.isdigit()):
                yield f"{prefix}[{item}]{suffix}"
                continue
            for number in range(int(first), int(last or first) + 1):
                yield f"{prefix}{number:0{len(first)}}{suffix}"


def marked(text: str) -> Iterator[tuple[str, str, str]]:
    """The id, comment and state in lines of `squeue --format=%A|%T|%k`."""
    for line in text.splitlines():
        job, _, rest = line.partition("|")
        said, _, comment = rest.partition("|")
        yield job, said, comment


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

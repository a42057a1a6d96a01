"""A job with every choice made, how it comes from the written one, and its renderings."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from pydantic import JsonValue

from torchsmith.recipe import job as written
from torchsmith.recipe.job import Kubernetes, Port, Slurm


@dataclass(frozen=True)
class Mount:
    """A folder the tasks see."""

    name: str
    source: str
    at: str
    read_only: bool

    @property
    def variable(self) -> str:
        """What tells a task where the folder is."""
        return f"{self.name.upper()}_DIR"


@dataclass(frozen=True)
class Secret:
    """A variable whose value somebody else keeps."""

    variable: str
    reference: str

    @property
    def name(self) -> str:
        """The name of the secret; Kubernetes' Secret."""
        return self.reference.partition("/")[0]

    @property
    def key(self) -> str:
        """The key in it; the variable where none is written."""
        return self.reference.partition("/")[2] or self.variable

    @property
    def identifier(self) -> str:
        """The same as one word, for targets that know only those."""
        return re.sub(r"\W", "_", self.reference, flags=re.ASCII)


@dataclass(frozen=True)
class TaskRole:
    """One kind of task; `rank` is the node rank of its first.

    `shm_asked` is the job's own wish, `shm_mb` that or the image's; `processes_asked`: the job
    names their number.
    """

    name: str
    tasks: int
    rank: int
    processes: int
    processes_asked: bool
    cpus: int
    memory_mb: int
    gpus: int
    shm_mb: int | None
    shm_asked: int | None
    image: str
    env: Mapping[str, str]
    ports: tuple[Port, ...]
    retries: int
    min_failed: int | None
    min_succeeded: int | None
    commands: tuple[str, ...]

    @property
    def fails_at(self) -> int | None:
        """How many failed tasks fail the job; None: no number of them."""
        return None if self.min_failed == -1 else self.min_failed or 1

    @property
    def wins_at(self) -> int | None:
        """How many tasks that succeeded end the job; None: no number of them."""
        return None if self.min_succeeded == -1 else self.min_succeeded


@dataclass(frozen=True)
class Job:
    """A workload; in an environment of the machine its roles name no image."""

    name: str
    environment: str
    wheels: str
    roles: tuple[TaskRole, ...]
    distributed: bool
    backend: str
    backend_asked: bool
    retries: int
    secrets: tuple[Secret, ...]
    mounts: tuple[Mount, ...]
    seconds: int | None
    to: str
    queue: str
    after: tuple[str, ...]
    parameters: Mapping[str, str | int | float | bool]
    slurm: Slurm
    kubernetes: Kubernetes
    openpai_env: bool = False
    openpai: Mapping[str, JsonValue] = field(default_factory=dict)
    openpai_v1: Mapping[str, JsonValue] = field(default_factory=dict)

    @property
    def nodes(self) -> int:
        """How many tasks there are in all: the nodes of a distributed run."""
        return sum(role.tasks for role in self.roles)

    @property
    def counts(self) -> bool:
        """Whether its end depends on how many tasks ended how: the first failure does not do."""
        return any(
            role.fails_at != 1 or role.wins_at not in (None, role.tasks)
            if len(self.roles) == 1
            else role.fails_at != 1 or role.wins_at is not None
            for role in self.roles
        )


@dataclass(frozen=True)
class Rendering:
    """The files of a request, and what the target has no word for."""

    files: Mapping[str, bytes]
    notes: tuple[str, ...] = ()


def rendering(job: Job, ending: str, text: str, notes: Iterable[str]) -> Rendering:
    """The one file of a job, called after it; `notes` say what the target has no word for."""
    return Rendering(
        {f"{job.name}.{ending}": text.encode()}, tuple(f"{job.name}: {note}" for note in notes)
    )


def resolve(job: written.Job, image: str = "", shm_mb: int | None = None) -> Job:
    """Choose what is left open; `image` and `shm_mb` are the recipe's own."""
    gpus = any(role.gpus for role in job.role)
    roles: list[TaskRole] = []
    rank = 0
    for role in job.role:
        roles.append(
            TaskRole(
                name=role.name,
                tasks=role.tasks,
                rank=rank,
                processes=role.processes or max(role.gpus, 1),
                processes_asked=role.processes is not None,
                cpus=role.cpus,
                memory_mb=role.memory_mb,
                gpus=role.gpus,
                # Shared memory counts as memory: the image's own must leave some of it.
                shm_mb=role.shm_mb or (shm_mb and min(shm_mb, max(role.memory_mb // 2, 1))),
                shm_asked=role.shm_mb,
                image=role.image or job.image or ("" if job.environment else image),
                env={**job.env, **role.env},
                ports=tuple(role.port),
                retries=role.retries,
                min_failed=role.min_failed,
                min_succeeded=role.min_succeeded,
                commands=role.lines,
            )
        )
        rank += role.tasks
    return Job(
        name=job.name,
        environment=job.environment or "",
        wheels=job.wheels or "",
        roles=tuple(roles),
        distributed=job.distributed,
        backend=job.backend or ("nccl" if gpus else "gloo"),
        backend_asked=job.backend is not None,
        retries=job.retries,
        secrets=tuple(Secret(name, kept) for name, kept in job.secrets.items()),
        mounts=tuple(
            Mount(item.name, item.source, item.at, read_only)
            for items, read_only in ((job.data, True), (job.output, False))
            for item in items
        ),
        seconds=written.seconds(job.time_limit) if job.time_limit else None,
        to=job.to or "",
        queue=job.queue or "",
        after=tuple(job.after),
        parameters=job.parameters,
        slurm=job.slurm,
        kubernetes=job.kubernetes,
        openpai_env=job.openpai_env,
        openpai=job.openpai,
        openpai_v1=job.openpai_v1,
    )

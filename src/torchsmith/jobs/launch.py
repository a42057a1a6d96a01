"""The shell text of one task: its environment, and torchrun where tasks train together."""

from __future__ import annotations

import re
import shlex
from dataclasses import dataclass

from torchsmith.errors import UsageError
from torchsmith.jobs.models import Job, TaskRole

_PARAMETER = re.compile(r"<%\s*\$parameters\.(\w+)\s*%>")
_FILLED_IN = re.compile(r"<%.*?%>", re.DOTALL)
_LAUNCHES = re.compile(r"\btorchrun\b|\btorch\.distributed\.(?:run|launch)\b")
# One plain call of a Python file: torchrun can start it itself. Anything with shell syntax, or
# with a rank that only the process knows, gets a shell for each process.
_PLAIN = re.compile(r"python(?:3(?:\.\d+)?)? (?P<rest>[\w./-]*\.py(?: [^;&|<>()`#\n]*)?)")


@dataclass(frozen=True)
class Rendezvous:
    """Where the tasks of a distributed run meet, as shell words of the engine.

    `index` is the variable that holds a task's own number in its role.
    """

    address: str
    port: str
    index: str


def commands_for(job: Job, role: TaskRole, engine: str) -> tuple[str, ...]:
    """A role's commands with the parameters filled in, for engines that do not do it."""

    def value(match: re.Match[str]) -> str:
        if match[1] not in job.parameters:
            raise UsageError(
                f"role {role.name} asks for the parameter {match[1]}, and the job has none",
                f"Add it: parameters = {{ {match[1]} = ... }}",
            )
        found = job.parameters[match[1]]
        return str(found).lower() if isinstance(found, bool) else str(found)

    commands = tuple(_PARAMETER.sub(value, command) for command in role.commands)
    for command in commands:
        if left := _FILLED_IN.search(command):
            raise UsageError(
                f"role {role.name} says {left[0]}, which only OpenPAI fills in",
                f"Write what it stands for; {engine} would run it as it is.",
            )
    return commands


def environment(job: Job, role: TaskRole) -> dict[str, str]:
    """The variables of a role's tasks, as they are in a container."""
    env = {mount.variable: mount.at for mount in job.mounts}
    if job.distributed:
        env["TORCHSMITH_BACKEND"] = job.backend
        # torchrun would give each process one thread.
        env["OMP_NUM_THREADS"] = str(max(1, role.cpus // role.processes))
    return {**env, **role.env}


def exports(env: dict[str, str]) -> tuple[str, ...]:
    """Lines that set variables in a shell."""
    return tuple(f"export {name}={shlex.quote(value)}" for name, value in env.items())


def started(
    job: Job, role: TaskRole, commands: tuple[str, ...], meet: Rendezvous
) -> tuple[str, ...]:
    """The commands of one task. In a distributed run the last is started once per process."""
    if not job.distributed:
        return commands
    *before, last = commands
    # MPI's processes are started by mpirun, never by torchrun.
    if job.backend == "mpi" or _LAUNCHES.search(last):
        # It starts its processes itself; torchrun takes what it is not told from these.
        if job.nodes == 1:
            return (*before, f"export PET_NNODES=1 PET_NPROC_PER_NODE={role.processes}", last)
        return (
            *before,
            f"export MASTER_ADDR={meet.address} MASTER_PORT={meet.port} "
            f"NODE_RANK={_rank(role, meet)} NNODES={job.nodes}",
            'export PET_MASTER_ADDR="$MASTER_ADDR" PET_MASTER_PORT="$MASTER_PORT" '
            f'PET_NODE_RANK="$NODE_RANK" PET_NNODES={job.nodes} '
            f"PET_NPROC_PER_NODE={role.processes}",
            last,
        )
    plain = _PLAIN.fullmatch(last)
    alone = plain is not None and "RANK" not in last and "WORLD_SIZE" not in last
    program = plain["rest"] if plain and alone else f"--no-python sh -c {shlex.quote(last)}"
    where = (
        "--standalone"
        if job.nodes == 1
        else f"--node-rank={_rank(role, meet)} --master-addr={meet.address} "
        f"--master-port={meet.port}"
    )
    options = f"--nnodes={job.nodes} --nproc-per-node={role.processes} {where}"
    return (*before, f"torchrun {options} {program}")


def _rank(role: TaskRole, meet: Rendezvous) -> str:
    return f'"$(({role.rank} + {meet.index}))"' if role.rank else f'"${meet.index}"'


def gpus_before(job: Job, role: TaskRole, index: int) -> int:
    """How many GPUs of one machine the tasks before this one have."""
    earlier = job.roles[: job.roles.index(role)]
    return sum(other.tasks * other.gpus for other in earlier) + index * role.gpus


def in_time(job: Job, command: str) -> str:
    """The command, ended when its time is up, for engines that know no limit."""
    return command if job.seconds is None else f"timeout {job.seconds} sh -c {shlex.quote(command)}"


def needs_image(job: Job, engine: str) -> None:
    """Refuse a job without an image on an engine that runs only images."""
    for role in job.roles:
        if not role.image:
            raise UsageError(
                f"job {job.name}: {engine} runs images, and role {role.name} names none",
                "Add image = ..., or give it with --set image=NAME.",
            )


def pullable(job: Job, engine: str) -> None:
    """Refuse an image of this machine only on an engine whose machines have to fetch it."""
    for role in job.roles:
        # What podman calls images that are in no registry; with a port it is one.
        if role.image.startswith("localhost/"):
            raise UsageError(
                f"job {job.name}: the machines of {engine} cannot pull {role.image}, which is "
                "on this machine only",
                "Push it to a registry they reach, and name it there: --set image=NAME.",
            )


def only_folders(job: Job, engine: str) -> None:
    """Refuse a mount that is no folder on an engine that has only those."""
    for mount in job.mounts:
        if ":" in mount.source:
            raise UsageError(
                f"job {job.name}: {engine} mounts folders, not {mount.source}",
                "Name the folder its machines see it at: from = '/...'.",
            )


def kept_out(job: Job, engine: str) -> list[str]:
    """What the job says for another engine only."""
    tables = {"openpai": job.openpai, "openpai_v1": job.openpai_v1}
    names = [f"{table}.{key}" for table, keys in tables.items() if table != engine for key in keys]
    return [f"left out, as only OpenPAI knows them: {', '.join(names)}"] if names else []

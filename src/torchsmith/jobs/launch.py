"""The shell text of one task: its environment, its secrets, torchrun where tasks train together."""

from __future__ import annotations

import re
import shlex
from collections.abc import Sequence
from dataclasses import dataclass

from pydantic import JsonValue

from torchsmith.errors import UsageError
from torchsmith.jobs.models import Job, TaskRole
from torchsmith.jobs.openpai_rules import commands_of

_PARAMETER = re.compile(r"<%\s*\$parameters\.(\w+)\s*%>")
# What OpenPAI fills in of a role's own prerequisites: <% $data.uri[0] %>.
_BESIDE = re.compile(r"<%\s*\$(data|output|script)\.(\w+)(?:\[(\d+)\])?\s*%>")
_FILLED_IN = re.compile(r"<%(?:(?!<%).)*?%>", re.DOTALL)
_LAUNCHES = re.compile(
    r"\btorchrun\b|\btorch\.distributed\.(?:run|launch)\b|--multiprocessing-distributed\b"
)
# One plain call of a Python file: torchrun can start it itself. Anything with shell syntax, or
# with a rank that only the process knows, gets a shell for each process.
_PLAIN = re.compile(r"python(?:3(?:\.\d+)?)? (?P<rest>[\w./-]*\.py(?: [^;&|<>()`#\n]*)?)")


@dataclass(frozen=True)
class Rendezvous:
    """Where the tasks of a distributed run meet; `index` is the variable of a task's number."""

    address: str
    port: str
    index: str


def commands_for(job: Job, role: TaskRole, engine: str) -> tuple[str, ...]:
    """A role's commands with OpenPAI's parameters and deployment filled in, for other targets."""

    def value(match: re.Match[str]) -> str:
        if match[1] not in job.parameters:
            raise UsageError(
                f"role {role.name} asks for the parameter {match[1]}, and the job has none",
                f"Add it: parameters = {{ {match[1]} = ... }}",
            )
        found = job.parameters[match[1]]
        return str(found).lower() if isinstance(found, bool) else str(found)

    def beside(match: re.Match[str]) -> str:
        found = _prerequisite(job, role, match[1]).get(match[2])
        if match[3] is not None:
            listed = found if isinstance(found, list) else []
            found = listed[int(match[3])] if int(match[3]) < len(listed) else None
        # What leads nowhere stays as it is, and is refused below.
        return found if isinstance(found, str) else match[0]

    commands = tuple(
        _BESIDE.sub(beside, _PARAMETER.sub(value, command)) for command in _deployed(job, role)
    )
    for command in commands:
        if left := _FILLED_IN.search(command):
            raise UsageError(
                f"role {role.name} says {left[0]}, which only OpenPAI fills in",
                f"Write what it stands for; {engine} would run it as it is.",
            )
    return commands


def _prerequisite(job: Job, role: TaskRole, kind: str) -> dict[str, JsonValue]:
    """What a role of OpenPAI's says it uses of one kind; empty where it says nothing."""
    roles = job.openpai.get("taskRoles")
    mine = roles.get(role.name) if isinstance(roles, dict) else None
    wanted = mine.get(kind) if isinstance(mine, dict) else None
    listed = job.openpai.get("prerequisites")
    for item in listed if isinstance(listed, list) else []:
        if isinstance(item, dict) and (item.get("type"), item.get("name")) == (kind, wanted):
            return item
    return {}


def _deployed(job: Job, role: TaskRole) -> Sequence[str]:
    if "deployments" not in job.openpai:
        return role.commands
    mine: dict[str, JsonValue] = {"commands": [*role.commands]}
    return commands_of({**job.openpai, "taskRoles": {role.name: mine}}, role.name)


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
    program = plain["rest"] if plain and alone else f"--no-python {BASH} -c {shlex.quote(last)}"
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


def needs_image(job: Job, engine: str) -> None:
    """Refuse a job without an image on a target that runs only images."""
    for role in job.roles:
        if not role.image:
            raise UsageError(
                f"job {job.name}: {engine} runs images, and role {role.name} names none",
                "Add image = ..., or give it with --set image=NAME.",
            )


def unfit_images(job: Job) -> list[str]:
    """What is wrong with images that no registry and no target takes by their names."""
    found: list[str] = []
    for name in dict.fromkeys(role.image for role in job.roles):
        first, slash, rest = name.partition("/")
        host = slash and (set(first) & set(".:") or first == "localhost")
        repository = re.sub(r"(?::[^/]*)?(?:@.*)?$", "", rest if host else name)
        if repository != repository.lower():
            found.append(
                f"no registry takes the image {name}: a name has no capital letters, so "
                f"{'' if host else first + ' '}may stand for a name of yours; give it with "
                "--set image=NAME"
            )
    return found


def pullable(job: Job, engine: str) -> None:
    """Refuse an image of this machine only on a target whose machines have to fetch it."""
    for role in job.roles:
        # What podman calls images that are in no registry; with a port it is one.
        if role.image.startswith("localhost/"):
            raise UsageError(
                f"job {job.name}: the machines of {engine} cannot pull {role.image}, which is "
                "on this machine only",
                "Push it to a registry they reach, and name it there: --set image=NAME.",
            )


def only_folders(job: Job, engine: str) -> None:
    """Refuse a mount that is not a folder on a target that has only those."""
    for mount in job.mounts:
        if ":" in mount.source:
            raise UsageError(
                f"job {job.name}: {engine} mounts folders, not {mount.source}",
                "Name the folder its machines see it at: from = '/...'.",
            )


def unmounted(job: Job) -> list[str]:
    """What plain processes see of the folders that a container would mount."""
    return [
        f"{mount.name} is at {mount.source} there, not at {mount.at}: ${mount.variable} says so"
        + ("; nothing keeps it from being written to" if mount.read_only else "")
        for mount in job.mounts
        if mount.at != mount.source or mount.read_only
    ]


def left_out(job: Job, engine: str) -> list[str]:
    """What the job says for other targets only, and what says nothing without something else."""
    notes: list[str] = []
    kept = {"openpai": job.openpai, "openpai_v1": job.openpai_v1}
    names = [
        f"{table}.{key}"
        for table, keys in kept.items()
        if table != engine
        for key in keys
        # Other targets run these commands too.
        if engine.startswith("openpai") or (table, key) != ("openpai", "deployments")
    ]
    notes += [f"left out, as only OpenPAI knows them: {', '.join(names)}"] if names else []
    for table, mine, named in (
        (job.slurm, "slurm", "Slurm"),
        (job.kubernetes, "kubernetes", "Kubernetes"),
    ):
        written = table.model_dump(exclude_defaults=True)
        if written and engine != mine:
            keys = ", ".join(f"{mine}.{key}" for key in written)
            notes.append(f"left out, as only {named} knows them: {keys}")
    if not job.distributed:
        notes += ["backend: has no effect without distributed = true"] if job.backend_asked else []
        notes += [
            f"role {role.name}: processes has no effect without distributed = true"
            for role in job.roles
            if role.processes_asked
        ]
    return notes


# What runs a task's commands on every target, as OpenPAI does: the first that fails is the last,
# also in a pipe. https://github.com/microsoft/openpai-runtime/blob/master/src/runtime.d/user.sh
STRICT = "-eo pipefail"
BASH = f"bash {STRICT}"
SECRETS = '"${TORCHSMITH_SECRETS:-$HOME/.config/torchsmith/secrets}"'


def secret_lines(job: Job) -> list[str]:
    """Take secrets from the environment of whoever starts the script, or from their files."""
    lines: list[str] = []
    for secret in job.secrets:
        name = secret.variable
        lines += [
            f'if [ -z "${{{name}:-}}" ]; then {name}=$(cat {SECRETS}/{secret.reference}); fi',
            f"export {name}",
        ]
    return lines


def environment_lines(job: Job) -> list[str]:
    """Enter the job's Python environment; make it first where it is missing or half made."""
    if not job.environment:
        return []
    # Absolute, since commands may change the folder.
    home = shlex.quote(job.environment)
    lines = [f"environment=$(realpath -m {home})"]
    if job.wheels:
        lines += [
            'if ! [ -e "$environment/.complete" ]; then',
            '  python3 -m venv --clear "$environment"',
            f'  "$environment/bin/python" -m pip install --quiet {shlex.quote(job.wheels)}/*.whl',
            '  touch "$environment/.complete"',
            "fi",
        ]
    return [*lines, 'export VIRTUAL_ENV="$environment" PATH="$environment/bin:$PATH"']


def end_of(text: str) -> str:
    """A word that ends a here-document of this text and nothing before."""
    end = "END"
    while end in text.splitlines():
        end += "_"
    return end


def heredoc(name: str, text: str) -> list[str]:
    """Bash lines that put a text of several lines into a variable, as it is."""
    end = end_of(text)
    return [f"read -r -d '' {name} <<'{end}' || true", *text.splitlines(), end]

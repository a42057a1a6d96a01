"""The shell text of one task: its environment, its secrets, torchrun where tasks train together."""

from __future__ import annotations

import re
import shlex
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass

from pydantic import JsonValue

from torchsmith.errors import UsageError
from torchsmith.foreign import Table, table, tables
from torchsmith.jobs.models import Job, TaskRole
from torchsmith.jobs.openpai_rules import commands_of
from torchsmith.recipe.job import Port

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


# The address of a task, as shell text.
Address = Callable[[TaskRole, int], str]


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


def _prerequisite(job: Job, role: TaskRole, kind: str) -> Table:
    """The prerequisite of one kind that a role of OpenPAI's names; empty if it names none."""
    wanted = table(table(job.openpai.get("taskRoles")).get(role.name)).get(kind)
    items = tables(job.openpai.get("prerequisites"))
    found = (item for item in items if (item.get("type"), item.get("name")) == (kind, wanted))
    return next(found, {})


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


def task_lines(
    job: Job,
    role: TaskRole,
    engine: str,
    meet: Rendezvous,
    address: Address,
    *,
    index: str = "",
    base: str = "",
    settings: Iterable[str] = (),
) -> tuple[str, ...]:
    """What one task runs outside OpenPAI: OpenPAI's variables, `settings`, then its commands.

    `index` is the variable with its number, where that is not the one of the rendezvous.
    """
    pai = _pai_lines(job, role, index or meet.index, address, base)
    return (*pai, *settings, *started(job, role, commands_for(job, role, engine), meet))


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
    """Why no registry and no target takes some image names."""
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
    """Refuse an image that only this machine has where other machines must pull it."""
    for role in job.roles:
        # What podman calls images that are in no registry; with a port it is one.
        if role.image.startswith("localhost/"):
            raise UsageError(
                f"job {job.name}: the machines of {engine} cannot pull {role.image}, which is "
                "on this machine only",
                "Push it to a registry they reach, and name it there: --set image=NAME.",
            )


def only_folders(job: Job, engine: str) -> None:
    """Refuse a mount that is no folder where a target mounts only folders."""
    for mount in job.mounts:
        if ":" in mount.source:
            raise UsageError(
                f"job {job.name}: {engine} mounts folders, not {mount.source}",
                "Name the folder its machines see it at: from = '/...'.",
            )


def unmounted(job: Job) -> list[str]:
    """Notes on mounts where tasks run without a container."""
    return [
        f"{mount.name} is at {mount.source} there, not at {mount.at}: ${mount.variable} says so"
        + ("; nothing keeps it from being written to" if mount.read_only else "")
        for mount in job.mounts
        if mount.at != mount.source or mount.read_only
    ]


def left_out(job: Job, engine: str) -> list[str]:
    """Notes on keys for other targets, and on keys that have no effect here."""
    notes: list[str] = []
    kept = {"openpai": job.openpai, "openpai_v1": job.openpai_v1}
    names = [
        f"{protocol}.{key}"
        for protocol, keys in kept.items()
        if protocol != engine
        for key in keys
        # Other targets run these commands too.
        if engine.startswith("openpai") or (protocol, key) != ("openpai", "deployments")
    ]
    notes += [f"left out, as only OpenPAI knows them: {', '.join(names)}"] if names else []
    for section, mine, named in (
        (job.slurm, "slurm", "Slurm"),
        (job.kubernetes, "kubernetes", "Kubernetes"),
    ):
        written = section.model_dump(exclude_defaults=True)
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
    """A word to end a here-document with: no line of the text is equal to it."""
    end = "END"
    while end in text.splitlines():
        end += "_"
    return end


def heredoc(name: str, text: str) -> list[str]:
    """Bash lines that put a text of several lines into a variable, as it is."""
    end = end_of(text)
    return [f"read -r -d '' {name} <<'{end}' || true", *text.splitlines(), end]


# OpenPAI's variables for the tasks of other targets, so that an imported job finds them there.
# Their names and contents: src/rest-server/src/models/v2/job/runtime-env.js and k8s.js of
# https://github.com/microsoft/pai v1.8.0, src/init.d/framework_parser.py of
# https://github.com/microsoft/openpai-runtime.

# Every task has these two, whether its role asks for ports or not.
_PAI_PORTS = ("ssh", "http")
# What a port without a number is where each task has an address of its own.
FIRST_PORT = 40000


def wants_pai(job: Job) -> bool:
    """Whether a job's tasks look for these variables."""
    texts = (text for role in job.roles for text in (*role.commands, *role.env.values()))
    return job.openpai_env or any("PAI_" in text for text in texts)


def _pai_lines(
    job: Job, role: TaskRole, index: str, address: Address, base: str = ""
) -> tuple[str, ...]:
    """Shell lines that set the variables in one task.

    `index` is the variable with its number, `address` gives a task's address as shell text, `base`
    is the variable with the job's first port where tasks share machines.
    """
    if not wants_pai(job):
        return ()
    made = ['PAI_USER_NAME="$(id -un 2>/dev/null || id -u)"', 'PAI_USERNAME="$PAI_USER_NAME"']
    made += [f'PAI_{word}="$PAI_USER_NAME~{job.name}"' for word in ("JOB_NAME", "FRAMEWORK_NAME")]
    made += [f'{name}="{value}"' for name, value in _job_variables(job)]
    made += [f'PAI_CURRENT_TASK_ROLE_NAME="{role.name}"']
    made += [
        f'{name}="${index}"'
        for name in ("PAI_CURRENT_TASK_ROLE_CURRENT_TASK_INDEX", "PAI_TASK_INDEX")
    ]
    cases: list[str] = []
    taken = 0
    for other in job.roles:
        hosts: list[str] = []
        for number in range(other.tasks):
            here = address(other, number)
            made.append(f'PAI_HOST_IP_{other.name}_{number}="{here}"')
            found: dict[str, str] = {}
            # Where no base is shared, each task has all ports to itself.
            taken = taken if base else 0
            for port in _pai_ports(other):
                found[port.name] = ",".join(_port_numbers(port, taken, base))
                taken += port.count
                for name in (
                    f"PAI_PORT_LIST_{other.name}_{number}_{port.name}",
                    f"PAI_{other.name}_{number}_{port.name}_PORT",
                ):
                    made.append(f'{name}="{found[port.name]}"')
            hosts.append(f"{here}:{found['http'].partition(',')[0]}")
            if other is role:
                cases.append(f"  {number}) {' '.join(_own_variables(here, found))} ;;")
        made.append(f'PAI_TASK_ROLE_{other.name}_HOST_LIST="{",".join(hosts)}"')
    return (*(f"export {one}" for one in made), f'case "${index}" in', *cases, "esac")


def _own_variables(here: str, ports: dict[str, str]) -> Iterator[str]:
    """The variables about the task itself; `ports` by label."""
    yield f'export PAI_CURRENT_CONTAINER_IP="{here}" PAI_CONTAINER_HOST_IP="{here}"'
    first = ports["http"].partition(",")[0]
    yield f'PAI_CURRENT_CONTAINER_PORT="{first}" PAI_CONTAINER_HOST_PORT="{first}"'
    yield f'PAI_CONTAINER_SSH_PORT="{ports["ssh"].partition(",")[0]}"'
    yield from (f'PAI_CONTAINER_HOST_{label}_PORT_LIST="{some}"' for label, some in ports.items())
    listed = "".join(f"{label}:{some};" for label, some in ports.items())
    yield f'PAI_CONTAINER_HOST_PORT_LIST="{listed}"'


def _job_variables(job: Job) -> Iterator[tuple[str, str]]:
    names = ",".join(role.name for role in job.roles)
    yield "PAI_DEFAULT_FS_URI", ""
    yield "PAI_VIRTUAL_CLUSTER", job.queue or "default"
    for word in ("PAI_TASK_ROLE_COUNT", "PAI_TASK_ROLES_NUM", "PAI_JOB_TASK_ROLE_COUNT"):
        yield word, str(len(job.roles))
    for word in ("PAI_TASK_ROLE_LIST", "PAI_JOB_TASK_ROLE_LIST"):
        yield word, names
    for word in ("PAI_TASKS_NUM", "PAI_JOB_TASK_COUNT"):
        yield word, str(job.nodes)
    yield (
        "PAI_TASK_ROLE_INSTANCES",
        ",".join(f"{role.name}:{index}" for role in job.roles for index in range(role.tasks)),
    )
    for role in job.roles:
        yield f"PAI_TASK_ROLE_TASK_COUNT_{role.name}", str(role.tasks)
        yield (
            f"PAI_RESOURCE_{role.name}",
            f"{role.gpus},{role.cpus},{role.memory_mb},{role.shm_mb or 0}",
        )
        yield f"PAI_MIN_FAILED_TASK_COUNT_{role.name}", str(role.min_failed or 1)
        enough = role.min_succeeded or (role.tasks if len(job.roles) == 1 else -1)
        yield f"PAI_MIN_SUCCEEDED_TASK_COUNT_{role.name}", str(enough)


def _pai_ports(role: TaskRole) -> tuple[Port, ...]:
    named = {port.name for port in role.ports}
    more = (Port(name=name) for name in _PAI_PORTS if name not in named)
    return (*role.ports, *more)


def _port_numbers(port: Port, taken: int, base: str) -> Iterator[str]:
    for each in range(port.count):
        if port.number:
            yield str(port.number + each)
        else:
            yield f"$(({base} + {taken + each}))" if base else str(FIRST_PORT + taken + each)


def pai_notes(job: Job, *, names: bool) -> list[str]:
    """What differs from OpenPAI; `names`: hosts are known by name."""
    if not wants_pai(job):
        return []
    what = ["no ssh server listens at PAI_CONTAINER_SSH_PORT", "PAI_DEFAULT_FS_URI is empty"]
    what += ["PAI_HOST_IP_… hold host names"] if names else []
    return [f"OpenPAI's variables: {', '.join(what)}"]

"""OpenPAI's variables for the tasks of other targets, so that an imported job finds them there.

Which there are, and what they hold: src/rest-server/src/models/v2/job/runtime-env.js and k8s.js of
https://github.com/microsoft/pai v1.8.0, src/init.d/framework_parser.py of
https://github.com/microsoft/openpai-runtime.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

from torchsmith.jobs.models import Job, TaskRole
from torchsmith.recipe.job import Port

# Every task has these two, whether its role asks for ports or not.
_ALWAYS = ("ssh", "http")
# What a port without a number is where each task has an address of its own.
FIRST_PORT = 40000

Address = Callable[[TaskRole, int], str]


def wanted(job: Job) -> bool:
    """Whether a job's tasks look for these variables."""
    texts = (text for role in job.roles for text in (*role.commands, *role.env.values()))
    return job.openpai_env or any("PAI_" in text for text in texts)


def lines(
    job: Job, role: TaskRole, index: str, address: Address, base: str = ""
) -> tuple[str, ...]:
    """Shell lines that set the variables in one task.

    `index` is the variable with its number, `address` gives a task's address as shell text, `base`
    is the variable with the job's first port where tasks share machines.
    """
    if not wanted(job):
        return ()
    made = ['PAI_USER_NAME="$(id -un 2>/dev/null || id -u)"', 'PAI_USERNAME="$PAI_USER_NAME"']
    made += [f'PAI_{word}="$PAI_USER_NAME~{job.name}"' for word in ("JOB_NAME", "FRAMEWORK_NAME")]
    made += [f'{name}="{value}"' for name, value in _counts(job)]
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
            for port in _ports(other):
                found[port.name] = ",".join(_numbers(port, taken, base))
                taken += port.count
                for name in (
                    f"PAI_PORT_LIST_{other.name}_{number}_{port.name}",
                    f"PAI_{other.name}_{number}_{port.name}_PORT",
                ):
                    made.append(f'{name}="{found[port.name]}"')
            hosts.append(f"{here}:{found['http'].partition(',')[0]}")
            if other is role:
                cases.append(f"  {number}) {' '.join(_mine(here, found))} ;;")
        made.append(f'PAI_TASK_ROLE_{other.name}_HOST_LIST="{",".join(hosts)}"')
    return (*(f"export {one}" for one in made), f'case "${index}" in', *cases, "esac")


def _mine(here: str, ports: dict[str, str]) -> Iterator[str]:
    """What a task is told of itself; `ports` by label."""
    yield f'export PAI_CURRENT_CONTAINER_IP="{here}" PAI_CONTAINER_HOST_IP="{here}"'
    first = ports["http"].partition(",")[0]
    yield f'PAI_CURRENT_CONTAINER_PORT="{first}" PAI_CONTAINER_HOST_PORT="{first}"'
    yield f'PAI_CONTAINER_SSH_PORT="{ports["ssh"].partition(",")[0]}"'
    yield from (f'PAI_CONTAINER_HOST_{label}_PORT_LIST="{some}"' for label, some in ports.items())
    listed = "".join(f"{label}:{some};" for label, some in ports.items())
    yield f'PAI_CONTAINER_HOST_PORT_LIST="{listed}"'


def _counts(job: Job) -> Iterator[tuple[str, str]]:
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


def _ports(role: TaskRole) -> tuple[Port, ...]:
    named = {port.name for port in role.ports}
    more = (Port(name=name) for name in _ALWAYS if name not in named)
    return (*role.ports, *more)


def _numbers(port: Port, taken: int, base: str) -> Iterator[str]:
    for each in range(port.count):
        if port.number:
            yield str(port.number + each)
        else:
            yield f"$(({base} + {taken + each}))" if base else str(FIRST_PORT + taken + each)


def notes(job: Job, *, names: bool) -> list[str]:
    """What of them is not as in OpenPAI; `names`: hosts are known by name."""
    if not wanted(job):
        return []
    what = ["no ssh server listens at PAI_CONTAINER_SSH_PORT", "PAI_DEFAULT_FS_URI is empty"]
    what += ["PAI_HOST_IP_… hold host names"] if names else []
    return [f"OpenPAI's variables: {', '.join(what)}"]

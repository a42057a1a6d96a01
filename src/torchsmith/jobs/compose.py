"""A job as a compose file, for docker compose and podman-compose."""

from __future__ import annotations

from torchsmith import yaml_text
from torchsmith.errors import UsageError
from torchsmith.jobs.launch import (
    BASH,
    Rendezvous,
    environment,
    gpus_before,
    left_out,
    needs_image,
    only_folders,
    pai_notes,
    task_lines,
)
from torchsmith.jobs.models import Job, Rendering, TaskRole, rendering

Table = dict[str, object]
_MOST = 256


def render(job: Job) -> Rendering:
    """A compose file; each task is a service of its own."""
    needs_image(job, "compose")
    only_folders(job, "compose")
    return rendering(job, "compose.yaml", yaml_text.write(_file(job)), _notes(job))


def _file(job: Job) -> Table:
    if job.nodes > _MOST:
        raise UsageError(
            f"job {job.name} has {job.nodes} tasks, and compose runs them on one machine",
            "Render it for slurm or kubernetes.",
        )
    return {
        "name": _project(job),
        "services": {
            f"{role.name}-{index}": _service(job, role, index)
            for role in job.roles
            for index in range(role.tasks)
        },
    }


def _project(job: Job) -> str:
    """The job's name as compose takes it: lower-case letters, digits, - and _."""
    return job.name.lower().lstrip("_") or "job"


def _service(job: Job, role: TaskRole, index: int) -> Table:
    meet = Rendezvous(f"{job.roles[0].name}-0", "29500", "TASK_INDEX")
    lines = task_lines(job, role, "compose", meet, _host)
    # One limit for all of them; whoever does not listen is killed.
    limit = [] if job.seconds is None else ["timeout", "-k", "10", str(job.seconds)]
    words = [*limit, *BASH.split(), "-c", _plain("\n".join(lines))]
    env: dict[str, str] = {
        "TASK_INDEX": str(index),
        **{name: _plain(text) for name, text in environment(job, role).items()},
    }
    for secret in job.secrets:
        # From the environment of whoever starts it; the file has no value.
        env[secret.variable] = f"${{{secret.variable}:?is unset; it is kept as {secret.reference}}}"
    resources: Table = {"limits": {"cpus": str(role.cpus), "memory": f"{role.memory_mb}M"}}
    if role.gpus:
        which: Table = {"count": role.gpus}
        if job.nodes > 1:
            # A count alone would give the first GPUs to every service.
            first = gpus_before(job, role, index)
            which = {"device_ids": [str(gpu) for gpu in range(first, first + role.gpus)]}
        device = {"driver": "nvidia", **which, "capabilities": ["gpu"]}
        resources["reservations"] = {"devices": [device]}
    volumes: list[Table] = [
        {
            "type": "bind",
            "source": mount.source if mount.source.startswith("/") else f"./{mount.source}",
            "target": mount.at,
            "read_only": mount.read_only,
        }
        for mount in job.mounts
    ]
    ports = [
        f"{port.number + offset}:{port.number + offset}"
        for port in role.ports
        if port.number and index == 0
        for offset in range(port.count)
    ]
    again = job.retries or role.retries
    restart = "no" if not again else "on-failure" if again < 0 else f"on-failure:{again}"
    return {
        "image": role.image,
        "hostname": f"{role.name}-{index}",
        # As on a cluster, the image's own entry point starts nothing.
        "entrypoint": words[:1],
        "command": words[1:],
        "environment": env,
        **({"shm_size": f"{role.shm_mb}m"} if role.shm_mb else {}),
        **({"volumes": volumes} if volumes else {}),
        **({"ports": ports} if ports else {}),
        "restart": restart,
        "deploy": {"resources": resources},
    }


def _host(role: TaskRole, index: int) -> str:
    return f"{role.name}-{index}"


def _plain(text: str) -> str:
    # compose fills in $NAME itself, before any shell does.
    return text.replace("$", "$$")


def _notes(job: Job) -> list[str]:
    notes = left_out(job, "compose")
    if _project(job) != job.name:
        notes.append(f"its project is called {_project(job)}: compose takes no {job.name}")
    notes += pai_notes(job, names=True)
    notes += [f"after {name}: each job is a file of its own here" for name in job.after]
    notes += [f"queue {job.queue}: compose has none"] if job.queue else []
    if job.retries:
        notes.append("retries: compose starts single tasks again, not the whole job")
    if job.nodes > 1:
        notes.append("a task that fails ends the others with `up --abort-on-container-failure`")
    for role in job.roles:
        notes += [
            f"role {role.name}: port {port.name} "
            + ("is open for its first task alone" if port.number else "has no number, not opened")
            for port in role.ports
            if not port.number or role.tasks > 1
        ]
        if job.retries and role.retries:
            notes.append(f"role {role.name}: retries: the job's count, {job.retries}, is taken")
        if role.min_failed is not None or role.min_succeeded is not None:
            notes.append(
                f"role {role.name}: compose counts no tasks; min_… is left out; "
                f"`up --exit-code-from {role.name}-0` ends all with that one"
            )
    return notes

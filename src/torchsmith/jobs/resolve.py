"""From a job as it is written to one with every choice made."""

from __future__ import annotations

from torchsmith.jobs.models import Job, Mount, Secret, TaskRole
from torchsmith.recipe import job as written


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

"""The steps after a build: jobs."""

from __future__ import annotations

import json
from collections.abc import Sequence

from torchsmith.plan.models import Step
from torchsmith.recipe.job import Job
from torchsmith.recipe.models import Recipe
from torchsmith.resolve.models import Resolution


def wheel_folder(verified: Sequence[Step]) -> str:
    """Where the wheels lie that were verified, their reports beside them: the finished ones."""
    return verified[0].outputs[0].rpartition("/")[0] if verified else ""


def job_image(recipe: Recipe, job: Job, images: list[str]) -> str:
    """The image a job runs in: its own, or the first this plan makes."""
    name = job.image or (images[0] if images else "")
    registry = recipe.publish.registry
    return f"{registry}/{name}" if registry and not job.image and name else name


def openpai_v1(job: Job, image: str) -> bytes:
    """A job as OpenPAI's first protocol writes it."""
    roles = [
        {
            "name": role.name,
            "taskNumber": role.tasks,
            "cpuNumber": role.cpus,
            "memoryMB": role.memory_mb,
            "gpuNumber": role.gpus,
            **({"shmMB": role.shm_mb} if role.shm_mb else {}),
            "command": role.script,
        }
        for role in job.role
    ]
    table = {"jobName": job.name, "image": image, "taskRoles": roles}
    return (json.dumps(table, indent=2) + "\n").encode()


def job_steps(
    recipe: Recipe,
    resolution: Resolution,
    images: list[str],
    needs: tuple[str, ...],
    files: dict[str, bytes],
) -> list[Step]:
    """One step for each job: its request, ready to be submitted."""
    steps: list[Step] = []
    for job in recipe.job:
        image = job_image(recipe, job, images)
        name = f"jobs/{resolution.variant}/{job.name}.json"
        files[name] = openpai_v1(job, image)
        shm = recipe.image.shm_size if recipe.image else "8G"
        details = [("image", image), ("shared memory", shm)]
        for role in job.role:
            shared = f", {role.shm_mb} MB shared memory" if role.shm_mb else ""
            details.append(
                (
                    f"role {role.name}",
                    f"{role.tasks} x {role.cpus} CPUs, {role.memory_mb} MB, {role.gpus} GPUs"
                    f"{shared}: {'; '.join(role.script.splitlines())}",
                )
            )
        if job.distributed:
            details.append(("distributed", f"backend {job.backend or 'chosen by GPUs'}"))
        steps.append(
            Step(
                id=f"job-{job.name}-{resolution.variant}",
                kind="job",
                title=f"Job {job.name}",
                why="its request is written, not submitted",
                variant=resolution.variant,
                needs=needs,
                inputs=(name,),
                details=tuple(details),
            )
        )
    return steps

"""The steps after a build that write job files."""

from __future__ import annotations

from torchsmith.plan.models import Step
from torchsmith.recipe.job import Job, job_file
from torchsmith.recipe.models import Recipe
from torchsmith.resolve.models import Resolution


def job_image(recipe: Recipe, job: Job, images: list[str]) -> str:
    """The image a job runs in: its own, or the first this plan makes."""
    name = job.image or (images[0] if images else "")
    registry = recipe.publish.registry
    return f"{registry}/{name}" if registry and not job.image and name else name


def job_steps(
    recipe: Recipe,
    resolution: Resolution,
    images: list[str],
    needs: tuple[str, ...],
    files: dict[str, bytes],
) -> list[Step]:
    """One step for each job: its file, with the image of this variant, ready to be submitted."""
    steps: list[Step] = []
    for job in recipe.job:
        image = job_image(recipe, job, images)
        name = f"jobs/{resolution.variant}/{job.name}.toml"
        boxed = {} if job.environment else {"image": image or None}
        files[name] = job_file(job.model_copy(update=boxed)).encode()
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
                why=f"`torchsmith job submit {name}` takes it to an engine",
                variant=resolution.variant,
                needs=needs,
                inputs=(name,),
                details=tuple(details),
            )
        )
    return steps

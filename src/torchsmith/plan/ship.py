"""The steps after a build: images, jobs."""

from __future__ import annotations

from collections.abc import Sequence

from torchsmith.plan.models import Cost, Step
from torchsmith.plan.shell import in_project, sh
from torchsmith.recipe.job import Job
from torchsmith.recipe.job_file import job_file
from torchsmith.recipe.models import Recipe
from torchsmith.recipe.outcome import Image
from torchsmith.resolve.models import Resolution

ENGINE = '"${ENGINE:-docker}"'


def wheel_folder(verified: Sequence[Step]) -> str:
    """Where the wheels lie that were verified, their reports beside them: the finished ones."""
    return verified[0].outputs[0].rpartition("/")[0] if verified else ""


def image_names(image: Image, variant: str, *, only: bool) -> dict[str, str]:
    """Stage of the Dockerfile -> name of the image made from it."""
    name, _, tag = image.name.partition(":")
    suffix = "" if only else f"-{variant}"
    stages = {f"train-{item.name}": f"{name}:{item.name}{suffix}" for item in image.train}
    if not stages:
        stages["runtime"] = f"{name}:{tag or 'latest'}{suffix}"
    return stages


def image_steps(
    resolution: Resolution,
    image: Image,
    context: str,
    needs: tuple[str, ...],
    reads: tuple[str, ...],
    *,
    only: bool,
    dist: str,
) -> list[Step]:
    """One step for each image; they share every layer up to torch."""
    variant = resolution.variant
    bring = tuple(command for path in reads for command in _into_context(path, context))
    steps: list[Step] = []
    if image.foundation is not None:
        steps.append(
            Step(
                id=f"image-foundation-{variant}",
                kind="image",
                title=f"Build the base image {image.foundation.name}",
                why=f"from {image.foundation.start}",
                variant=variant,
                inputs=(f"{context}/Dockerfile.base",),
                commands=(
                    f"{ENGINE} build --file {context}/Dockerfile.base "
                    f"--tag {sh(image.foundation.name)} {context}",
                ),
                cost=Cost(core_seconds=120, disk_mb=4000, basis="downloads"),
            )
        )
        needs = (*needs, steps[0].id)
    for stage, name in image_names(image, variant, only=only).items():
        training = next((item for item in image.train if f"train-{item.name}" == stage), None)
        caller = training is not None and "caller" in (training.uid, training.gid)
        arguments = ' --build-arg UID="$(id -u)" --build-arg GID="$(id -g)"' if caller else ""
        details = [("shm size", image.shm_size)]
        if training is not None:
            details += [
                ("user", f"{training.user} ({training.uid}:{training.gid})"),
                ("time zone", training.timezone),
            ]
        copy = (
            (
                sh("rm", "-rf", f"{context}/wheels"),
                sh("mkdir", "-p", f"{context}/wheels"),
                f"cp {dist}/*.whl {context}/wheels/",
            )
            if image.build == "wheels" and needs
            else ()
        )
        steps.append(
            Step(
                id=f"image-{stage}-{variant}",
                kind="image",
                title=f"Build the image {name}",
                why="wheels built on this machine, copied in"
                if image.build == "wheels"
                else "everything built inside the image",
                variant=variant,
                needs=needs,
                inputs=(f"{context}/Dockerfile",),
                reads=reads,
                commands=(
                    *copy,
                    *bring,
                    f"{ENGINE} build --file {context}/Dockerfile --target {stage}{arguments} "
                    f"--tag {sh(name)} {context}",
                ),
                cost=Cost(core_seconds=120, disk_mb=8000, basis="a runtime layer"),
                details=tuple(details),
            )
        )
    return steps


def _into_context(path: str, context: str) -> tuple[str, ...]:
    """An engine sees only its context: what the Dockerfile copies of the project is put there."""
    copy = f"{context}/{path.lstrip('/')}"
    return (
        sh("rm", "-rf", copy),
        sh("mkdir", "-p", copy.rpartition("/")[0]),
        f"cp -a {in_project(path)} {sh(copy)}",
    )


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

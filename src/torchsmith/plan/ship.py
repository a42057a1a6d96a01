"""The steps after a build: images, shipping, jobs."""

from __future__ import annotations

import json

from torchsmith.plan.models import Cost, Step
from torchsmith.plan.shell import in_project, needs_program, sh
from torchsmith.recipe.job import Job
from torchsmith.recipe.models import Recipe
from torchsmith.recipe.outcome import Image, Publish
from torchsmith.resolve.models import Resolution

ENGINE = '"${ENGINE:-docker}"'


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
                f"cp dist/{variant}/*.whl {context}/wheels/",
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


def publish_steps(
    resolution: Resolution,
    publish: Publish,
    wheels: tuple[Step, ...],
    conda: tuple[Step, ...],
    images: list[str],
    image_ids: tuple[str, ...],
) -> list[Step]:
    """Ship what was made. Secrets are named, never written."""
    variant = resolution.variant
    steps: list[Step] = []
    verified = tuple(step.id for step in wheels)
    if publish.index is not None and wheels:
        folder = f"{publish.index}"
        steps.append(
            Step(
                id=f"publish-index-{variant}",
                kind="publish",
                title=f"Add the wheels to the pip index {folder}",
                why="any web server can serve it: pip install --index-url",
                variant=variant,
                needs=verified,
                commands=(
                    f"for wheel in dist/{variant}/*.whl; do "
                    'name="${wheel##*/}"; project="$(echo "${name%%-*}" | tr "A-Z_" "a-z-")"; '
                    f'there={sh(folder)}/"$project"; mkdir -p "$there"; '
                    # Published once, a file never changes: pip's caches and locks rest on that.
                    'test -e "$there/$name" || cp "$wheel" "$there"/; done',
                ),
                outputs=(folder,),
            )
        )
    if publish.channel is not None and conda:
        steps.append(
            Step(
                id=f"publish-channel-{variant}",
                kind="publish",
                title=f"Add the packages to the conda channel {publish.channel}",
                why="conda install --channel",
                variant=variant,
                needs=tuple(step.id for step in conda),
                commands=(
                    f"mkdir -p {sh(publish.channel)}",
                    f"for package in channel/{variant}/*/*.conda channel/{variant}/*/*.tar.bz2; do "
                    'test -e "$package" || continue; '
                    'subdir="${package%/*}"; subdir="${subdir##*/}"; '
                    f'there={sh(publish.channel)}/"$subdir"; mkdir -p "$there"; '
                    'test -e "$there/${package##*/}" || cp "$package" "$there"/; done',
                    needs_program("rattler-index", "see https://rattler.build"),
                    sh("rattler-index", "fs", publish.channel),
                ),
                outputs=(publish.channel,),
            )
        )
    if publish.anaconda_user is not None and conda:
        token = publish.token_env
        packages = " ".join(step.outputs[0] for step in conda)
        steps.append(
            Step(
                id=f"publish-anaconda-{variant}",
                kind="publish",
                title=f"Upload to the conda channel of {publish.anaconda_user}",
                why=f"conda install pytorch -c {publish.anaconda_user}",
                variant=variant,
                needs=tuple(step.id for step in conda),
                secrets=(token,),
                commands=(
                    f': "${{{token}:?is unset. Set it in your environment before publishing}}"',
                    needs_program("anaconda", "pip install anaconda-client"),
                    # Through the environment: a token among the arguments is there for all to see.
                    f'ANACONDA_API_TOKEN="${token}" anaconda upload --user {publish.anaconda_user} '
                    f"{packages}",
                ),
            )
        )
    if publish.repository is not None and wheels:
        steps.append(
            Step(
                id=f"publish-wheels-{variant}",
                kind="publish",
                title=f"Upload the wheels to {publish.repository}",
                variant=variant,
                needs=verified,
                secrets=("TWINE_PASSWORD",),
                commands=(
                    ': "${TWINE_PASSWORD:?is unset. Set it in your environment before publishing}"',
                    needs_program("twine", "pip install twine"),
                    f"twine upload --non-interactive --repository-url {sh(publish.repository)} "
                    f"dist/{variant}/*.whl",
                ),
            )
        )
    if publish.registry is not None and images:
        registry = publish.registry.rstrip("/")
        steps.append(
            Step(
                id=f"publish-images-{variant}",
                kind="publish",
                title=f"Push {', '.join(images)} to {registry}",
                why="credentials come from the engine's own login",
                variant=variant,
                needs=image_ids,
                commands=tuple(
                    f"{ENGINE} {sh(*words)}"
                    for name in images
                    for words in (
                        ("tag", name, f"{registry}/{name}"),
                        ("push", f"{registry}/{name}"),
                    )
                ),
            )
        )
    return steps


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

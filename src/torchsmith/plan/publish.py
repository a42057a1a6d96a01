"""The steps after a build: index, channel, uploads, registry, job files. Secrets are only named."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, Literal

from msgspec import Struct

from torchsmith.plan.models import Step, Task
from torchsmith.recipe.job import Job, job_file
from torchsmith.recipe.models import Recipe
from torchsmith.recipe.outcome import Publish
from torchsmith.resolve.models import Resolution


def wheel_folder(verified: Sequence[Step]) -> str:
    """The folder of the verified wheels, which are finished ones, and of their reports."""
    return verified[0].outputs[0].rpartition("/")[0] if verified else ""


Service = Literal["pypi", "anaconda", "s3"]


class Accounts(Struct, frozen=True, omit_defaults=True):
    """The address of each service; the variable `token_env` holds anaconda.org's token."""

    repository: str = "https://upload.pypi.org/legacy/"
    anaconda_user: str = ""
    anaconda_force: bool = False
    token_env: str = "ANACONDA_TOKEN"
    bucket: str = ""


class Shipment(Struct, frozen=True, omit_defaults=True):
    """What a publish step does: add files to folders, then upload them to services.

    `files` are patterns of the work folder; `index` and `channel` are folders of the project.
    """

    files: tuple[str, ...] = ()
    index: str = ""
    channel: str = ""
    to: tuple[Service, ...] = ()
    accounts: Accounts = Accounts()


class Delivery(Struct, frozen=True):
    """Images to push to a registry, each under its own name there.

    The registry's digest of each is written to `record`, a file of the work folder.
    """

    images: tuple[str, ...]
    registry: str
    record: str


def publish_steps(
    resolution: Resolution,
    publish: Publish,
    wheels: tuple[Step, ...],
    archives: tuple[Step, ...],
    conda: tuple[Step, ...],
    images: list[str],
    image_ids: tuple[str, ...],
    attested: tuple[str, ...],
) -> list[Step]:
    """A step for each place that a recipe names, if there is something to publish there.

    `attested` are the steps that write the documents to publish with the files.
    """
    variant = resolution.variant
    steps: list[Step] = []

    def ship(name: str, title: str, task: Task, needs: Iterable[str], **more: Any) -> None:
        identity = f"publish-{name}-{variant}"
        steps.append(
            Step(identity, "publish", title, variant=variant, needs=tuple(needs), task=task, **more)
        )

    made = f"{wheel_folder(wheels)}/*.whl"
    packages = (f"channel/{variant}/*/*.conda", f"channel/{variant}/*/*.tar.bz2")
    packed = [step.id for step in conda]
    if (index := publish.index) is not None and (wheels or archives):
        files = (*([made] if wheels else []), *(step.outputs[0] for step in archives))
        ship(
            "index",
            f"Add the wheels to the pip index {index}",
            Task("ship", Shipment(files, index=index)),
            (*(step.id for step in (*wheels, *archives)), *attested),
            why=f"any web server can serve it: pip install --index-url ADDRESS/{index}/simple",
            outputs=(f"$PROJECT/{index}",),
        )
    if (channel := publish.channel) is not None and conda:
        ship(
            "channel",
            f"Add the packages to the conda channel {channel}",
            Task("ship", Shipment(packages, channel=channel)),
            (*packed, *attested),
            why=f"conda install --channel {channel} pytorch",
            outputs=(f"$PROJECT/{channel}",),
        )
    if (bucket := publish.bucket) is not None and steps:
        copied = Shipment(
            index=index or "", channel=channel or "", to=("s3",), accounts=Accounts(bucket=bucket)
        )
        ship(
            "bucket",
            f"Copy what is published to {bucket}",
            Task("ship", copied),
            [step.id for step in steps],
            why="credentials come from aws's own settings",
        )
    if (user := publish.anaconda_user) is not None and conda:
        account = Accounts(
            anaconda_user=user, anaconda_force=publish.anaconda_force, token_env=publish.token_env
        )
        ship(
            "anaconda",
            f"Upload to the conda channel of {user}",
            Task("ship", Shipment(packages, to=("anaconda",), accounts=account)),
            packed,
            why=f"conda install pytorch -c {user}",
            secrets=(account.token_env,),
        )
    if (repository := publish.repository) is not None and wheels:
        accounts = Accounts(repository=repository)
        ship(
            "wheels",
            f"Upload the wheels to {repository}",
            Task("ship", Shipment((made,), to=("pypi",), accounts=accounts)),
            (step.id for step in wheels),
            secrets=("TWINE_PASSWORD",),
        )
    if publish.registry is not None and images:
        registry = publish.registry.rstrip("/")
        ship(
            "images",
            f"Push {', '.join(images)} to {registry}",
            Task("push", Delivery(tuple(images), registry, f"pushed/{variant}.json")),
            image_ids,
            why="credentials come from the container tool's own login",
        )
    return steps


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
    """One step for each job: its file, with the image of this variant, ready to submit."""
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
                why=f"`torchsmith job submit {name}` submits it",
                variant=resolution.variant,
                needs=needs,
                inputs=(name,),
                details=tuple(details),
            )
        )
    return steps

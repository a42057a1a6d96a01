"""The steps that build container images."""

from __future__ import annotations

from msgspec import Struct
from msgspec.structs import replace

from torchsmith.plan.models import Cost, Plan, Step, Task
from torchsmith.recipe.outcome import Image, Training
from torchsmith.resolve.models import Resolution

# The stage, and the tag, that hold nothing but the wheels of a build.
WHEELS = "wheels"


class ImageTask(Struct, frozen=True, omit_defaults=True):
    """One image to be built, its paths those of the work folder.

    `wheels` is the pattern of wheels to copy into the context; `reads` are paths of the recipe's
    folder to copy there too. `caller` gives the image's user the numbers of the person who builds
    it. Name and id of the image are written to `record`. Steps run in a `base` image: it is made
    once, by a program that also starts containers. The rest are options of the container tool.
    """

    name: str
    context: str
    record: str
    stage: str = ""
    file: str = "Dockerfile"
    wheels: str = ""
    reads: tuple[str, ...] = ()
    caller: tuple[str, ...] = ()
    secrets: tuple[str, ...] = ()
    platform: str = ""
    base: bool = False
    engine: str = ""
    network: str = ""
    cache: bool = True

    def unnamed(self) -> ImageTask:
        """The same without the container tool and its options, which do not change the image."""
        return replace(self, engine="", network="", cache=True)


def split_name(image: str) -> tuple[str, str]:
    """Name and tag; a colon before a slash is a registry's port."""
    name, _, tag = image.partition("@")[0].rpartition(":")
    return (name, tag) if name and "/" not in tag else (image.partition("@")[0], "")


def image_names(image: Image, variant: str, *, only: bool) -> dict[str, str]:
    """Stage of the Dockerfile -> name of the image made from it."""
    name, tag = split_name(image.name)
    suffix = "" if only else f"-{variant}"
    stages = {f"train-{item.name}": f"{name}:{item.name}{suffix}" for item in image.train}
    if not stages:
        stages["runtime"] = f"{name}:{tag or 'latest'}{suffix}"
    return stages


def wheels_image(image: Image, variant: str, *, only: bool) -> str:
    """The name of the image that holds the wheels of a build."""
    name, tag = split_name(image.name)
    return f"{name}:{f'{tag}-' if tag else ''}{WHEELS}{'' if only else f'-{variant}'}"


def image_steps(
    resolution: Resolution,
    image: Image,
    context: str,
    needs: tuple[str, ...],
    reads: tuple[str, ...],
    *,
    only: bool,
    dist: str,
    compiled: bool,
) -> list[Step]:
    """One step for each image; they share every layer up to torch."""
    variant = resolution.variant
    steps: list[Step] = []
    if image.foundation is not None:
        steps.append(_foundation(resolution, image, context))
        needs = (*needs, steps[0].id)
    stages = image_names(image, variant, only=only)
    if compiled:
        stages[WHEELS] = wheels_image(image, variant, only=only)
    for stage, name in stages.items():
        training = next((item for item in image.train if f"train-{item.name}" == stage), None)
        task = ImageTask(
            name=name,
            context=context,
            record=f"{context}/{stage}.json",
            stage=stage,
            wheels=f"{dist}/*.whl" if dist else "",
            reads=reads,
            caller=_of_the_caller(training),
            secrets=tuple(image.secrets),
            platform=resolution.platform,
        )
        what = f"Keep the wheels as the image {name}" if stage == WHEELS else ""
        steps.append(
            Step(
                id=f"image-{stage}-{variant}",
                kind="image",
                title=what or f"Build the image {name}",
                why="the wheels of this plan, copied in" if dist else "published wheels",
                variant=variant,
                needs=needs,
                inputs=(f"{context}/Dockerfile",),
                reads=reads,
                secrets=task.secrets,
                task=Task("image", task),
                cost=Cost(core_seconds=120, disk_mb=8000, basis="a runtime layer"),
                details=_details(image, training),
            )
        )
    return steps


def _foundation(resolution: Resolution, image: Image, context: str) -> Step:
    assert image.foundation is not None
    task = ImageTask(
        name=image.foundation.name,
        context=context,
        record=f"{context}/foundation.json",
        file="Dockerfile.base",
        platform=resolution.platform,
    )
    return Step(
        id=f"image-foundation-{resolution.variant}",
        kind="image",
        title=f"Build the base image {image.foundation.name}",
        why=f"from {founded.start}, with CUDA {founded.cuda.version}: NVIDIA deleted its image"
        if (founded := resolution.foundation)
        else f"from {image.foundation.start}",
        variant=resolution.variant,
        inputs=(f"{context}/Dockerfile.base",),
        task=Task("image", task),
        cost=Cost(core_seconds=120, disk_mb=4000, basis="downloads"),
    )


def task_of(step: Step) -> ImageTask:
    """What an image step builds."""
    assert isinstance(step.arguments, ImageTask)
    return step.arguments


def with_image_options(plan: Plan, *, engine: str, network: str, cache: bool) -> Plan:
    """The plan with these options of the container tool; no key changes."""

    def with_options(step: Step) -> Step:
        if not isinstance(step.arguments, ImageTask):
            return step
        task = replace(step.arguments, engine=engine, network=network, cache=cache)
        return replace(step, task=Task("image", task))

    return replace(plan, steps=tuple(map(with_options, plan.steps)))


def _of_the_caller(training: Training | None) -> tuple[str, ...]:
    """The build arguments that are the numbers of the person who builds."""
    if training is None:
        return ()
    numbers = (("UID", training.uid), ("GID", training.gid))
    return tuple(name for name, number in numbers if number == "caller")


def _details(image: Image, training: Training | None) -> tuple[tuple[str, str], ...]:
    details = [("shm size", image.shm_size)]
    if training is not None:
        details += [
            ("user", f"{training.user} ({training.uid}:{training.gid})"),
            ("time zone", training.timezone),
        ]
    return tuple(details)

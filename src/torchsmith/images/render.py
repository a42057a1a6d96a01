"""The images of a recipe, written down for other runtimes.

The compose file is for docker compose and podman-compose:
https://github.com/compose-spec/compose-spec/blob/main/spec.md
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Literal, get_args

from torchsmith import yaml_text
from torchsmith.errors import UsageError
from torchsmith.images.select import RecipeImage, at_recipes_registry, recipe_images
from torchsmith.plan.models import Plan
from torchsmith.plan.render.apptainer import from_image, from_wheels
from torchsmith.plan.render.dockerfile import dockerfile_context
from torchsmith.recipe.models import Recipe
from torchsmith.recipe.outcome import Image

Runtime = Literal["compose", "apptainer", "dockerfile"]
Start = Literal["image", "wheels"]


def render(
    plan: Plan, recipe: Recipe, runtime: str, torchsmith: str, start: str = ""
) -> Mapping[str, bytes]:
    """The files of a runtime. `start` is what an Apptainer image is made of: image or wheels."""
    if start and (runtime != "apptainer" or start not in get_args(Start)):
        raise UsageError(
            f"--from {start} means nothing here",
            "It goes with --as apptainer, and is image or wheels.",
        )
    if runtime == "compose":
        return compose_files(plan, recipe, torchsmith)
    if runtime == "apptainer":
        return apptainer_files(plan, recipe, torchsmith, start)
    if runtime == "dockerfile":
        return dockerfile_context(plan, recipe, torchsmith)
    raise UsageError(
        f"--as: {runtime!r} is not a runtime torchsmith writes for",
        f"It writes for {', '.join(get_args(Runtime))}.",
    )


def apptainer_files(
    plan: Plan, recipe: Recipe, torchsmith: str, start: str = ""
) -> Mapping[str, bytes]:
    """A definition file for each image; from the pushed image where the recipe pushes it."""
    image = recipe.image or Image()
    registry = recipe.publish.registry
    if start == "image" and not registry:
        raise UsageError(
            "--from image: the recipe names no registry the image could be taken from",
            'Add [publish] registry = "registry.example.org/lab"; or --from wheels.',
        )
    by_variant = {item.variant: item for item in plan.variants}
    files: dict[str, bytes] = {}
    for made in recipe_images(recipe):
        if made.variant not in by_variant:
            continue
        resolution = by_variant[made.variant]
        if start == "image" or (not start and registry):
            name = at_recipes_registry(recipe, made.name)
            text = from_image(resolution, name, made.training, torchsmith)
        else:
            text = from_wheels(resolution, image, made.training, torchsmith)
        path = made.name.rpartition("/")[2].replace(":", "-")
        files[f"{path}.def"] = text.encode()
    return files


FILE = "docker-compose.yaml"
_CONTEXT = "image"
_STACK = 64 << 20

Table = dict[str, object]


def compose_files(plan: Plan, recipe: Recipe, torchsmith: str) -> Mapping[str, bytes]:
    """The compose file, and beside it what its images are built from."""
    cuda = {item.variant: item.cuda is not None for item in plan.variants}
    context = dockerfile_context(plan, recipe, torchsmith)
    several = len(plan.variants) > 1
    services: Table = {}
    for made in recipe_images(recipe):
        if made.variant in cuda:
            folder = f"./{_CONTEXT}/{made.variant}" if several else f"./{_CONTEXT}"
            name = _service_name(made, several=several)
            services[name] = _service(recipe, made, folder, gpus=cuda[made.variant])
    text = yaml_text.write({"name": _project(recipe.name), "services": services})
    header = (
        f"# Written by torchsmith {torchsmith}; works without it:\n"
        f"#   docker compose run {next(iter(services))} python -c 'import torch'\n"
        "# An image that is neither here nor at its registry is built from ./image, whose\n"
        "# Dockerfile says what has to lie beside it. podman-compose takes the same file.\n"
    )
    files = {f"{_CONTEXT}/{path}": content for path, content in context.items()}
    return {FILE: (header + text).encode(), **files}


def _project(name: str) -> str:
    return re.sub(r"[^a-z0-9_-]", "-", name.lower()).strip("-_") or "torch"


def _service_name(made: RecipeImage, *, several: bool) -> str:
    short = made.stage.removeprefix("train-")
    return f"{short}-{made.variant}" if several else short


def _service(recipe: Recipe, made: RecipeImage, folder: str, *, gpus: bool) -> Table:
    image = recipe.image or Image()
    training = made.training
    build: Table = {"context": folder, "target": made.stage}
    if training is not None and "caller" in (training.uid, training.gid):
        # From the environment of whoever builds: a shell does not export UID by itself.
        build["args"] = {"UID": "${UID:-1000}", "GID": "${GID:-1000}"}
    service: Table = {
        "image": at_recipes_registry(recipe, made.name),
        "build": build,
        "init": True,
        "stdin_open": True,
        "tty": True,
        "shm_size": image.shm_size.lower(),
    }
    if training is not None:
        service["environment"] = {"TZ": training.timezone}
        # What is worked on is where the compose file is.
        service["volumes"] = [{"type": "bind", "source": ".", "target": training.workdir}]
    if gpus:
        # Pinned memory of any size, and deep recursion: what NVIDIA's own images ask for.
        service["ulimits"] = {"memlock": -1, "stack": _STACK}
        device = {"driver": "nvidia", "count": "all", "capabilities": ["gpu"]}
        service["deploy"] = {"resources": {"reservations": {"devices": [device]}}}
    return service

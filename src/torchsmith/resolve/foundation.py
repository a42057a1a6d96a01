"""What a recipe's own base image starts from: of which distribution it is, whether it is gone."""

from __future__ import annotations

import re

from torchsmith.facts.cuda import find_toolkit, image_end, repositories
from torchsmith.facts.files import Facts
from torchsmith.recipe.models import Recipe
from torchsmith.resolve.build_rules import find_system
from torchsmith.resolve.cuda import toolkit_packages
from torchsmith.resolve.models import (
    Caution,
    Choice,
    Conflict,
    CudaChoice,
    Evidence,
    FoundationChoice,
    RepositoryChoice,
)
from torchsmith.resolve.toolchain import Decided

_NVIDIAS = re.compile(
    r"(?:docker\.io/)?nvidia/cuda:(?P<cuda>\d+\.\d+)(?:\.\d+)*(?:-cudnn(?P<cudnn>\d+))?"
    r"(?:-(?P<flavour>[a-z]+))?-(?P<system>[a-z]+\d[\d.]*)"
)


def check_base(facts: Facts, recipe: Recipe, decided: Decided) -> None:
    """Refuse a base image of another distribution than the recipe's: its packages are not there."""
    named = _named(recipe)
    base = _system_of(facts, named)
    if base is None or recipe.system is None or base == recipe.system:
        return
    key = "foundation.from" if recipe.image and recipe.image.foundation else "base"
    decided.conflicts.append(
        Conflict(
            "base-system",
            f"the image {named} is {base}, not {recipe.system}",
            Evidence(f"asked for: system = {recipe.system!r}"),
            Evidence(f"the image stands on {named}, which is {base} by its name"),
            f"name an image of {recipe.system} in image.{key}",
        )
    )


def _named(recipe: Recipe) -> str:
    """The image the recipe says to start from."""
    image = recipe.image
    if image is None:
        return ""
    return image.foundation.start if image.foundation else image.base or ""


def _system_of(facts: Facts, named: str) -> str | None:
    """The distribution that the name of an image tells."""
    if match := _NVIDIAS.match(named):
        return re.sub(r"([a-z]+)", r"\1-", match["system"])
    whole = named if "/" in named else f"docker.io/library/{named}"
    return next((item.name for item in facts.systems.system if item.image == whole), None)


def deleted_base(
    facts: Facts, recipe: Recipe, platform: str, decided: Decided
) -> FoundationChoice | None:
    """What stands for an image of NVIDIA's that the recipe names and that is gone.

    Of a base image that is built here, it is the packages the image was made of; an image that is
    used as it is can only be said to be gone.
    """
    image = recipe.image
    named = _named(recipe)
    match = _NVIDIAS.match(named)
    end = image_end(facts, match["cuda"]) if match else None
    if image is None or match is None or end is None or not end.gone:
        return None
    gone = f"NVIDIA deleted its CUDA {match['cuda']} images in {end.since}"
    made = _assembled(facts, match, platform) if image.foundation else None
    if made is None:
        decided.cautions.append(
            Caution(
                f"{named} is gone from Docker Hub: {gone}",
                "name a copy of it; or leave it out: its packages are then put on the "
                "distribution's own image"
                if image.foundation is None
                else "name a copy of it in image.foundation.from",
            )
        )
        return None
    why = f"{gone}; the packages of {named} are put on the distribution's own image"
    decided.choices.append(Choice("base image", made.start, why))
    return made


def _assembled(facts: Facts, match: re.Match[str], platform: str) -> FoundationChoice | None:
    """The distribution and the packages of a deleted image; None where nobody has them."""
    known = find_toolkit(facts, match["cuda"])
    name = re.sub(r"([a-z]+)", r"\1-", match["system"])
    system = find_system(facts, name)
    if known is None or system is None:
        return None
    found = repositories(facts, known.version, system.name, platform)
    cudnn = match["cudnn"] or ""
    apt, runtime = toolkit_packages(facts, known, "apt", system.name, cudnn, with_cudnn=bool(cudnn))
    if not found or not apt:
        return None
    packages = apt if match["flavour"] == "devel" else runtime
    listed = tuple(RepositoryChoice(item.url, item.key, item.fingerprint) for item in found)
    cuda = CudaChoice(
        known.version, known.version, "apt", (), cudnn, apt=packages, repositories=listed
    )
    return FoundationChoice(system.image, system.name, cuda)

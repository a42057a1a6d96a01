"""Deciding about a torch that is installed already: whether it is the one asked for."""

from __future__ import annotations

from torchsmith.facts.ranges import dotted, release
from torchsmith.host.models import Host, InstalledTorch
from torchsmith.recipe.models import Recipe
from torchsmith.resolve.models import (
    Caution,
    Change,
    Choice,
    Conflict,
    Evidence,
    InstalledChoice,
)
from torchsmith.resolve.toolchain import Decided


def _wheel_instead(recipe: Recipe) -> tuple[Change, ...]:
    named = (Change("torch.environment", ""),) if recipe.torch.environment else ()
    return (*named, Change("torch.use", "wheel"))


def find_installed(recipe: Recipe, python: str, host: Host) -> InstalledTorch | None:
    """The installed torch a variant would use, if it uses one and it was found."""
    if recipe.torch.use != "installed":
        return None
    for item in host.torches:
        if python in ("host", python_of(item)):
            return item
    return None


def decide_installed(
    recipe: Recipe,
    found: InstalledTorch | None,
    *,
    torch: str,
    python: str,
    cuda: str,
    container: bool,
    decided: Decided,
) -> InstalledChoice | None:
    """Hold what is installed against the wish; companions are built against nothing else."""
    if recipe.torch.use != "installed":
        return None
    if container or (recipe.image is not None and recipe.image.build == "inside"):
        decided.conflicts.append(_in_an_image(recipe))
    if found is None:
        decided.conflicts.append(_none_found(recipe, python))
        return None
    wanted = recipe.torch.version or torch
    version = found.version if recipe.torch.version else found.version.partition("+")[0]
    if version != wanted:
        decided.conflicts.append(_another_version(found, wanted))
    if cuda and not f"{found.cuda}.".startswith(f"{cuda}."):
        decided.conflicts.append(_another_cuda(found, cuda))
    if not cuda and found.cuda:
        decided.cautions.append(
            Caution(
                f"the installed torch is built with CUDA {found.cuda}, and the recipe asks for "
                "none: what is built against it runs on the CPU only",
                f"cuda = '{'.'.join(found.cuda.split('.')[:2])}' in the recipe",
            )
        )
    decided.choices.append(
        Choice("torch", found.version, f"installed in {found.module}; it stays as it is")
    )
    return InstalledChoice(
        found.version,
        found.path,
        found.module,
        found.packages,
        found.evidence,
        tuple(found.beside.items()),
    )


def python_of(found: InstalledTorch) -> str:
    """Its Python as recipes write it: 3.11, or 3.13t."""
    return dotted(release(found.python)[:2]) + ("t" if found.free_threaded else "")


def _none_found(recipe: Recipe, python: str) -> Conflict:
    where = recipe.torch.environment or (
        "this environment" if python == "host" else f"the environment of python{python}"
    )
    return Conflict(
        "installed-torch",
        f"no torch is installed in {where}",
        Evidence("asked for: torch.use = 'installed'"),
        Evidence(f"import torch finds nothing in {where}"),
        "torch.environment = the folder of the environment that has it; or torch.use = 'wheel'",
        _wheel_instead(recipe),
    )


def _another_version(found: InstalledTorch, wanted: str) -> Conflict:
    public = found.version.partition("+")[0]
    return Conflict(
        "installed-version",
        f"the installed torch is {found.version}, not {wanted}",
        Evidence(f"asked for: torch {wanted}, installed"),
        Evidence(f"torch {found.version} lies in {found.module}"),
        f"torch {public}; or torch.use = 'wheel'",
    )


def _another_cuda(found: InstalledTorch, cuda: str) -> Conflict:
    has = f"CUDA {found.cuda}" if found.cuda else "no CUDA"
    version = ".".join(found.cuda.split(".")[:2]) if found.cuda else "none"
    return Conflict(
        "installed-cuda",
        f"the installed torch has {has}, not CUDA {cuda}",
        Evidence(f"asked for: CUDA {cuda}, and torch.use = 'installed'"),
        Evidence(f"torch {found.version} in {found.module} has {has}"),
        f"cuda = '{version}'; or torch.use = 'wheel'",
    )


def _in_an_image(recipe: Recipe) -> Conflict:
    return Conflict(
        "installed-image",
        "an installed torch cannot be used inside an image",
        Evidence("asked for: torch.use = 'installed'"),
        Evidence("the build runs in an image, where nothing of this machine is installed"),
        "torch.use = 'wheel'; or leave system and image out",
        _wheel_instead(recipe),
    )

"""The digests of base images, as their registries say them."""

from __future__ import annotations

from collections.abc import Iterable

from torchsmith.images.logins import find_login
from torchsmith.images.reference import reference
from torchsmith.images.registry import Registry, RegistryError
from torchsmith.plan.lock import Image


def digests(names: Iterable[str]) -> tuple[Image, ...]:
    """Every image with the digest its registry has it by now."""
    return tuple(Image(name, _digest(name)) for name in names)


def _digest(name: str) -> str:
    wanted = reference(name)
    login = find_login("podman", wanted.registry, wanted.repository)
    found = Registry(wanted.registry, login).manifest(wanted)
    if found is None:
        raise RegistryError(f"{wanted.registry} has no {name}", "Check the name of the base image.")
    return found.digest

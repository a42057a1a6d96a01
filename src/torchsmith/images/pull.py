"""Bringing an image from a registry, by tag or by digest."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from torchsmith.errors import ContainerToolError, RegistryError, TorchsmithError
from torchsmith.images.engine import Engine, ImageInfo
from torchsmith.images.logins import find_login
from torchsmith.images.process import OnLine
from torchsmith.images.record import recorded
from torchsmith.images.reference import Reference, is_loopback
from torchsmith.images.registry import Registry


@dataclass(frozen=True, slots=True)
class Pulled:
    """An image that was brought: `digest` is what its registry has it by."""

    name: str
    digest: str
    info: ImageInfo


def pull(
    engine: Engine, name: Reference, *, insecure: bool = False, on_line: OnLine | None = None
) -> Pulled:
    """Bring an image; what a tag means is asked once, and just that is brought."""
    login = find_login(engine.name, name.registry, name.repository)
    found = Registry(name.registry, login, insecure=insecure).manifest(name)
    if found is None:
        raise RegistryError(
            f"{name.registry} has no {name}",
            "Look at the tag again; what is deleted there can only be pushed again.",
        )
    try:
        info = engine.pull(
            str(name.at(found.digest)), on_line, insecure=insecure or is_loopback(name.registry)
        )
    except ContainerToolError as error:
        raise _not_brought(error, name) from None
    if name.tag:
        # By its digest an image comes without a name.
        engine.tag(info.id, str(name))
    return Pulled(str(name), found.digest, info)


def pull_recorded(
    engine: Engine,
    name: Reference,
    *,
    store: Path | None,
    insecure: bool = False,
    on_line: OnLine | None = None,
) -> Pulled:
    """Bring an image and note its digest in the journal."""
    with recorded(store, f"pull {name}") as record:
        done = pull(engine, name, insecure=insecure, on_line=on_line)
        record.add(done.name, done.digest, f"Pull {name}")
    return done


def _not_brought(error: ContainerToolError, name: Reference) -> TorchsmithError:
    said = "\n".join((error.message, *error.said)).lower()
    if "no space left" in said:
        return RegistryError(
            f"there is no room for {name} in the engine's store", "Free some disk space."
        )
    return RegistryError(f"{error.message}; {name} was not pulled", "Try again later.")

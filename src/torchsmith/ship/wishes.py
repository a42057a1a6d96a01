"""What is to be shipped where: the command line's words over the recipe's."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import get_args

from msgspec import Struct

from torchsmith.engine.store import Store
from torchsmith.engine.work import plain_name
from torchsmith.errors import UsageError
from torchsmith.plan.publish import Accounts, Service
from torchsmith.recipe.load import LoadedRecipe
from torchsmith.recipe.outcome import Publish
from torchsmith.ship.publish import built_files, sort_files


class Wish(Struct, frozen=True):
    """What is to be shipped where."""

    files: tuple[Path, ...]
    index: Path | None
    channel: Path | None
    to: tuple[Service, ...]
    accounts: Accounts


def services(names: Sequence[str]) -> tuple[Service, ...]:
    """The services of these names."""
    known: tuple[Service, ...] = get_args(Service)
    for name in names:
        if name not in known:
            raise UsageError(f"nothing is uploaded to {name}", f"Known are {', '.join(known)}.")
    return tuple(service for service in known if service in names)


def wished(
    loaded: LoadedRecipe | None,
    *,
    index: Path | None,
    channel: Path | None,
    to: Sequence[str],
    repository: str | None,
    user: str | None,
    bucket: str | None,
    force: bool,
    store: Path | None,
    work: Path | None,
) -> Wish:
    """Put together what the command line and the recipe say; what the recipe built is found."""
    said = loaded.recipe.publish if loaded is not None else Publish()
    files: list[Path] = []
    if loaded is not None:
        project = Path(loaded.path).parent
        index = index or (project / said.index if said.index else None)
        channel = channel or (project / said.channel if said.channel else None)
        place = work or Store(store).root / "work" / plain_name(loaded.recipe.name)
        built = sort_files(built_files(place))
        # What a build made on the way, and nobody asked to have published, stays where it is.
        if index is not None or "pypi" in to:
            files += (*built.wheels, *built.archives)
        if channel is not None or "anaconda" in to:
            files += built.packages
    return Wish(
        tuple(files),
        index,
        channel,
        services(to),
        Accounts(
            repository=repository or said.repository or Accounts().repository,
            anaconda_user=user or said.anaconda_user or "",
            anaconda_force=force or said.anaconda_force,
            token_env=said.token_env,
            bucket=bucket or said.bucket or "",
        ),
    )

"""Shipping files: published to the folders that are named, then uploaded to the services."""

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
from torchsmith.ship.anaconda import upload_packages
from torchsmith.ship.folder import Change, Say
from torchsmith.ship.publish import Places, built_files, publish, sort_files
from torchsmith.ship.pypi import upload_wheels
from torchsmith.ship.s3 import copy_folder


def deliver(
    files: Sequence[Path],
    *,
    index: Path | None = None,
    channel: Path | None = None,
    to: Sequence[Service] = (),
    accounts: Accounts | None = None,
    dry_run: bool = False,
    say: Say = lambda _: None,
) -> list[Change]:
    """Ship files; what is there already, with the same bytes, is left as it is."""
    kinds = sort_files(files)
    local = list(files)
    if to:
        # What only a service is meant to have needs no folder.
        local = [
            *((*kinds.wheels, *kinds.archives) if index is not None else ()),
            *(kinds.packages if channel is not None else ()),
        ]
    made: list[Change] = []
    if local or not to:
        made += publish(local, Places(index, channel), dry_run=dry_run, say=say)
    accounts = accounts or Accounts()
    for service in to:
        if service == "pypi":
            if not kinds.wheels:
                raise UsageError("there is no wheel to upload", "Name wheels, or build some.")
            made += upload_wheels(kinds.wheels, accounts.repository, say, dry_run=dry_run)
        elif service == "anaconda":
            if not kinds.packages:
                raise UsageError("there is no conda package to upload", "Name some.")
            if not accounts.anaconda_user:
                raise UsageError("no user of anaconda.org was named", "Add --user NAME.")
            made += upload_packages(
                kinds.packages,
                accounts.anaconda_user,
                accounts.token_env,
                say,
                force=accounts.anaconda_force,
                dry_run=dry_run,
            )
        else:
            made += _to_bucket(index, channel, accounts.bucket.rstrip("/"), say, dry_run=dry_run)
    return made


def _to_bucket(
    index: Path | None, channel: Path | None, bucket: str, say: Say, *, dry_run: bool
) -> list[Change]:
    if not bucket:
        raise UsageError("no bucket was named", "Add --bucket s3://BUCKET/FOLDER.")
    if index is None and channel is None:
        raise UsageError(
            "a bucket holds a copy of an index or a channel, and neither was named",
            "Add --index DIR or --channel DIR.",
        )
    made: list[Change] = []
    if index is not None:
        made += copy_folder(index, "index", bucket, say, dry_run=dry_run)
    if channel is not None:
        # As `torchsmith serve` has it.
        made += copy_folder(channel, "channel", f"{bucket}/channel", say, dry_run=dry_run)
    return made


class Order(Struct, frozen=True):
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


def order(
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
) -> Order:
    """Put together what the command line and the recipe say; what the recipe built is found."""
    publish = loaded.recipe.publish if loaded is not None else Publish()
    files: list[Path] = []
    if loaded is not None:
        project = Path(loaded.path).parent
        index = index or (project / publish.index if publish.index else None)
        channel = channel or (project / publish.channel if publish.channel else None)
        place = work or Store(store).root / "work" / plain_name(loaded.recipe.name)
        built = sort_files(built_files(place))
        # What a build made on the way, and nobody asked to have published, stays where it is.
        if index is not None or "pypi" in to:
            files += (*built.wheels, *built.archives)
        if channel is not None or "anaconda" in to:
            files += built.packages
    return Order(
        tuple(files),
        index,
        channel,
        services(to),
        Accounts(
            repository=repository or publish.repository or Accounts().repository,
            anaconda_user=user or publish.anaconda_user or "",
            anaconda_force=force or publish.anaconda_force,
            token_env=publish.token_env,
            bucket=bucket or publish.bucket or "",
        ),
    )

"""Shipping files: published to the folders that are named, then uploaded to the services."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from torchsmith.errors import UsageError
from torchsmith.plan.publish import Accounts, Service
from torchsmith.ship.anaconda import upload_packages
from torchsmith.ship.folder import Change, Say
from torchsmith.ship.publish import Places, publish, sort_files
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
    given = sort_files(files)
    local = list(files)
    if to:
        # What only a service is meant to have needs no folder.
        local = [
            *((*given.wheels, *given.archives) if index is not None else ()),
            *(given.packages if channel is not None else ()),
        ]
    made: list[Change] = []
    if local or not to:
        made += publish(local, Places(index, channel), dry_run=dry_run, say=say)
    accounts = accounts or Accounts()
    for service in to:
        if service == "pypi":
            if not given.wheels:
                raise UsageError("there is no wheel to upload", "Name wheels, or build some.")
            made += upload_wheels(given.wheels, accounts.repository, say, dry_run=dry_run)
        elif service == "anaconda":
            if not given.packages:
                raise UsageError("there is no conda package to upload", "Name some.")
            if not accounts.anaconda_user:
                raise UsageError("no user of anaconda.org was named", "Add --user NAME.")
            made += upload_packages(
                given.packages,
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

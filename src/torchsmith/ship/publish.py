"""Publishing files: each goes where its kind belongs, then to the services that are named.

As a program it does so for one step of a plan, in its work folder; $PROJECT is the recipe's
folder, where the index and the channel are.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Protocol, get_args

from msgspec import Struct

from torchsmith.engine.store import Store
from torchsmith.engine.work import plain_name
from torchsmith.errors import UsageError
from torchsmith.inputs import check_file
from torchsmith.plan.publish import Accounts, Service, Shipment
from torchsmith.recipe.load import LoadedRecipe
from torchsmith.recipe.outcome import Publish
from torchsmith.ship.channel import ENDINGS, publish_packages, remove_packages, yank_packages
from torchsmith.ship.folder import Change, FolderKind, Say, check_folder
from torchsmith.ship.index import (
    ProjectStatus,
    mark_project,
    publish_wheels,
    remove_wheels,
    yank_wheels,
)
from torchsmith.ship.libtorch import is_libtorch, publish_archives, remove_archive
from torchsmith.ship.uploads import copy_folder, upload_packages, upload_wheels
from torchsmith.tasks import run_task


class _Publisher(Protocol):
    def __call__(
        self, root: Path, files: Sequence[Path], /, *, dry_run: bool = ..., say: Say = ...
    ) -> list[Change]: ...


class Places(Struct, frozen=True):
    """Where things are published: an index, a channel, or both."""

    index: Path | None = None
    channel: Path | None = None

    def __post_init__(self) -> None:
        if self.index is None and self.channel is None:
            raise UsageError(
                "neither an index nor a channel was named",
                "Add --index DIR or --channel DIR; a recipe names them under [publish].",
            )

    def check(self) -> None:
        """Refuse folders that are not published ones."""
        if self.index is not None:
            check_folder(self.index, "index", exists=True)
        if self.channel is not None:
            check_folder(self.channel, "channel", exists=True)


class Sorted(Struct, frozen=True):
    """Files by kind."""

    wheels: tuple[Path, ...] = ()
    packages: tuple[Path, ...] = ()
    archives: tuple[Path, ...] = ()


def sort_files(files: Sequence[Path]) -> Sorted:
    """Tell wheels, conda packages and libtorch archives apart by their names."""
    wheels = tuple(path for path in files if path.suffix == ".whl")
    archives = tuple(path for path in files if is_libtorch(path.name))
    packages = tuple(path for path in files if path.name.endswith(ENDINGS) and path not in archives)
    for path in files:
        if path not in (*wheels, *archives, *packages):
            raise UsageError(
                f"{path.name} cannot be published",
                "Wheels (.whl), conda packages (.conda, .tar.bz2) and libtorch-* archives can be.",
            )
    return Sorted(wheels, packages, archives)


def publish(
    files: Sequence[Path],
    places: Places,
    *,
    dry_run: bool = False,
    say: Say = lambda _: None,
) -> list[Change]:
    """Publish files, all or none; the same file again changes nothing."""
    by_kind = sort_files(files)
    kinds: list[tuple[_Publisher, FolderKind, Path | None, tuple[Path, ...]]] = [
        (publish_wheels, "index", places.index, by_kind.wheels),
        (publish_archives, "index", places.index, by_kind.archives),
        (publish_packages, "channel", places.channel, by_kind.packages),
    ]
    wanted: list[tuple[_Publisher, Path, tuple[Path, ...]]] = []
    for publisher, kind, root, paths in kinds:
        if paths and root is None:
            names = ", ".join(path.name for path in paths)
            raise UsageError(f"no {kind} was named for {names}", f"Add --{kind} DIR.")
        if paths and root is not None:
            wanted.append((publisher, root, paths))
    for path in files:
        check_file(path, "Name files that were built.")
    if not dry_run:
        # A bad one of one kind is known before anything of another is published.
        for publisher, root, paths in wanted[1:]:
            publisher(root, paths, dry_run=True)
    made: list[Change] = []
    for publisher, root, paths in wanted:
        made += publisher(root, paths, dry_run=dry_run, say=say)
    return made


def built_files(work: Path) -> list[Path]:
    """What the last build in a work folder left to publish."""
    found = [
        path
        for pattern in ("dist/*/*.whl", "dist/*/libtorch-*", "channel/*/*/*")
        for path in sorted(work.glob(pattern))
        if path.suffix == ".whl" or is_libtorch(path.name) or path.name.endswith(ENDINGS)
    ]
    if not found:
        raise UsageError(
            f"nothing to publish was built in {work}", "`torchsmith build` first, or name files."
        )
    return found


def yank(
    what: str, places: Places, *, reason: str = "", undo: bool = False, project: str = ""
) -> list[Change]:
    """Take a release back, or give it again; whoever names it exactly can still have it.

    With `project` the whole project is marked so, and stays installable.
    """
    if project:
        if places.index is None or places.channel is not None:
            raise UsageError("only projects of a pip index have a status", "Use --index alone.")
        return mark_project(places.index, what, ProjectStatus(project, reason), undo=undo)
    if places.channel is not None and reason:
        raise UsageError("a conda channel has no place for a reason", "Leave --reason out.")
    made: list[Change] = []
    if places.index is not None:
        made += yank_wheels(places.index, what, reason=reason, undo=undo)
    if places.channel is not None:
        made += yank_packages(places.channel, what, undo=undo)
    return made


def remove(name: str, places: Places) -> list[Change]:
    """Take every file of a release, or the one that is named, away for good."""
    if "==" in name:
        return [
            *(remove_wheels(places.index, name) if places.index is not None else ()),
            *(remove_packages(places.channel, name) if places.channel is not None else ()),
        ]
    if Path(name).name != name:
        raise UsageError(f"{name} is a path, and a file's name is needed", "Leave the folder out.")
    if name.endswith(ENDINGS) and not is_libtorch(name):
        if places.channel is None:
            raise UsageError(f"no channel was named for {name}", "Add --channel DIR.")
        return remove_packages(places.channel, name)
    if places.index is None:
        raise UsageError(f"no index was named for {name}", "Add --index DIR.")
    if is_libtorch(name):
        return remove_archive(places.index, name)
    return remove_wheels(places.index, name)


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


def ship(shipment: Shipment, project: Path) -> list[Change]:
    """Ship what the patterns of a shipment find in the current folder."""
    found = [path for pattern in shipment.files for path in sorted(Path().glob(pattern))]
    return deliver(
        found,
        index=project / shipment.index if shipment.index else None,
        channel=project / shipment.channel if shipment.channel else None,
        to=shipment.to,
        accounts=shipment.accounts,
        say=lambda text: print(text, flush=True),
    )


def _ship(shipment: Shipment) -> None:
    for change in ship(shipment, Path(os.environ["PROJECT"])):
        print(f"{change.action} {change.path}")


if __name__ == "__main__":
    run_task(Shipment, _ship)

"""`torchsmith publish`, `yank` and `remove`."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from typer import Argument, Option

from torchsmith.cli import options, planning
from torchsmith.cli.output import print_json, tell

if TYPE_CHECKING:
    from torchsmith.ship.folder import Change


Index = Annotated[Path | None, Option("--index", help="Folder of a pip index.")]
Channel = Annotated[Path | None, Option("--channel", help="Folder of a conda channel.")]

_VERBS = {
    "added": "added",
    "replaced": "replaced",
    "same": "already there",
    "yanked": "yanked",
    "marked": "marked",
    "restored": "offered again",
    "removed": "removed",
}


def show(changes: Sequence[Change], *, json: bool, dry_run: bool = False) -> None:
    """Say what became of each file."""

    if json:
        made = [
            {"action": change.action, "path": change.path, "sha256": change.sha256}
            for change in changes
        ]
        print_json({"dry_run": dry_run, "changes": made})
        return
    for change in changes:
        verb = "would be added" if dry_run and change.action == "added" else _VERBS[change.action]
        print(f"{verb:<14} {change.path}")
    if all(change.action == "same" for change in changes):
        print("nothing changed")


def publish(
    files: Annotated[
        list[Path] | None,
        Argument(
            help="Wheels, conda packages, libtorch archives; or a recipe: what was built of it."
        ),
    ] = None,
    preset: options.Preset = None,
    index: Index = None,
    channel: Channel = None,
    to: Annotated[
        list[str] | None, Option(help="Also upload: pypi, anaconda, s3; repeatable.")
    ] = None,
    repository: Annotated[
        str | None, Option(help="Address that --to pypi uploads to; default: PyPI's.")
    ] = None,
    user: Annotated[str | None, Option(help="The account on anaconda.org.")] = None,
    bucket: Annotated[str | None, Option(help="s3://BUCKET/FOLDER, a copy of the folders.")] = None,
    force: Annotated[
        bool, Option("--force", help="Replace packages that anaconda.org has already.")
    ] = False,
    store: options.StoreFolder = None,
    work: Annotated[Path | None, Option(help="Where the recipe was built.")] = None,
    dry_run: options.DryRun = False,
    json: options.Json = False,
) -> None:
    """Add files to a pip index and a conda channel, which are plain folders.

    Any web server can serve them. The same file again changes nothing; other bytes under a name
    that is taken are refused.
    """
    from torchsmith.ship.publish import deliver, order

    for service, *names in (
        ("pypi", "repository"),
        ("anaconda", "user", "force"),
        ("s3", "bucket"),
    ):
        if service not in (to or ()):
            options.unused(f"without --to {service}", *names)
    named = files or []
    recipe = named[0] if len(named) == 1 and named[0].suffix == ".toml" else None
    only_copy = to == ["s3"] and not named and preset is None and bool(index or channel)
    loaded = None
    if named and recipe is None:
        options.unused("where files are named", "preset", "work")
    if recipe is not None or not (named or only_copy):
        loaded = planning.read_recipe(recipe, preset)
    ordered = order(
        loaded,
        index=index,
        channel=channel,
        to=to or (),
        repository=repository,
        user=user,
        bucket=bucket,
        force=force,
        store=store,
        work=work,
    )
    made = deliver(
        ordered.files if loaded is not None else named,
        index=ordered.index,
        channel=ordered.channel,
        to=ordered.to,
        accounts=ordered.accounts,
        dry_run=dry_run,
        say=tell,
    )
    show(made, json=json, dry_run=dry_run)


def yank(
    what: Annotated[str, Argument(help="NAME==VERSION, or the name of one file.")],
    index: Index = None,
    channel: Channel = None,
    reason: Annotated[str, Option(help="Shown to those who pinned it.")] = "",
    undo: Annotated[bool, Option("--undo", help="Offer it again.")] = False,
    project: Annotated[
        str, Option(help="Mark the project NAME instead: archived, or deprecated.")
    ] = "",
    json: options.Json = False,
) -> None:
    """Take a release back; whoever pinned it still gets it."""
    if undo:
        options.unused("with --undo", "reason")
    from torchsmith.ship.publish import Places
    from torchsmith.ship.publish import yank as take_back

    show(
        take_back(what, Places(index, channel), reason=reason, undo=undo, project=project),
        json=json,
    )


def remove(
    what: Annotated[str, Argument(help="NAME==VERSION, or the name of one file.")],
    index: Index = None,
    channel: Channel = None,
    json: options.Json = False,
) -> None:
    """Delete a published release or file; nobody gets it any more."""
    from torchsmith.ship.publish import Places
    from torchsmith.ship.publish import remove as take_away

    show(take_away(what, Places(index, channel)), json=json)

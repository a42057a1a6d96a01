"""The flags of the commands about published folders, and how these commands answer."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from torchsmith.ship.folder import Change

Index = Annotated[Path | None, typer.Option("--index", help="Folder of a pip index.")]
Channel = Annotated[Path | None, typer.Option("--channel", help="Folder of a conda channel.")]

Say = Callable[[str], None]

_SAID = {
    "added": "added",
    "replaced": "replaced",
    "same": "already there",
    "yanked": "yanked",
    "marked": "marked",
    "restored": "given again",
    "removed": "removed",
}


def show(changes: Sequence[Change], *, json: bool, dry_run: bool = False) -> None:
    """Say what became of each file."""
    from torchsmith.cli.output import print_json

    if json:
        made = [
            {"action": change.action, "path": change.path, "sha256": change.sha256}
            for change in changes
        ]
        print_json({"dry_run": dry_run, "changes": made})
        return
    for change in changes:
        said = "would be added" if dry_run and change.action == "added" else _SAID[change.action]
        print(f"{said:<14} {change.path}")
    if all(change.action == "same" for change in changes):
        print("nothing changed")

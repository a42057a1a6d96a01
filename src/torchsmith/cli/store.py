"""`torchsmith store`: what has been built, and how much room it takes."""

from __future__ import annotations

from typing import Annotated

import typer

from torchsmith.cli.build import StoreFolder
from torchsmith.cli.help import App
from torchsmith.cli.output import counted

app = App("Look at what was built, check it, and free its disk space.")
Json = Annotated[bool, typer.Option("--json", help="For scripts.")]


def _size(count: int) -> str:
    return f"{count / (1 << 20):,.1f} MiB"


@app.command("list")
def list_(store: StoreFolder = None, json: Json = False) -> None:
    """Every result in the store, newest last."""
    from torchsmith.cli.output import moment, print_json
    from torchsmith.engine.store import Store

    entries = sorted(Store(store).entries(), key=lambda entry: entry.created)
    if json:
        results = [
            {
                "key": entry.key,
                "step": entry.step,
                "title": entry.title,
                "created": entry.created,
                "bytes": entry.bytes,
                "files": entry.files,
                "outputs": list(entry.outputs),
                "folder": str(entry.folder),
            }
            for entry in entries
        ]
        print_json({"results": results})
        return
    for entry in entries:
        print(f"{entry.key[:12]}  {moment(entry.created)}  {_size(entry.bytes):>12}  {entry.title}")
    total = _size(sum(entry.bytes for entry in entries))
    print(f"{counted(len(entries), 'result')}, {total}")


@app.command()
def verify(store: StoreFolder = None) -> None:
    """Hash every stored file again and say what is damaged."""
    from torchsmith.engine.store import Store
    from torchsmith.errors import OutputError

    place = Store(store)
    damaged = 0
    for entry in list(place.entries()):
        for problem in place.verify(entry.key):
            damaged += 1
            print(f"x {entry.key[:12]} {entry.title}: {problem}")
    if damaged:
        raise OutputError(
            f"{counted(damaged, 'problem')} in the store",
            "Damaged results are built again when needed.",
        )
    print("every result is as it was stored")


@app.command()
def share(store: StoreFolder = None) -> None:
    """Have several hosts build into the store, which lies in a folder that all of them see."""
    from torchsmith.engine.sharing import share as shared
    from torchsmith.engine.store import Store

    print(f"several hosts may build into {shared(Store(store)).root}")


@app.command()
def gc(
    store: StoreFolder = None,
    days: Annotated[
        float, typer.Option("--days", min=0, help="Keep what was used within so many days.")
    ] = 30.0,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Say what would go.")] = False,
) -> None:
    """Drop results that were not used for a while, and what crashes left behind."""
    from datetime import timedelta

    from torchsmith.engine.store import Store

    gone = Store(store).gc(older_than=timedelta(days=days), dry_run=dry_run)
    for entry in gone.entries:
        print(f"{entry.key[:12]}  {_size(entry.bytes):>12}  {entry.title}")
    verb = "would go" if dry_run else "went"
    what = f"{counted(len(gone.entries), 'result')} and {counted(gone.leftovers, 'leftover')}"
    print(f"{what} {verb}: {_size(gone.bytes)}")

"""`torchsmith store`: what has been built, and how much room it takes."""

from __future__ import annotations

from typing import Annotated

from typer import Option

from torchsmith.cli import options
from torchsmith.cli.app import App
from torchsmith.cli.output import answer, counted, moment, print_json
from torchsmith.errors import OutputError
from torchsmith.printable import printable

app = App("Look at what was built, check it, and free its disk space.")


def _size(count: int) -> str:
    return f"{count / (1 << 20):,.1f} MiB"


@app.command("list")
def list_(store: options.StoreFolder = None, json: options.Json = False) -> None:
    """List every result in the store, newest last."""
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
        title = printable(entry.title)
        print(f"{entry.key[:12]}  {moment(entry.created)}  {_size(entry.bytes):>12}  {title}")
    total = _size(sum(entry.bytes for entry in entries))
    print(f"{counted(len(entries), 'result')}, {total}")


@app.command()
def verify(store: options.StoreFolder = None, json: options.Json = False) -> None:
    """Hash every stored file again and name those that are damaged."""
    from torchsmith.engine.store import Store

    place = Store(store)
    damaged = [
        {"key": entry.key, "title": entry.title, "problem": problem}
        for entry in list(place.entries())
        for problem in place.verify(entry.key)
    ]
    if json:
        print_json({"damaged": damaged})
    for item in () if json else damaged:
        print(f"x {item['key'][:12]} {printable(item['title'])}: {printable(item['problem'])}")
    if damaged:
        raise OutputError(
            f"{counted(len(damaged), 'problem')} in the store",
            "Damaged results are built again when needed.",
        )
    if not json:
        print("every result is as it was stored")


@app.command()
def share(store: options.StoreFolder = None, json: options.Json = False) -> None:
    """Let several hosts build into the store, which lies in a folder that all of them see."""
    from torchsmith.engine.journal import share as shared
    from torchsmith.engine.store import Store

    root = str(shared(Store(store)).root)
    answer({"store": root}, f"several hosts may build into {root}", json=json)


@app.command()
def gc(
    store: options.StoreFolder = None,
    days: Annotated[
        float, Option(min=0, max=100_000, help="Keep what was used within so many days.")
    ] = 30.0,
    dry_run: options.DryRun = False,
    json: options.Json = False,
) -> None:
    """Remove results that were not used for a while, and what crashes left behind."""
    from datetime import timedelta

    from torchsmith.engine.store import Store

    gone = Store(store).gc(older_than=timedelta(days=days), dry_run=dry_run)
    if json:
        results = [{"key": one.key, "title": one.title, "bytes": one.bytes} for one in gone.entries]
        more = {"leftovers": gone.leftovers, "bytes": gone.bytes}
        print_json({"dry_run": dry_run, "results": results, **more})
        return
    for entry in gone.entries:
        print(f"{entry.key[:12]}  {_size(entry.bytes):>12}  {printable(entry.title)}")
    verb = "would be removed" if dry_run else "removed"
    what = f"{counted(len(gone.entries), 'result')} and {counted(gone.leftovers, 'leftover')}"
    print(f"{what} {verb}: {_size(gone.bytes)}")

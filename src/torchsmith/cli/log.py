"""`torchsmith log`."""

from __future__ import annotations

from typing import Annotated

import typer

from torchsmith.cli.build import StoreFolder


def log(
    run: Annotated[str | None, typer.Argument(help="A run; all of them if left out.")] = None,
    step: Annotated[str | None, typer.Argument(help="A step of it: its whole log.")] = None,
    store: StoreFolder = None,
    json: Annotated[bool, typer.Option("--json", help="For scripts.")] = False,
) -> None:
    """Show past builds, the steps of one, or the log of a step."""
    from dataclasses import asdict

    from torchsmith.cli.output import duration, print_json
    from torchsmith.engine.journals import journal_of
    from torchsmith.engine.store import Store
    from torchsmith.errors import UsageError
    from torchsmith.printable import printable

    journal = journal_of(Store(store))
    if run is None:
        runs = journal.runs()
        if json:
            print_json([asdict(item) for item in runs])
            return
        for one in runs:
            what = printable(f"{one.plan}  {one.error}")
            print(f"{one.id}  {_when(one.started)}  {one.status:<11}  {what}")
        if not runs:
            print("nothing was built yet")
        return
    found = journal.run(run)
    if found is None:
        raise UsageError(f"there is no run {run!r}", "`torchsmith log` lists them.")
    steps = journal.steps(run)
    if step is None:
        if json:
            print_json({"run": asdict(found), "steps": [asdict(item) for item in steps]})
            return
        for item in steps:
            taken = duration(item.ended - item.started) if item.started and item.ended else ""
            print(f"{item.status:<11} {taken:>8}  {item.step}  {printable(item.error)}")
        return
    chosen = next((item for item in steps if item.step == step), None)
    if chosen is None:
        names = ", ".join(item.step for item in steps)
        raise UsageError(f"run {run} has no step {step!r}", f"It has {names}.")
    if not chosen.log:
        raise UsageError(f"{step} was not run then: it was {chosen.status}")
    _print_file(chosen.log)


def _when(seconds: float) -> str:
    from datetime import UTC, datetime

    return datetime.fromtimestamp(seconds, UTC).strftime("%Y-%m-%d %H:%M")


def _print_file(path: str) -> None:
    import shutil
    import sys
    from pathlib import Path

    from torchsmith.errors import UsageError

    try:
        with Path(path).open(encoding="utf-8", errors="replace") as file:
            shutil.copyfileobj(file, sys.stdout)
    except OSError as error:
        raise UsageError(f"{path} cannot be read: {error.strerror}") from None

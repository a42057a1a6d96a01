"""`torchsmith log`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

from typer import Argument, Option

from torchsmith.cli import options
from torchsmith.cli.output import duration, moment, print_json
from torchsmith.errors import UsageError

if TYPE_CHECKING:
    from torchsmith.engine.journal import StepRecord


def log(
    run: Annotated[
        str | None, Argument(help="A run: its id, the beginning of it, or last; all if left out.")
    ] = None,
    step: Annotated[str | None, Argument(help="A step of it: its whole log.")] = None,
    follow: Annotated[
        bool, Option("--follow", "-f", help="Go on until it is over; default: the last run.")
    ] = False,
    store: options.StoreFolder = None,
    json: options.Json = False,
) -> None:
    """Show past builds, the steps of one, or the log of a step."""
    from dataclasses import asdict

    from torchsmith.engine.journals import find_run, past_journal
    from torchsmith.engine.store import Store
    from torchsmith.engine.tail import follow_run
    from torchsmith.printable import printable

    if follow and json:
        raise UsageError("--follow and --json do not go together", "Leave one of them out.")
    journal = past_journal(Store(store))
    if run is None and not follow:
        runs = journal.runs() if journal is not None else []
        if json:
            print_json({"runs": [asdict(item) for item in runs]})
            return
        for one in runs:
            what = printable(f"{one.plan}  {one.error}")
            print(f"{one.id}  {moment(one.started)}  {one.status:<11}  {what}")
        if not runs:
            print("nothing was built yet")
        return
    found = find_run(journal, run or "last")
    assert journal is not None
    if follow:
        for line in follow_run(journal, found.id, step):
            print(line, flush=True)
        return
    steps = journal.steps(found.id)
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
        raise UsageError(f"run {found.id} has no step {step!r}", f"It has {names}.")
    if not chosen.log:
        raise UsageError(f"{step} was not run then: it was {chosen.status}")
    _print_log(chosen, json=json)


def _print_log(step: StepRecord, *, json: bool) -> None:
    import shutil
    import sys
    from dataclasses import asdict
    from pathlib import Path

    try:
        with Path(step.log).open(encoding="utf-8", errors="replace") as file:
            if json:
                print_json({"step": asdict(step), "text": file.read()})
            else:
                shutil.copyfileobj(file, sys.stdout)
    except OSError as error:
        raise UsageError(f"{step.log} cannot be read: {error.strerror}") from None

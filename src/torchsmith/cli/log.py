"""`torchsmith log` and `timeline`: past builds, and where their time went."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from typer import Argument, Option

from torchsmith.cli import options
from torchsmith.cli.output import counted, duration, moment, print_json
from torchsmith.errors import UsageError
from torchsmith.printable import printable

if TYPE_CHECKING:
    from torchsmith.engine.journal import StepRecord


def log(
    run: Annotated[
        str | None, Argument(help="A run: its id, the beginning of it, or last; all if left out.")
    ] = None,
    step: Annotated[str | None, Argument(help="A step of it: its whole log.")] = None,
    follow: Annotated[
        bool, Option("--follow", "-f", help="Print until the run ends; default: the last run.")
    ] = False,
    store: options.StoreFolder = None,
    json: options.Json = False,
) -> None:
    """Show past builds, the steps of one, or the log of a step."""
    from dataclasses import asdict

    from torchsmith.engine.journal import find_run, past_journal
    from torchsmith.engine.store import Store
    from torchsmith.engine.tail import follow_run, kept_log

    if follow and json:
        raise UsageError("--follow and --json do not go together", "Leave one of them out.")
    place = Store(store)
    journal = past_journal(place)
    if run is None and not follow:
        runs = journal.runs() if journal is not None else []
        if json:
            print_json({"runs": [asdict(item) for item in runs]})
            return
        for one in runs:
            line = f"{one.id}  {moment(one.started)}  {one.status:<11}  {one.plan}  {one.error}"
            print(printable(line))
        if not runs:
            print("nothing was built yet")
        return
    found = find_run(journal, run or "last")
    assert journal is not None
    if follow:
        for line in follow_run(journal, place.root, found.id, step):
            print(line, flush=True)
        return
    steps = journal.steps(found.id)
    if step is None:
        if json:
            print_json({"run": asdict(found), "steps": [asdict(item) for item in steps]})
            return
        for item in steps:
            taken = duration(item.ended - item.started) if item.started and item.ended else ""
            print(printable(f"{item.status:<11} {taken:>8}  {item.step}  {item.error}"))
        return
    chosen = next((item for item in steps if item.step == step), None)
    if chosen is None:
        names = ", ".join(item.step for item in steps)
        raise UsageError(f"run {found.id} has no step {step!r}", f"It has {names}.")
    if not chosen.log:
        raise UsageError(
            f"{step} was not run then: it was {chosen.status}",
            "`torchsmith log` lists the runs; the one that ran it has its log.",
        )
    path = kept_log(place.root, chosen.log)
    if path is None:
        raise UsageError(
            f"{printable(chosen.log)} is not a log of this store",
            "Whoever wrote the journal named another file: look at it by hand if you know it.",
        )
    _print_log(chosen, path, json=json)


def _print_log(step: StepRecord, path: Path, *, json: bool) -> None:
    import os
    import shutil
    import sys
    from dataclasses import asdict

    from torchsmith.owners import open_plain

    try:
        with os.fdopen(open_plain(path), encoding="utf-8", errors="replace") as file:
            if json:
                print_json({"step": asdict(step), "text": file.read()})
            else:
                shutil.copyfileobj(file, sys.stdout)
    except OSError as error:
        raise UsageError(f"{step.log} cannot be read: {error.strerror}") from None


def timeline(
    run: Annotated[
        str | None,
        Argument(
            help="A run: its id, the beginning of it, or last; default: the last that compiled."
        ),
    ] = None,
    output: Annotated[
        Path | None,
        Option(
            "--output",
            "-o",
            help="Draw it: .html a page, .svg a picture, .json a trace for ui.perfetto.dev.",
        ),
    ] = None,
    slowest: Annotated[int, Option(min=0, help="Lines in each list.")] = 10,
    store: options.StoreFolder = None,
    json: options.Json = False,
) -> None:
    """Show where the time of a build went: cores, slowest files, headers."""
    from dataclasses import asdict

    from torchsmith.bench.timeline import clock, draw, job_name, lay_out, short
    from torchsmith.engine.compile_log import read_compiles, read_jobs
    from torchsmith.engine.journal import find_run, past_journal
    from torchsmith.engine.store import Store
    from torchsmith.files import write_result

    if json:
        options.unused("with --json", "slowest")
    if output is not None and output.suffix not in (".html", ".svg", ".json"):
        raise UsageError(
            f"{output}: a timeline is written as .html, .svg or .json",
            "Name the file so: -o timeline.html.",
        )
    place = Store(store)
    journal = past_journal(place)
    wanted = find_run(journal, run or "last")
    assert journal is not None
    names = [wanted.id] if run is not None else [item.id for item in journal.runs()]
    logs = place.root / "logs"
    for name in names:
        found = lay_out(read_compiles(logs, name), read_jobs(logs, name))
        if found is not None:
            break
    else:
        steps = [item for item in journal.steps(names[0]) if item.ended]
        if not any(item.started for item in steps) or output is not None:
            raise UsageError(
                f"no compile was recorded in run {names[0]}",
                "Compiles of torch and of extensions are; `torchsmith log` lists the runs.",
            )
        _show_steps(names[0], steps, json=json)
        return
    if output is not None:
        write_result(output, draw(found, output.suffix, f"torchsmith build {name}").encode())
    if json:
        print_json({"run": name, **asdict(found)})
        return
    print(f"{name}: {counted(len(found.bars), 'compile')} in {clock(found.seconds)}")
    print(
        f"{found.cpu_seconds:,.0f} CPU s; {counted(found.cores, 'core')} busy {found.busy:.0%} of "
        f"the time; partly idle for the last {clock(found.tail)}"
    )
    for bar in found.slowest(slowest):
        job = printable(job_name(bar))
        print(f"{bar.cpu_seconds:8.1f} s {bar.peak / (1 << 20):7.0f} MiB  {job}")
    for chain in found.chains:
        jobs = counted(len(chain.links), "job")
        print(f"critical path {clock(chain.seconds)}: {jobs}, each waits for the one before")
        shown = chain.longest(slowest)
        for link in shown:
            print(f"{link.seconds:8.1f} s {link.kind:>11}  {printable(job_name(link))}")
        if shown and (rest := len(chain.links) - len(shown)):
            left = chain.seconds - sum(link.seconds for link in shown)
            print(f"{left:8.1f} s {'':>11}  {rest:,} shorter")
    if found.headers is not None:
        text = f"{found.headers.text / 1e6:,.1f} MB of text"
        print(f"headers: {counted(found.headers.compiles, 'compile')} read {text}")
        for cost in found.headers.heaviest[:slowest]:
            print(
                f"{cost.text / 1e6:7.1f} MB {cost.share:11.1%}  {printable(short(cost.path))}: "
                f"{counted(cost.compiles, 'compile')}, {cost.cpu_seconds:,.0f} CPU s"
            )
    if output is not None:
        print(f"written: {output}")


def _show_steps(run: str, steps: Sequence[StepRecord], *, json: bool) -> None:
    """Print what the steps took, for a run whose compiles were not recorded."""

    took = {item.step: (item.ended or 0.0) - item.started for item in steps if item.started}
    if json:
        shown = [{"step": step, "seconds": seconds} for step, seconds in took.items()]
        print_json({"run": run, "bars": [], "steps": shown})
        return
    print(f"{printable(run)}: no compile of CMake or ninja was recorded; its steps took:")
    for step, seconds in sorted(took.items(), key=lambda item: -item[1]):
        print(f"{duration(seconds):>8}  {printable(step)}")

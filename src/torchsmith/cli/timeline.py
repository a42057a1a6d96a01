"""`torchsmith timeline`."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from typer import Argument, Option

from torchsmith.cli import options
from torchsmith.cli.output import counted, duration, print_json
from torchsmith.errors import UsageError

if TYPE_CHECKING:
    from torchsmith.engine.journal import StepRecord


def timeline(
    run: Annotated[
        str | None,
        Argument(
            help="A run: its id, the beginning of it, or last; default: the last that compiled."
        ),
    ] = None,
    output: Annotated[
        Path | None, Option("--output", "-o", help="Draw it: .html a page, .svg a picture.")
    ] = None,
    slowest: Annotated[int, Option(min=0, help="So many lines for each list.")] = 10,
    store: options.StoreFolder = None,
    json: options.Json = False,
) -> None:
    """Show where the time of a build went: cores, slowest files, headers."""
    from dataclasses import asdict

    from torchsmith.bench.timeline import lay_out
    from torchsmith.bench.timeline_page import clock, job_name, page, picture, short
    from torchsmith.engine.compile_log import read_compiles
    from torchsmith.engine.job_log import read_jobs
    from torchsmith.engine.journals import find_run, past_journal
    from torchsmith.engine.store import Store
    from torchsmith.files import write_result

    if output is not None and output.suffix not in (".html", ".svg"):
        raise UsageError(
            f"{output}: a timeline is drawn as .html or .svg", "Name the file so: -o timeline.html."
        )
    place = Store(store)
    journal = past_journal(place)
    if run is not None:
        names = [find_run(journal, run).id]
    else:
        names = [item.id for item in journal.runs()] if journal is not None else []
    logs = place.root / "logs"
    for name in names:
        found = lay_out(read_compiles(logs, name), read_jobs(logs, name))
        if found is not None:
            break
    else:
        steps = [item for item in journal.steps(names[0]) if item.ended] if journal else []
        if not any(item.started for item in steps) or output is not None:
            raise UsageError(
                f"no compile was recorded in run {names[0]}" if names else "nothing was built yet",
                "Compiles of torch and of extensions are; `torchsmith log` lists the runs.",
            )
        _show_steps(names[0], steps, json=json)
        return
    if output is not None:
        drawn = (
            picture(found) if output.suffix == ".svg" else page(found, f"torchsmith build {name}")
        )
        write_result(output, drawn.encode())
    if json:
        print_json({"run": name, **asdict(found)})
        return
    print(f"{name}: {counted(len(found.bars), 'compile')} in {clock(found.seconds)}")
    print(
        f"{found.cpu_seconds:,.0f} CPU s; {counted(found.cores, 'core')} busy {found.busy:.0%} of "
        f"the time; partly idle for the last {clock(found.tail)}"
    )
    for bar in found.slowest(slowest):
        print(f"{bar.cpu_seconds:8.1f} s {bar.peak / (1 << 20):7.0f} MiB  {job_name(bar)}")
    for chain in found.chains:
        jobs = f"jobs that each wait for the one before, {len(chain.links):,} in all"
        print(f"critical path {clock(chain.seconds)}: {jobs}")
        shown = chain.longest(slowest)
        for link in shown:
            print(f"{link.seconds:8.1f} s {link.kind:>11}  {job_name(link)}")
        if shown and (rest := len(chain.links) - len(shown)):
            left = chain.seconds - sum(link.seconds for link in shown)
            print(f"{left:8.1f} s {'':>11}  {rest:,} shorter")
    if found.headers is not None:
        text = f"{found.headers.text / 1e6:,.1f} MB of text"
        print(f"headers: {found.headers.compiles:,} compiles read {text}")
        for cost in found.headers.heaviest[:slowest]:
            print(
                f"{cost.text / 1e6:7.1f} MB {cost.share:11.1%}  {short(cost.path)}: "
                f"{cost.compiles:,} compiles, {cost.cpu_seconds:,.0f} CPU s"
            )
    if output is not None:
        print(f"drawn: {output}")


def _show_steps(run: str, steps: Sequence[StepRecord], *, json: bool) -> None:
    """Say what the steps of a run took whose compiles were not recorded."""

    took = {item.step: (item.ended or 0.0) - item.started for item in steps if item.started}
    if json:
        shown = [{"step": step, "seconds": seconds} for step, seconds in took.items()]
        print_json({"run": run, "bars": [], "steps": shown})
        return
    print(f"{run}: no compile of CMake or ninja was recorded; its steps took:")
    for step, seconds in sorted(took.items(), key=lambda item: -item[1]):
        print(f"{duration(seconds):>8}  {step}")

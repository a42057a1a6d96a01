"""`torchsmith timeline`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from torchsmith.cli.build import StoreFolder


def timeline(
    run: Annotated[
        str | None, typer.Argument(help="A run; the last that compiled if left out.")
    ] = None,
    output: Annotated[
        Path | None, typer.Option("--output", "-o", help="Draw it: a page, or .svg a picture.")
    ] = None,
    slowest: Annotated[
        int, typer.Option("--slowest", min=0, help="So many lines for each list.")
    ] = 10,
    store: StoreFolder = None,
    json: Annotated[bool, typer.Option("--json", help="For scripts.")] = False,
) -> None:
    """Show where the time of a build went: cores, slowest files, headers."""
    from dataclasses import asdict

    from torchsmith.bench.timeline import lay_out
    from torchsmith.bench.timeline_page import clock, job_name, page, picture, short
    from torchsmith.cli.output import print_json
    from torchsmith.engine.compile_log import read_compiles
    from torchsmith.engine.disk import room, write_whole
    from torchsmith.engine.job_log import read_jobs
    from torchsmith.engine.journals import journal_of
    from torchsmith.engine.store import Store
    from torchsmith.errors import UsageError

    place = Store(store)
    names = [item.id for item in journal_of(place).runs()]
    if run is not None and run not in names:
        raise UsageError(f"there is no run {run!r}", "`torchsmith log` lists them.")
    logs = place.root / "logs"
    for name in [run] if run is not None else names:
        found = lay_out(read_compiles(logs, name), read_jobs(logs, name))
        if found is not None:
            break
    else:
        raise UsageError(
            f"run {run} compiled nothing" if run else "nothing was compiled yet",
            "`torchsmith log` lists the runs.",
        )
    if output is not None:
        drawn = (
            picture(found) if output.suffix == ".svg" else page(found, f"torchsmith build {name}")
        )
        with room(output.parent):
            write_whole(output, drawn.encode())
    if json:
        print_json({"run": name, **asdict(found)})
        return
    print(f"{name}: {len(found.bars):,} compiles in {clock(found.seconds)}")
    print(
        f"{found.cpu_seconds:,.0f} CPU s; {found.cores} cores busy {found.busy:.0%} of the time; "
        f"not all of them in the last {clock(found.tail)}"
    )
    for bar in found.slowest(slowest):
        print(f"{bar.cpu_seconds:8.1f} s {bar.peak / (1 << 20):7.0f} MiB  {short(bar.file)}")
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

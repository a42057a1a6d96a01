"""`torchsmith bench` and `parity`: two installations of torch, by speed and by results."""

from __future__ import annotations

from collections.abc import Sequence
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from typer import Argument, Option

from torchsmith.cli import options
from torchsmith.cli.output import print_json
from torchsmith.errors import ParityError, UsageError

if TYPE_CHECKING:
    from torchsmith.bench.result import Result


class Suite(StrEnum):
    """How much is measured."""

    quick = "quick"
    full = "full"


class Device(StrEnum):
    """Where."""

    cpu = "cpu"
    cuda = "cuda"


class Devices(StrEnum):
    """Where, each in turn."""

    cpu = "cpu"
    cuda = "cuda"
    both = "both"


def bench(
    sides: Annotated[
        list[str] | None,
        Argument(
            help="Environments, wheels, image:NAME, or pip (the published torch of your release); "
            "NAME=WHAT,set:KEY=VALUE,env:KEY=VALUE.",
            metavar="YOURS OTHER...",
        ),
    ] = None,
    suite: Annotated[Suite, Option(help="How much to measure.")] = Suite.quick,
    device: Annotated[Devices, Option(help="Where to measure.")] = Devices.cpu,
    group: Annotated[list[str] | None, Option(help="Only this group of cases; repeatable.")] = None,
    skip: Annotated[list[str] | None, Option(help="Leave this group out; repeatable.")] = None,
    threads: Annotated[int, Option(min=0, help="Threads, each on a core of its own; 0: all.")] = 0,
    repeat: Annotated[int, Option(min=0, help="Rounds; 0: as many as the suite has.")] = 0,
    setting: Annotated[
        list[str] | None, Option(help="For every side: env:KEY=VALUE or set:KEY=VALUE.")
    ] = None,
    control: Annotated[
        bool, Option("--control/--no-control", help="Measure the first against itself too.")
    ] = True,
    seconds: Annotated[
        float, Option("--time", min=0, help="Stop after so many seconds; 0: when done.")
    ] = 0.0,
    seed: Annotated[int, Option(help="Decides the order of everything.")] = 1,
    python: Annotated[str, Option(help="The Python to install wheels into: 3.11, or a path.")] = "",
    read: Annotated[
        Path | None, Option(help="Show a result kept by --output; measure nothing.")
    ] = None,
    output: Annotated[
        Path | None, Option("--output", "-o", help="Also keep the result, as JSON.")
    ] = None,
    html: Annotated[Path | None, Option(help="Also draw it: a page, or .svg its groups.")] = None,
    everything: Annotated[bool, Option("--all", help="Show every case.")] = False,
    json: Annotated[bool, Option("--json", help="The whole result, for scripts.")] = False,
    cases: Annotated[bool, Option("--cases", help="Only list the cases; measure nothing.")] = False,
) -> None:
    """Compare the speed of torch installations: which, where, how much.

    The first is yours; it is compared with each of the others.
    """
    from json import loads

    from torchsmith.bench.result import as_json, read_result
    from torchsmith.files import write_result

    if html is not None and html.suffix not in (".html", ".svg"):
        raise UsageError(
            f"{html}: a result is drawn as .html or .svg", "Name the file so: --html bench.html."
        )
    results = ("sides", "threads", "repeat", "setting", "control", "seconds", "seed", "python")
    if cases:
        options.unused("with --cases", *results, "read", "output", "html", "everything")
        _list(suite.value, device.value, group or (), skip or (), json=json)
        return
    if read is not None:
        options.unused("with --read", *results, "suite", "device", "group", "skip")
        result = read_result(read)
    else:
        from torchsmith.bench.launch import parse_sides
        from torchsmith.bench.measure import Request, compare
        from torchsmith.cli.show_bench import progress

        request = Request(
            sides=parse_sides(sides or (), setting or ()),
            suite=suite.value,
            device=device.value,
            groups=tuple(group or ()),
            skip=tuple(skip or ()),
            threads=threads,
            rounds=repeat,
            seed=seed,
            control=control,
            seconds=seconds,
            python=python,
        )
        with progress() as shown:
            result = compare(request, shown.step, shown.say)
    if output is not None:
        write_result(output, as_json(result))
    if html is not None:
        write_result(html, _drawn(result, html).encode())
    if json:
        print_json(loads(as_json(result)))
    else:
        from torchsmith.cli.show_bench import show

        show(result, everything=everything)
        for path in (output, html):
            if path is not None:
                print(f"written: {path}")
    if read is None and result.stopped == "interrupted":
        raise typer.Exit(130)


def _drawn(result: Result, path: Path) -> str:
    from torchsmith.bench.page import group_picture, page

    if path.suffix == ".svg":
        return group_picture(result, result.sides[1].name)
    return page(result)


def _list(
    suite: str, device: str, groups: Sequence[str], skip: Sequence[str], *, json: bool
) -> None:
    from torchsmith.bench.measure import choose

    devices = ("cpu", "cuda") if device == "both" else (device,)
    chosen = choose(suite, devices, groups, skip)
    if json:
        cases = [{"device": item.device, "group": item.group, "name": item.name} for item in chosen]
        print_json({"cases": cases})
        return
    for case in chosen:
        print(f"{case.device:<5} {case.group:<12} {case.name}")


def parity(
    sides: Annotated[
        list[str] | None, Argument(help="Two installations, as for `bench`.", metavar="YOURS OTHER")
    ] = None,
    operator: Annotated[list[str] | None, Option(help="Only this operator; repeatable.")] = None,
    dtype: Annotated[list[str] | None, Option(help="Only this type; repeatable.")] = None,
    device: Annotated[Device, Option(help="Where to compute.")] = Device.cpu,
    threads: Annotated[int, Option(min=1, help="Threads of each side.")] = 1,
    setting: Annotated[
        list[str] | None, Option(help="For both sides: env:KEY=VALUE or set:KEY=VALUE.")
    ] = None,
    seed: Annotated[int, Option(help="Decides the inputs.")] = 1,
    python: Annotated[str, Option(help="The Python to install wheels into: 3.11, or a path.")] = "",
    read: Annotated[
        Path | None, Option(help="Show a result kept by --output; run nothing.")
    ] = None,
    output: Annotated[
        Path | None, Option("--output", "-o", help="Also keep the result, as JSON.")
    ] = None,
    everything: Annotated[bool, Option("--all", help="List every operator.")] = False,
    operators: Annotated[
        bool, Option("--operators", help="Only list the operators; run nothing.")
    ] = False,
    json: Annotated[bool, Option("--json", help="The whole result, for scripts.")] = False,
) -> None:
    """List the operators in which two torch installations disagree.

    Ends with 9 if one differs by more than rounding explains.
    """
    from json import loads

    from torchsmith.bench.parity import choose, hold, read_parity
    from torchsmith.bench.result import as_json
    from torchsmith.files import write_result

    runs = ("sides", "device", "threads", "setting", "seed", "python")
    if operators:
        options.unused("with --operators", *runs, "read", "output", "everything")
        chosen = choose(operator or (), dtype or ())
        if json:
            print_json({"operators": [{"name": name, "dtype": kind} for name, kind in chosen]})
            return
        for name, kind in chosen:
            print(f"{kind:<9} {name}")
        return
    if read is not None:
        options.unused("with --read", *runs, "operator", "dtype")
        found = read_parity(read)
    else:
        from torchsmith.bench.launch import parse_sides
        from torchsmith.cli.show_bench import progress

        with progress() as shown:
            found = hold(
                parse_sides(sides or (), setting or ()),
                choose(operator or (), dtype or ()),
                shown.step,
                shown.say,
                device=device.value,
                threads=threads,
                seed=seed,
                python=python,
            )
    if output is not None:
        write_result(output, as_json(found))
    if json:
        print_json(loads(as_json(found)))
    else:
        from torchsmith.cli.show_bench import show_parity

        show_parity(found, everything=everything)
    if beyond := found.counts().get("beyond", 0):
        raise ParityError(
            f"{beyond} of {len(found.compared)} differ by more than rounding explains",
            "The lines marked x say where.",
        )

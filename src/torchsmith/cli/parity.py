"""`torchsmith parity`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from typer import Argument, Option

from torchsmith.cli.bench import Device
from torchsmith.cli.output import print_json
from torchsmith.errors import ParityError


def parity(
    sides: Annotated[
        list[str] | None, Argument(help="Two installations, as for `bench`.", metavar="YOURS OTHER")
    ] = None,
    operator: Annotated[list[str] | None, Option(help="Only this operator; repeat it.")] = None,
    dtype: Annotated[list[str] | None, Option(help="Only this type; repeat it.")] = None,
    device: Annotated[Device, Option(help="cpu or cuda.")] = Device.cpu,
    threads: Annotated[int, Option(min=1, help="Threads of each side.")] = 1,
    setting: Annotated[
        list[str] | None, Option(help="For both sides: env:KEY=VALUE or set:KEY=VALUE.")
    ] = None,
    seed: Annotated[int, Option(help="Decides the inputs.")] = 1,
    python: Annotated[str, Option(help="Install wheels into this one: 3.11, or a path.")] = "",
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

    from torchsmith.bench.parity import as_json, choose, read_parity
    from torchsmith.files import write_result

    if operators:
        chosen = choose(operator or (), dtype or ())
        if json:
            print_json({"operators": [{"name": name, "dtype": kind} for name, kind in chosen]})
            return
        for name, kind in chosen:
            print(f"{kind:<9} {name}")
        return
    if read is not None:
        found = read_parity(read)
    else:
        from torchsmith.bench.compare import hold
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

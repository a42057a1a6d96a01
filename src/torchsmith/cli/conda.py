"""`torchsmith conda`."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated, Literal

from typer import Argument, Option

from torchsmith.cli import options
from torchsmith.cli.output import print_json
from torchsmith.errors import UsageError


def conda(
    wheel: Annotated[list[Path] | None, Argument(help="Wheels to pack.")] = None,
    output: Annotated[
        Path, Option("--output", "-o", help="The channel's folder; packages go to SUBDIR/.")
    ] = Path(),
    archive: Annotated[
        Literal["conda", "tar.bz2", "both"],
        Option("--format", help="How they are written; old clients read tar.bz2 only."),
    ] = "conda",
    build_string: Annotated[str, Option(help="Default: cpu_py311_0, py3.11_cuda12.6_0.")] = "",
    number: Annotated[int, Option(help="Build number.", min=0)] = 0,
    python: Annotated[str, Option(help="For wheels that do not say it: 3.11.")] = "",
    prefix: Annotated[str, Option(help="The environment's path its files were built for.")] = "",
    dry_run: Annotated[
        bool, Option("--dry-run", help="Say what would be packed; write nothing.")
    ] = False,
    json: options.Json = False,
    explain: Annotated[
        Path | None, Option(help="A solver's error, in a file or '-': what it lacks.")
    ] = None,
    channel: Annotated[
        list[Path] | None, Option(help="With --explain: a channel's folder that was asked.")
    ] = None,
) -> None:
    """Pack wheels as conda packages; or say why a solver found none."""
    from dataclasses import asdict

    if channel and explain is None:
        raise UsageError(
            "--channel needs --explain", "To write into a channel, name its folder: --output."
        )
    if explain is not None and wheel:
        raise UsageError("--explain packs no wheel", "Leave the wheels out.")
    if explain is not None:
        _explain(explain, channel or [], json=json)
        return
    if not wheel:
        raise UsageError("there is nothing to pack", "Name a wheel: torchsmith conda WHEEL.")

    from torchsmith.package.conda.pack import pack
    from torchsmith.plan.conda import CondaSpec, archive_formats

    made = [
        pack(
            CondaSpec(
                output=str(output),
                formats=archive_formats(archive),
                wheel=str(path),
                build=build_string,
                number=number,
                python=python,
                prefix=prefix,
            ),
            write=not dry_run,
        )
        for path in wheel
    ]
    if json:
        packages = [
            {
                **asdict(item.described),
                "files": [str(file) for file in item.files],
                "written": not dry_run,
            }
            for item in made
        ]
        print_json({"packages": packages})
        return
    for item in made:
        for file in item.files:
            size = "" if dry_run else f": {file.stat().st_size / 1e6:,.1f} MB"
            print(f"{file}{size}")
        for kind, texts in (
            ("depends", item.described.depends),
            ("constrains", item.described.constrains),
        ):
            for text in texts:
                print(f"  {kind} {text}")


def _explain(source: Path, channels: list[Path], *, json: bool) -> None:
    from dataclasses import asdict

    from torchsmith.inputs import check_file
    from torchsmith.package.conda.explain import explain, read_channels

    if str(source) != "-":
        check_file(source, "Name a file, or - for standard input.")
    text = sys.stdin.read() if str(source) == "-" else source.read_text(errors="replace")
    found = explain(text, read_channels(channels))
    if json:
        print_json({"missing": [asdict(item) for item in found]})
        return
    for item in found:
        wanted = f", which {item.wanted_by} needs" if item.wanted_by else ""
        print(f"{item.spec}{wanted}: {item.meaning}\n  {item.cure}")
    if not found:
        print("it names no missing package")

"""`torchsmith libtorch`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from typer import Argument, Option

from torchsmith.cli import options
from torchsmith.cli.output import print_json


def libtorch(
    wheel: Annotated[Path, Argument(help="A torch wheel.")],
    output: Annotated[
        Path, Option("--output", "-o", help="The folder to write the archive into.")
    ] = Path(),
    json: options.Json = False,
    dry_run: Annotated[
        bool, Option("--dry-run", help="Say what it would hold; write nothing.")
    ] = False,
) -> None:
    """Make a libtorch archive, for C++ programs, of a torch wheel.

    It holds no Python, and may be unpacked anywhere. The same wheel gives the same bytes.
    """
    from msgspec import to_builtins

    from torchsmith.package.libtorch import pack_libtorch, read_contents, readme

    if dry_run:
        made = read_contents(wheel)
        target = output / made.archive
    else:
        made, target = pack_libtorch(wheel, output)
    if json:
        contents = to_builtins(made)
        print_json({"archive": str(target), "written": not dry_run, "contents": contents})
        return
    print(readme(made))
    print(f"would be {target}" if dry_run else target)

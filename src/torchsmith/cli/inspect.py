"""`torchsmith inspect`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from typer import Argument, Option

from torchsmith.cli.output import print_json


def inspect(
    file: Annotated[Path, Argument(help="A wheel, conda package or libtorch archive.")],
    json: Annotated[bool, Option("--json", help="All of it, for scripts.")] = False,
) -> None:
    """Say what an artifact is, needs, was made of, and who signed it."""
    import msgspec

    from torchsmith.cli.show_inspect import lines
    from torchsmith.package.inspection import inspect as look

    found = look(file)
    if json:
        print_json({"artifact": msgspec.to_builtins(found)})
    else:
        print("\n".join(lines(found)))

"""The packing of one step of a plan.

    python -m torchsmith.package.conda < SPEC

It runs in the plan's work folder.
"""

from __future__ import annotations

import sys
from pathlib import Path

import msgspec

from torchsmith.errors import TorchsmithError
from torchsmith.package.conda.info import Description
from torchsmith.package.conda.pack import pack
from torchsmith.plan.conda import CondaSpec


def drop_others(described: Description, file: Path) -> None:
    """Remove what an earlier run packed under the same name and build, of another version."""
    for other in file.parent.glob(f"{described.name}-*-{described.build}.*"):
        same = other.name.rsplit("-", 2)[0] == described.name
        if same and not other.name.startswith(f"{described.stem}."):
            other.unlink()


def main() -> int:
    """Pack what is described on standard input; the exit code says what came of it."""
    try:
        made = pack(msgspec.json.decode(sys.stdin.buffer.read(), type=CondaSpec))
    except TorchsmithError as error:
        print(f"error: {error.message}\n  {error.hint}", file=sys.stderr)
        return error.exit_code
    for file in made.files:
        drop_others(made.described, file)
        print(f"{file}: {file.stat().st_size / 1e6:,.1f} MB")
    return 0


if __name__ == "__main__":
    sys.exit(main())

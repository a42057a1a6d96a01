"""The packing of one step of a plan.

    python -m torchsmith.package.conda < SPEC

It runs in the plan's work folder.
"""

from __future__ import annotations

from pathlib import Path

from torchsmith.package.conda.describe import Description
from torchsmith.package.conda.pack import pack
from torchsmith.plan.conda import CondaSpec
from torchsmith.tasks import run_task


def drop_others(described: Description, file: Path) -> None:
    """Remove what an earlier run packed under the same name and build, of another version."""
    for other in file.parent.glob(f"{described.name}-*-{described.build}.*"):
        same = other.name.rsplit("-", 2)[0] == described.name
        if same and not other.name.startswith(f"{described.stem}."):
            other.unlink()


def _pack(spec: CondaSpec) -> None:
    made = pack(spec)
    for file in made.files:
        drop_others(made.described, file)
        print(f"{file}: {file.stat().st_size / 1e6:,.1f} MB")


if __name__ == "__main__":
    run_task(CondaSpec, _pack)

"""The bill of materials that travels inside a wheel (PEP 770).

It says what the wheel was made of and with: sources, patches, third parties, compiler and build
tools. What the wheel says of itself elsewhere (its files in RECORD, its requirements in METADATA)
it leaves out, and what differs between two machines that build the same: so the same inputs still
make the same bytes, and finishing the wheel makes none of it wrong.
"""

from __future__ import annotations

from pathlib import Path

from msgspec.structs import replace
from packaging.utils import parse_wheel_filename

from torchsmith.package.contents import Contents
from torchsmith.package.materials import Materials
from torchsmith.package.origins import installed, planned_tree
from torchsmith.package.sbom import bill
from torchsmith.plan.attest import Attest


def inner_bill(plan: Attest, wheel: Path, date: int) -> bytes:
    """Write the bill of a wheel that was just compiled in this folder."""
    name, version, *_ = parse_wheel_filename(wheel.name)
    (subject,) = plan.subjects
    # Named by the project: the folder of a build has the name somebody gave the variant.
    trees = tuple(
        replace(planned_tree(item, read=True), origin=replace(item, tree=item.project))
        if item.tree in subject.trees
        else planned_tree(item, read=False)
        for item in plan.origins
    )
    # A torch that is not built here is no tool, but nothing says better what it was made with.
    torch = (("torch", plan.torch),) if plan.torch else ()
    contents = Contents(
        # A name without tag and label, which may be changed yet.
        path=Path(name),
        kind="wheel",
        name=name,
        version=version.public,
        size=0,
        sha256="",
        files=0,
        unpacked=0,
        libraries=(),
    )
    return bill(
        Materials(
            plan=plan,
            subject=subject,
            contents=contents,
            trees=trees,
            changes=plan.changes,
            beside=(),
            tools=tuple(sorted({*installed(subject.environments), *torch})),
            owners=(),
            system="",
            date=date,
        )
    )

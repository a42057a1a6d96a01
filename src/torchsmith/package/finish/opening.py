"""Opening a wheel that is to be changed: one that is not sound is refused whole."""

from __future__ import annotations

import unicodedata
from collections import Counter
from pathlib import Path, PurePosixPath

from torchsmith.errors import UsageError
from torchsmith.inputs import check_file
from torchsmith.verify.binary import Library
from torchsmith.verify.checks import few
from torchsmith.verify.wheelfile import Wheel, read_wheel

_CURE = "Nothing was written. Build it or download it again."


def open_wheel(path: Path) -> Wheel:
    """Read a wheel; refuse one that is cut short, says two things, or would write elsewhere."""
    check_file(path, "Name a wheel.")
    wheel = read_wheel(path)
    for check in wheel.checks:
        if check.status == "fail":
            wanted = f", wanted: {check.wanted}" if check.wanted else ""
            raise UsageError(
                f"{path.name} is not a sound wheel: {check.name}: {check.found}{wanted}", _CURE
            )
    if odd := _two_in_one_place(wheel.files):
        raise UsageError(
            f"{path.name} is not a sound wheel: some disks see these names as one: {few(odd)}",
            _CURE,
        )
    if broken := [f"{item.path} ({item.broken})" for item in wheel.libraries if item.broken]:
        raise UsageError(f"{path.name} has broken libraries: {few(broken, 2)}", _CURE)
    machines = sorted({item.machine for item in loadable(wheel)})
    if len(machines) > 1:
        raise UsageError(
            f"{path.name} has libraries for {' and '.join(machines)}",
            "A wheel is for one machine: find where the others came from.",
        )
    return wheel


def loadable(wheel: Wheel) -> list[Library]:
    """Libraries and programs the loader will read; object files and GPU code are left alone."""
    return [item for item in wheel.libraries if item.dynamic]


def _two_in_one_place(names: tuple[str, ...]) -> list[str]:
    """Names that differ in case or in how letters are written, or lie below a file."""
    plain = {name: unicodedata.normalize("NFC", name).casefold() for name in names}
    counts = Counter(plain.values())
    folders = {str(parent) for name in plain.values() for parent in PurePosixPath(name).parents}
    return [
        name
        for name, text in plain.items()
        if counts[text] > 1 or text in folders or text != str(PurePosixPath(text))
    ]

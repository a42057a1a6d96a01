"""Results where a person looks for them."""

from __future__ import annotations

import contextlib
import os
import shutil
import uuid
from collections.abc import Iterable
from pathlib import Path

from torchsmith.engine.disk import room
from torchsmith.plan.attest import attestations
from torchsmith.plan.torch import reports


def deliver(files: Iterable[Path], folder: Path) -> list[Path]:
    """Put files into a folder, each with the documents beside it; where they lie there.

    A link where that is safe, else a copy; an older file of the same name is replaced whole. What
    is no file (the folder of a library) stays where it was made.
    """
    there: list[Path] = []
    for file in files:
        if not file.is_file():
            there.append(file)
            continue
        beside = [Path(name) for name in (*reports(str(file)), *attestations(str(file)))]
        for item in (file, *(name for name in beside if name.is_file())):
            _put(item, folder / item.name)
        there.append(folder / file.name)
    return there


def _put(file: Path, target: Path) -> None:
    if target.exists() and target.samefile(file):
        return
    with room(target.parent, file.stat().st_size):
        target.parent.mkdir(parents=True, exist_ok=True)
        part = target.with_name(f".{target.name}.{uuid.uuid4().hex[:8]}")
        try:
            _link_or_copy(file, part)
            part.replace(target)
        finally:
            part.unlink(missing_ok=True)


def _link_or_copy(file: Path, part: Path) -> None:
    # Nothing is read-only for root, who would write through a link into the store.
    if os.geteuid() != 0:
        with contextlib.suppress(OSError):
            part.hardlink_to(file)
            return
    shutil.copyfile(file, part)
    shutil.copymode(file, part)

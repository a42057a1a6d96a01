"""The folder an engine builds from: it sees nothing else, so what is copied is put there."""

from __future__ import annotations

import os
import shutil
from collections.abc import Sequence
from pathlib import Path

from torchsmith.engine.disk import room
from torchsmith.errors import UsageError


def put_wheels(wheels: Sequence[Path], context: Path) -> None:
    """Have these wheels in the context, and no others."""
    folder = context / "wheels"
    with room(context):
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir(parents=True)
        for wheel in wheels:
            _link(wheel, folder / wheel.name)


def put_project_files(paths: Sequence[str], project: Path, context: Path) -> None:
    """Have copies of what the Dockerfile takes of the recipe's folder."""
    for path in paths:
        source, target = project / path, context / path.lstrip("/")
        if not source.exists():
            raise UsageError(
                f"there is no {source}", "The recipe names it: it is looked for beside the recipe."
            )
        with room(context):
            if target.is_dir() and not target.is_symlink():
                shutil.rmtree(target)
            target.unlink(missing_ok=True)
            target.parent.mkdir(parents=True, exist_ok=True)
            if source.is_dir():
                shutil.copytree(source, target, symlinks=True)
            else:
                shutil.copy2(source, target)


def _link(source: Path, target: Path) -> None:
    # The same file costs no room; engines keep times in what they hash, and so must we.
    try:
        os.link(source, target)
    except OSError:
        shutil.copy2(source, target)

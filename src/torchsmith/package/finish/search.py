"""Where libraries of a wheel look for others: only from where they lie themselves."""

from __future__ import annotations

import posixpath
import re
from collections.abc import Collection, Sequence

from torchsmith.verify.binary import Library
from torchsmith.verify.linkage import in_system_folder

# Where pip puts libraries that belong to no package, MKL's say: PREFIX/lib, seen from
# PREFIX/lib/python3.11/site-packages.
_PREFIX_LIB = "../.."


def installed_at(path: str) -> str | None:
    """Where a file of a wheel will lie below site-packages; None where that cannot be told."""
    first, _, rest = path.partition("/")
    if not first.endswith(".data"):
        return path
    scheme, _, rest = rest.partition("/")
    return rest if scheme in ("platlib", "purelib") else None


def from_origin(file: str, folder: str) -> str:
    """A folder of site-packages, seen from a file there."""
    way = posixpath.relpath(folder, posixpath.dirname(file) or ".")
    return "$ORIGIN" if way == "." else f"$ORIGIN/{way}"


def search_path(
    library: Library,
    place: str,
    folders: Collection[str],
    wanted: Sequence[str],
    *,
    system: bool,
) -> tuple[str, ...]:
    """What a library's search path should be.

    `folders` are those of the wheel, `wanted` those of site-packages it must look in. Entries
    that lead to a folder of the wheel, or to another package beside it, stay. So does, where the
    `system` libraries are to be used, a place every such machine has: /usr/local/cuda/lib64.
    """
    kept: list[str] = []
    reached: set[str] = set()
    for entry in library.search:
        if system and in_system_folder(entry):
            kept.append(entry)
            continue
        folder = _leads_to(entry, place)
        if folder is not None and _right(folder, place, folders):
            kept.append(from_origin(place, folder))
            reached.add(folder)
    kept += [from_origin(place, folder) for folder in wanted if folder not in reached]
    return tuple(dict.fromkeys(kept))


def _leads_to(entry: str, place: str) -> str | None:
    """The folder of site-packages an entry stands for; None if it does not start at the file."""
    match = re.fullmatch(r"\$(?:ORIGIN|\{ORIGIN\})(?:/(.*))?", entry)
    if match is None or "$" in (match[1] or ""):
        return None
    return posixpath.normpath(posixpath.join(posixpath.dirname(place), match[1] or ""))


def _right(folder: str, place: str, folders: Collection[str]) -> bool:
    if folder in folders or folder == _PREFIX_LIB:
        return True
    if folder.startswith("..") or folder == ".":
        return False
    # Of its own package it could only be a folder that is not there.
    return folder.partition("/")[0] != place.partition("/")[0]

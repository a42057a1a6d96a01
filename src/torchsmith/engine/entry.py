"""One result in the store: what its manifest says, and reading it back with suspicion.

An entry is a folder with three things: `outputs/`, the files as they lay in the work folder;
`files.json`, each of them with hash, size, mode and time; `manifest.json`, everything else and
the hash of `files.json`. The manifest is small and carries its own hash, so that asking
whether a result is there costs one short read, however big the result is.
"""

from __future__ import annotations

import glob
import hashlib
import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path, PurePosixPath

import msgspec

from torchsmith.engine.trees import Item, copy_file
from torchsmith.foreign import decode
from torchsmith.owners import read_plain, who_else_writes
from torchsmith.plan.models import Step

FORMAT = 1
MANIFEST = "manifest.json"
FILES = "files.json"
OUTPUTS = "outputs"
# A tree of 2,000,000 files, the most a source may have, is described in less.
_MOST_BYTES = 1 << 30


class DamagedEntryError(Exception):
    """Stored bytes are not what was stored. Handled inside this room, never shown as such."""


class ForeignEntryError(DamagedEntryError):
    """Another version of torchsmith wrote it: of no use to us, and not ours to drop."""


class UntrustedEntryError(ForeignEntryError):
    """Another user of the machine may have written it."""


class MissingOutputError(Exception):
    """A step ended well and did not make what it should."""


@dataclass(frozen=True, slots=True)
class Entry:
    """What the store holds for a key.

    `outputs` are the paths that were made. `bound` is the work folder whose absolute path stands in
    the files (a virtual environment, a CMake cache): such a result is of no use elsewhere.
    """

    key: str
    step: str
    kind: str
    title: str
    variant: str
    bound: str
    outputs: tuple[str, ...]
    files: int
    bytes: int
    created: float
    torchsmith: str
    folder: Path

    def placed(self, variant: str) -> tuple[str, ...]:
        """Where the outputs belong for a variant: two that do the same share one entry."""
        return tuple(self.for_variant(path, variant) for path in self.outputs)

    def for_variant(self, output: str, variant: str) -> str:
        """The path of an output for a variant."""
        if self.variant and variant and self.variant != variant:
            return output.replace(f"/{self.variant}", f"/{variant}")
        return output


def place(work: Path, variant: str) -> str:
    """The mark of a place that a result can be bound to."""
    return hashlib.sha256(f"{work}\0{variant}".encode(errors="surrogateescape")).hexdigest()[:16]


def _canonical(value: object) -> bytes:
    return json.dumps(value, sort_keys=True, separators=(",", ":")).encode()


def write_files(items: Sequence[Item]) -> bytes:
    """The bytes of `files.json`."""
    return _canonical([asdict(item) for item in items])


def write_manifest(entry: Entry, files: bytes) -> bytes:
    """The bytes of `manifest.json`."""
    table = {name: value for name, value in asdict(entry).items() if name != "folder"}
    table |= {"format": FORMAT, "files_sha256": hashlib.sha256(files).hexdigest()}
    whole = {"sha256": hashlib.sha256(_canonical(table)).hexdigest(), "entry": table}
    return (json.dumps(whole, indent=1, sort_keys=True) + "\n").encode()


def _table(folder: Path) -> dict[str, object]:
    try:
        whole = json.loads(read_plain(folder / MANIFEST, _MOST_BYTES))
        table = whole["entry"]
        if whole["sha256"] != hashlib.sha256(_canonical(table)).hexdigest():
            raise DamagedEntryError("its manifest was changed")
    except OSError as error:
        raise DamagedEntryError("its manifest cannot be read") from error
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        raise DamagedEntryError("its manifest is cut off") from error
    if not isinstance(table, dict):
        raise DamagedEntryError("its manifest is no manifest")
    return table


def read_entry(folder: Path) -> Entry:
    """Read a manifest, or say how it is damaged."""
    table = _table(folder)
    if table.pop("format", None) != FORMAT:
        raise ForeignEntryError("another version of torchsmith wrote it")
    table.pop("files_sha256", None)
    try:
        entry = msgspec.convert({**table, "folder": folder}, Entry)
    except msgspec.ValidationError as error:
        raise DamagedEntryError(f"its manifest: {error}") from error
    if not all(map(inside, entry.outputs)):
        raise DamagedEntryError("its outputs lead out of the work folder")
    return entry


def check_trust(root: Path, folder: Path, *, shared: bool) -> None:
    """Refuse an entry that a user outside those who build into the store may have written."""
    within = folder.relative_to(root)
    parts = [root, *(root / parent for parent in within.parents if parent != Path()), folder]
    for path in (*parts, folder / MANIFEST, folder / FILES, folder / OUTPUTS):
        try:
            why = who_else_writes(path, members=shared)
        except OSError as error:
            raise DamagedEntryError(f"{path.name} cannot be looked at") from error
        if why:
            raise UntrustedEntryError(why)


def read_items(folder: Path) -> list[Item]:
    """Read the list of files, or say how it is damaged."""
    try:
        content = read_plain(folder / FILES, _MOST_BYTES)
    except OSError as error:
        raise DamagedEntryError("its list of files cannot be read") from error
    if hashlib.sha256(content).hexdigest() != _table(folder).get("files_sha256"):
        raise DamagedEntryError("its list of files was changed")
    try:
        items = decode(content, list[Item])
    except (msgspec.MsgspecError, UnicodeError) as error:
        raise DamagedEntryError(f"its list of files: {error}") from error
    _check_items(items)
    # Results need no setuid: only a stranger's entry would have one.
    return [replace(item, mode=item.mode & 0o777) for item in items]


def _check_items(items: Sequence[Item]) -> None:
    """Nothing outside of the work folder, nothing twice, nothing behind a link."""
    kinds: dict[str, str] = {}
    for item in items:
        # Plain strings: a Path for each of 100,000 files is slow.
        if "\0" in item.path or not {"", ".", ".."}.isdisjoint(item.path.split("/")):
            raise DamagedEntryError(f"it has a file that leads out of it, {item.path!r}")
        if item.path in kinds or item.kind not in ("file", "folder", "link"):
            raise DamagedEntryError(f"it has {item.path!r} twice, or as nothing that can be kept")
        kinds[item.path] = item.kind
    folders = {""}
    for path in kinds:
        parent = path.rpartition("/")[0]
        while parent not in folders:
            # The folder of an output need not be part of it; what is there must be a folder.
            if kinds.get(parent, "folder") != "folder":
                raise DamagedEntryError(f"it has {path!r} behind a link or a file")
            folders.add(parent)
            parent = parent.rpartition("/")[0]


def problems_of(folder: Path) -> list[str]:
    """Hash everything in an entry again and say what is wrong with it."""
    try:
        read_entry(folder)
        items = read_items(folder)
    except DamagedEntryError as problem:
        return [str(problem)]
    problems: list[str] = []
    for item in items:
        path = folder / OUTPUTS / item.path
        try:
            if item.kind == "folder":
                good = path.is_dir()
            elif item.kind == "link":
                good = str(path.readlink()) == item.target
            else:
                good = copy_file(str(path), None, plain=True).sha256 == item.sha256
        except OSError:
            problems.append(f"{item.path} cannot be read")
            continue
        if not good:
            problems.append(f"{item.path} has other bytes than were stored")
    return problems


def inside(path: str) -> bool:
    """Whether a path stays in the work folder, and is not all of it."""
    pure = PurePosixPath(path)
    if "\0" in path:
        return False
    return not pure.is_absolute() and ".." not in pure.parts and bool(pure.parts)


def find_outputs(step: Step, work: Path, *, must: bool) -> tuple[str, ...]:
    """The paths a step's outputs stand for; with `must`, each has to be there."""
    found: list[str] = []
    for pattern in step.outputs:
        path = work / pattern
        if path.exists() or path.is_symlink():
            matches = [str(PurePosixPath(pattern))]
        else:
            matches = sorted(glob.glob(pattern, root_dir=work, recursive=True))  # noqa: PTH207 - relative
        if must and not matches:
            raise MissingOutputError(pattern)
        found += matches
    unique = dict.fromkeys(found)
    return tuple(
        path
        for path in unique
        if not any(str(parent) in unique for parent in PurePosixPath(path).parents)
    )

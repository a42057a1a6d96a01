"""Where the results of steps live, each under the key of the step that made it.

    entries/ab/abcdef…/      complete results, and nothing else
    incoming/UUID/           results being written; a lock beside each says its writer lives

A result is written to `incoming`, brought to the disk, and renamed: after a crash it is there
whole or not at all. It is a folder with three things: `outputs/`, the files as they lay in the work
folder; `files.json`, each of them with hash, size, mode and time; `manifest.json`, everything else
and the hash of `files.json`. The manifest is small and carries its own hash, so that asking whether
a result is there costs one short read, however big the result is.

No later step may change stored bytes. A result given back is therefore a copy: one that shares
blocks where the filesystem can do that, else a full one. Only an output that is a single file
(a wheel, an archive) is linked, since such files are replaced and not written into; it is made
read-only. For root nothing is read-only, so root always gets copies. Every byte is hashed on
its way back, and a result that is not what was stored is dropped, not used.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import glob
import hashlib
import json
import logging
import os
import time
import uuid
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from datetime import timedelta
from pathlib import Path, PurePosixPath

import msgspec

from torchsmith import __version__
from torchsmith.engine.disk import check_room, room, sync_file, sync_filesystem, write_whole
from torchsmith.engine.locks import Lease, Lock, Pulse
from torchsmith.engine.trees import Item, copy_file, remove, transfer, walk
from torchsmith.errors import StoreError, WorkFolderError
from torchsmith.foreign import decode
from torchsmith.owners import make_folder, read_plain, who_else_writes
from torchsmith.plan.models import Step

FORMAT = 1
MANIFEST = "manifest.json"
FILES = "files.json"
OUTPUTS = "outputs"
# The list of 2,000,000 files, the most a source may have, is shorter.
_MOST_BYTES = 1 << 30


class DamagedEntryError(Exception):
    """Stored bytes have changed. The runner handles this; a person never sees it."""


class ForeignEntryError(DamagedEntryError):
    """Another version of torchsmith wrote it: of no use to us, and not ours to drop."""


class UntrustedEntryError(ForeignEntryError):
    """Another user of the machine may have written it."""


class MissingOutputError(Exception):
    """A step ended well and did not make an output."""


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
        """The paths of the outputs for a variant: variants that do the same share one entry."""
        return tuple(self.for_variant(path, variant) for path in self.outputs)

    def for_variant(self, output: str, variant: str) -> str:
        """The path of an output in the folders of a variant."""
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
    """Read a manifest; what is wrong with it is an error."""
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
    """Read the list of files; what is wrong with it is an error."""
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
    # No result needs setuid: only a stranger's entry would have it.
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
            # The folder of an output need not be in the list; if it is, it must be a folder.
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
    """The paths that match a step's outputs; with `must`, each has to exist."""
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


# Up to here each file is brought to the disk by itself; beyond, the whole filesystem is.
_FEW_FILES = 64
_WRITABLE = 0o222
# The mark of a store that several hosts build into.
SHARED = "shared"
_DAY_S = 86_400
# How reading a stored file fails if something else lies in its place.
_UNREADABLE = frozenset(
    {errno.ENOENT, errno.EIO, errno.ENOTDIR, errno.EISDIR, errno.ELOOP, errno.EINVAL, errno.ENXIO}
)


@dataclass(frozen=True, slots=True)
class Collected:
    """What a collection dropped, or would drop."""

    entries: tuple[Entry, ...]
    leftovers: int
    bytes: int


def default_root() -> Path:
    """Where the store is unless told otherwise."""
    if root := os.environ.get("TORCHSMITH_STORE"):
        return Path(root).expanduser().absolute()
    data = os.environ.get("XDG_DATA_HOME") or "~/.local/share"
    return Path(data).expanduser().absolute() / "torchsmith" / "store"


def is_shared(root: Path) -> bool:
    """Whether several hosts build into the store at a place: see `journal.py`."""
    return (root / SHARED).exists()


class Store:
    """Results by key."""

    def __init__(
        self, root: Path | None = None, on_warning: Callable[[str], None] | None = None
    ) -> None:
        self.root = (root or default_root()).absolute()
        self._warn = on_warning or logging.getLogger("torchsmith").warning
        # Entries that are damaged or not ours, as long as we run.
        self._damaged: set[Path] = set()
        self._links = os.geteuid() != 0
        if self.root.is_file():
            raise StoreError(self.root, "it is a file, not a folder")
        self.pulse = Pulse(self.root / "alive") if self.shared else None

    @property
    def is_new(self) -> bool:
        """Whether nothing was built into it yet."""
        return not self.root.is_dir()

    @property
    def shared(self) -> bool:
        """Whether several hosts build into it."""
        return is_shared(self.root)

    def lock(self, path: Path) -> Lock:
        """A lock that holds for everyone who sees this store."""
        return Lock(path) if self.pulse is None else Lease(path, self.pulse)

    def key_lock(self, key: str, where: str = "") -> Lock:
        """The lock for running a step, by its key; with `where`, for one place it is bound to."""
        return self.lock(self.root / "locks" / f"{key}{where and '-'}{where}.lock")

    def is_bound(self, key: str) -> bool:
        """Whether what is kept for a key works only in the places it was made for."""
        found = self._named(key)
        return bool(found) and all(folder.name != key for folder in found)

    def ensure_ours(self, work: Path | None = None) -> None:
        """Refuse to build where users outside those who build into the store could change it.

        That goes for what lies in it, too: a cache, a date or a build tree of another user would
        end in what is signed here. `work` is the folder that is built in, if it is elsewhere.
        """
        if self.is_new:
            looked_at = []
        else:
            looked_at = [self.root, *sorted(self.root.iterdir())]
            looked_at += sorted((self.root / "work").glob("*"))
        for path in (*looked_at, *([work] if work else [])):
            try:
                why = who_else_writes(path.resolve(), members=self.shared)
            except FileNotFoundError:
                # Not made yet; or the journal's own files, which come and go.
                continue
            if why and path is work:
                raise WorkFolderError(work, why)
            if why:
                raise StoreError(self.root, why)

    def reporting(self, on_warning: Callable[[str], None]) -> Store:
        """The same store, its warnings sent elsewhere."""
        other = Store(self.root, on_warning)
        other._damaged = self._damaged
        other.pulse = self.pulse
        return other

    def _folder(self, name: str) -> Path:
        return self.root / "entries" / name[:2] / name

    def _named(self, key: str) -> list[Path]:
        folder = self._folder(key).parent
        return sorted(path for path in folder.glob(f"{key}*") if path.is_dir())

    def get(self, key: str, work: Path | None = None, variant: str = "") -> Entry | None:
        """The result for a key that can be used in a work folder, None if there is none."""
        names = [key] if work is None else [key, f"{key}-{place(work, variant)}"]
        for folder in map(self._folder, names):
            if folder in self._damaged or not folder.is_dir():
                continue
            try:
                check_trust(self.root, folder, shared=self.shared)
                entry = read_entry(folder)
                if entry.key != key:
                    raise DamagedEntryError("it is filed under another key")
            except UntrustedEntryError as problem:
                self._distrust(folder, problem)
                continue
            except ForeignEntryError:
                continue
            except DamagedEntryError as problem:
                self._drop(folder, problem)
                continue
            with contextlib.suppress(OSError):
                # The time of last use, for collecting.
                os.utime(folder)
            return entry
        return None

    def put(self, key: str, step: Step, work: Path, *, external: bool = False) -> Entry:
        """Keep what a step made; if that is `external`, keep only that it was made."""
        roots = () if external else find_outputs(step, work, must=True)
        items = [item for root in roots for item in walk(work, root)]
        total = sum(item.size for item in items)
        singles = frozenset(roots) if self._links else frozenset()
        needed = sum(item.size for item in items if item.path not in singles)
        with room(self.root, needed):
            make_folder(self.root)
            check_room(self.root, needed)
            with self._incoming() as folder:
                items, bound = self._take(items, work, folder / OUTPUTS, singles)
                entry = Entry(
                    key=key,
                    step=step.id,
                    kind=step.kind,
                    title=step.title,
                    variant=step.variant,
                    bound=str(work) if bound else "",
                    outputs=roots,
                    files=sum(item.kind == "file" for item in items),
                    bytes=total,
                    created=time.time(),
                    torchsmith=__version__,
                    folder=self._folder(f"{key}-{place(work, step.variant)}" if bound else key),
                )
                self._publish(entry, items, folder)
        return entry

    def _take(
        self, items: list[Item], work: Path, target: Path, singles: frozenset[str]
    ) -> tuple[list[Item], bool]:
        needle = os.fsencode(work)
        bound = [str(work) in item.target for item in items]

        def move(item: Item) -> Item:
            source, kept = str(work / item.path), str(target / item.path)
            linked = item.path in singles and _link(source, kept)
            copied = copy_file(source, None if linked else kept, needle)
            os.chmod(kept, item.mode & ~_WRITABLE)  # noqa: PTH101
            os.utime(kept, ns=(item.mtime, item.mtime))
            bound.append(copied.found)
            return replace(item, sha256=copied.sha256, size=copied.size)

        target.mkdir(mode=0o755)
        moved = transfer(items, target, move)
        for item in moved:
            if item.kind == "folder":
                # The folder must be removable one day, whatever its mode in the work folder.
                (target / item.path).chmod(0o755)
        return moved, any(bound)

    def _publish(self, entry: Entry, items: list[Item], folder: Path) -> None:
        files = write_files(items)
        write_whole(folder / FILES, files)
        write_whole(folder / MANIFEST, write_manifest(entry, files))
        for name in (FILES, MANIFEST):
            (folder / name).chmod(0o644)
        if len(items) > _FEW_FILES:
            sync_filesystem(folder)
        else:
            for item in items:
                if item.kind != "link":
                    sync_file(folder / OUTPUTS / item.path)
            sync_file(folder / OUTPUTS)
            sync_file(folder)
        make_folder(entry.folder.parent)
        for _ in range(3):
            try:
                folder.rename(entry.folder)
            except OSError as error:
                if error.errno not in (errno.ENOTEMPTY, errno.EEXIST):
                    raise
                # Made twice at once, or damaged before: the new one is known to be whole.
                self._drop(entry.folder, None)
            else:
                sync_file(entry.folder.parent)
                self._damaged.discard(entry.folder)
                return
        raise DamagedEntryError(f"{entry.folder} cannot be replaced")

    @contextlib.contextmanager
    def _incoming(self) -> Iterator[Path]:
        folder = self.root / "incoming" / uuid.uuid4().hex
        with self.lock(folder.with_suffix(".lock")):
            try:
                folder.mkdir(mode=0o755)
                yield folder
            finally:
                remove(folder)

    def restore(self, entry: Entry, work: Path, variant: str = "") -> tuple[str, ...] | None:
        """Put a result into its place in a work folder; None if it is damaged."""
        roots = entry.placed(variant)
        try:
            with self._in_use(entry), room(work, entry.bytes):
                items = read_items(entry.folder)
                for root in roots:
                    remove(work / root)
                self._give(entry, items, work, variant)
        except BaseException as problem:
            # Half a result must not stay: a step or a person would take it for a whole one.
            for root in roots:
                remove(work / root)
            if not isinstance(problem, DamagedEntryError):
                raise
            self._drop(entry.folder, problem)
            return None
        return roots

    def _give(self, entry: Entry, items: list[Item], work: Path, variant: str) -> None:
        origin = entry.folder / OUTPUTS
        homes = {
            f"{entry.for_variant(root, variant)}{item.path[len(root) :]}": item
            for root in entry.outputs
            for item in items
            if item.path == root or item.path.startswith(f"{root}/")
        }
        single = frozenset(entry.placed(variant)) if self._links else frozenset()

        def move(item: Item) -> Item:
            stored = homes[item.path]
            source, target = str(origin / stored.path), str(work / item.path)
            linked = item.path in single and _link(source, target)
            try:
                copied = copy_file(source, None if linked else target, plain=True)
            except OSError as error:
                if error.errno in _UNREADABLE:
                    raise DamagedEntryError(f"{stored.path} cannot be read") from error
                raise
            if copied.sha256 != stored.sha256:
                raise DamagedEntryError(f"{stored.path} has other bytes than were stored")
            if not linked:
                os.chmod(target, stored.mode)  # noqa: PTH101
                os.utime(target, ns=(stored.mtime, stored.mtime))
            return item

        moved = [replace(item, path=path) for path, item in homes.items()]
        transfer(moved, work, move)

    @contextlib.contextmanager
    def _in_use(self, entry: Entry) -> Iterator[None]:
        """Keep an entry from being collected while it is read."""
        manifest = entry.folder / MANIFEST
        try:
            with manifest.open("rb") as file:
                fcntl.flock(file, fcntl.LOCK_SH)
                if not os.path.samestat(os.fstat(file.fileno()), manifest.stat()):
                    raise DamagedEntryError("it was replaced")
                yield
        except FileNotFoundError as error:
            if error.filename not in (str(manifest), manifest):
                raise
            raise DamagedEntryError("it is gone") from error

    def verify(self, key: str) -> list[str]:
        """Hash everything kept for a key again; say what is wrong, change nothing."""
        return [
            f"{folder.name}: {problem}"
            for folder in self._named(key)
            for problem in problems_of(folder)
        ]

    def entries(self) -> Iterator[Entry]:
        """Every result that can be read."""
        for folder in sorted((self.root / "entries").glob("*/*")):
            with contextlib.suppress(DamagedEntryError):
                yield read_entry(folder)

    def remove(self, key: str) -> bool:
        """Drop what is kept for a key; whether there was anything."""
        found = self._named(key)
        for folder in found:
            self._drop(folder, None)
        return bool(found)

    def _drop(self, folder: Path, problem: DamagedEntryError | None) -> None:
        """Remove an entry: first it loses its name, at once."""
        if problem is not None:
            self._warn(f"the stored result {folder.name[:12]} is not used: {problem}")
            self._damaged.add(folder)
        with contextlib.suppress(OSError), self._incoming() as aside:
            folder.rename(aside / "dropped")

    def _distrust(self, folder: Path, problem: UntrustedEntryError) -> None:
        """Leave an entry where it is, and warn once."""
        self._damaged.add(folder)
        self._warn(
            f"the stored result {folder.name[:12]} is not used: {problem}. If nobody else "
            "uses this store: chown it to yourself and chmod -R go-w"
        )

    def gc(
        self,
        older_than: timedelta = timedelta(0),
        *,
        dry_run: bool = False,
    ) -> Collected:
        """Drop results unused for `older_than`, and what dead writers left."""
        before = time.time() - older_than.total_seconds()
        gone: list[Entry] = []
        for entry in self.entries():
            with contextlib.suppress(OSError):
                if entry.folder.stat().st_mtime > before:
                    continue
                with (entry.folder / MANIFEST).open("rb") as file:
                    # Not while somebody reads it.
                    fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                    if not dry_run:
                        self._drop(entry.folder, None)
                    gone.append(entry)
        leftovers = 0
        for name in {
            path.name.partition(".")[0] for path in (self.root / "incoming").glob("[!.]*")
        }:
            folder = self.root / "incoming" / name
            lock = self.lock(folder.with_suffix(".lock"))
            if lock.try_acquire():
                leftovers += folder.exists()
                if not dry_run:
                    remove(folder)
                lock.release()
        if not dry_run:
            self._bury()
        return Collected(tuple(gone), leftovers, sum(entry.bytes for entry in gone))

    def _bury(self) -> None:
        """Remove the pulses of processes that have been silent for a day."""
        for sign in (self.root / "alive").glob("*"):
            with contextlib.suppress(OSError):
                if time.time() - sign.stat().st_mtime > _DAY_S:
                    sign.unlink()


def _link(source: str, target: str) -> bool:
    """Link two names to one file, where the filesystem lets us."""
    try:
        os.link(source, target)
    except OSError as error:
        if error.errno in (errno.EXDEV, errno.EPERM, errno.EMLINK, errno.EOPNOTSUPP):
            return False
        raise
    return True

"""Where the results of steps live, each under the key of the step that made it.

    entries/ab/abcdef…/      complete results, and nothing else
    incoming/UUID/           results being written; a lock beside each says its writer lives

A result is written to `incoming`, brought to the disk, and renamed: after a crash it is there
whole or not at all.

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
import logging
import os
import time
import uuid
from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass, replace
from datetime import timedelta
from pathlib import Path

from torchsmith import __version__
from torchsmith.engine.disk import check_room, room, sync_file, sync_filesystem, write_whole
from torchsmith.engine.entry import (
    FILES,
    MANIFEST,
    OUTPUTS,
    DamagedEntryError,
    Entry,
    ForeignEntryError,
    UntrustedEntryError,
    check_trust,
    find_outputs,
    place,
    problems_of,
    read_entry,
    read_items,
    write_files,
    write_manifest,
)
from torchsmith.engine.locks import Lease, Lock, Pulse
from torchsmith.engine.trees import Item, copy_file, remove, transfer, walk, with_hash
from torchsmith.errors import StoreError
from torchsmith.owners import make_folder, who_else_writes
from torchsmith.plan.models import Step

# Up to here each file is brought to the disk by itself; beyond, the whole filesystem is.
_FEW_FILES = 64
_WRITABLE = 0o222
# The mark of a store that several hosts build into.
SHARED = "shared"
_DAY_S = 86_400
# What reading a stored file ends with where something else lies in its place.
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
    """Whether several hosts build into the store at a place: see `sharing.py`."""
    return (root / SHARED).exists()


class Store:
    """Results by key."""

    def __init__(
        self, root: Path | None = None, on_warning: Callable[[str], None] | None = None
    ) -> None:
        self.root = (root or default_root()).absolute()
        self._warn = on_warning or logging.getLogger("torchsmith").warning
        # Damage in a store we may not write to, and what is not ours: known while we run.
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
        """A lock that holds for whoever sees this store."""
        return Lock(path) if self.pulse is None else Lease(path, self.pulse)

    def key_lock(self, key: str, where: str = "") -> Lock:
        """The lock for running a step, by its key; with `where`, for one place it is bound to."""
        return self.lock(self.root / "locks" / f"{key}{where and '-'}{where}.lock")

    def is_bound(self, key: str) -> bool:
        """Whether what is kept for a key works only in the places it was made for."""
        found = self._named(key)
        return bool(found) and all(folder.name != key for folder in found)

    def ensure_ours(self) -> None:
        """Refuse to build where users outside those who build into the store could change it."""
        if self.is_new:
            return
        if why := who_else_writes(self.root.resolve(), members=self.shared):
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
        """Keep what a step made. `external`: what it did lies elsewhere, only that is kept."""
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
            return with_hash(item, copied)

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
                # Made twice at once, or here and damaged: the newer one is known to be whole.
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
        """Put a result where it belongs in a work folder; None if it turned out damaged."""
        roots = entry.placed(variant)
        try:
            with self._in_use(entry), room(work, entry.bytes):
                items = read_items(entry.folder)
                for root in roots:
                    remove(work / root)
                self._give(entry, items, work, variant)
        except BaseException as problem:
            # Half of a result is none: not for a step, and not for who looks into the folder.
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
        """Rename an entry away at once, then remove it."""
        if problem is not None:
            self._warn(f"the stored result {folder.name[:12]} is not used: {problem}")
            self._damaged.add(folder)
        with contextlib.suppress(OSError), self._incoming() as aside:
            folder.rename(aside / "dropped")

    def _distrust(self, folder: Path, problem: UntrustedEntryError) -> None:
        """Leave an entry where it is, and say so once."""
        self._damaged.add(folder)
        self._warn(
            f"the stored result {folder.name[:12]} is not used: {problem}. If nobody else "
            "uses this store: chown it to yourself and chmod -R go-w"
        )

    def gc(
        self,
        keep: Collection[str] = (),
        older_than: timedelta = timedelta(0),
        *,
        dry_run: bool = False,
    ) -> Collected:
        """Drop results not in `keep` and unused for `older_than`, and what dead writers left."""
        before = time.time() - older_than.total_seconds()
        gone: list[Entry] = []
        for entry in self.entries():
            with contextlib.suppress(OSError):
                if entry.key in keep or entry.folder.stat().st_mtime > before:
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
        """Remove the signs of life of processes that have shown none for a day."""
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

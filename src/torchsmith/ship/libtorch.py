"""libtorch archives beside a pip index: libtorch/ARCHIVE, each with its .sha256, and one page."""

from __future__ import annotations

import gzip
import tarfile
import zipfile
import zlib
from collections.abc import Iterator, Sequence
from html import escape
from pathlib import Path
from typing import IO, cast

from torchsmith.errors import UsageError, VerificationError
from torchsmith.ship.folder import (
    Action,
    Change,
    Changes,
    Say,
    changing,
    check_folder,
    escapes,
    file_hash,
    refuse_other_bytes,
)
from torchsmith.ship.index import link, page_html
from torchsmith.sources.unfolding import (
    BombError,
    Member,
    Metered,
    check_member,
    check_zip,
    exhaust,
    most_bytes,
)

FOLDER = "libtorch"
_ENDINGS = (".tar.gz", ".zip")


def is_libtorch(name: str) -> bool:
    """Whether a file's name is a libtorch archive's."""
    return name.startswith("libtorch-") and name.endswith(_ENDINGS)


def publish_archives(
    root: Path,
    archives: Sequence[Path],
    *,
    dry_run: bool = False,
    say: Say = lambda _: None,
) -> list[Change]:
    """Add archives to an index, all or none; those that are there already stay as they are."""
    check_folder(root, "index")
    if dry_run:
        return [change for change, _ in _sorted_out(root, archives)]
    with changing(root, "index", say=say) as changes:
        decided = _sorted_out(root, archives)
        coming = [(change, path) for change, path in decided if change.action == "added"]
        changes.make_room(sum(path.stat().st_size for _, path in coming))
        hashes = _published(root)
        for change, path in coming:
            if not (root / change.path).exists():
                changes.bring(path, change.path, change.sha256)
            changes.write(f"{change.path}.sha256", f"{change.sha256}  {path.name}\n".encode())
            hashes[path.name] = change.sha256
        _write_page(changes, hashes)
    return [change for change, _ in decided]


def _sorted_out(root: Path, archives: Sequence[Path]) -> list[tuple[Change, Path]]:
    known = _published(root)
    decided: list[tuple[Change, Path]] = []
    for path in archives:
        sha256 = file_hash(path)
        there = root / FOLDER / path.name
        had = known.get(path.name) or (file_hash(there) if there.exists() else None)
        if had not in (None, sha256):
            raise refuse_other_bytes(path.name, root)
        same = path.name in known and there.exists()
        if not same:
            _check(path)
        action: Action = "same" if same else "added"
        decided.append((Change(action, f"{FOLDER}/{path.name}", sha256), path))
    return decided


def _published(root: Path) -> dict[str, str]:
    return {
        page.name.removesuffix(".sha256"): page.read_text().split()[0]
        for page in sorted((root / FOLDER).glob("*.sha256"))
    }


def _write_page(changes: Changes, hashes: dict[str, str]) -> None:
    lines = (
        f'<a href="{link(name)}#sha256={digest}">{escape(name)}</a>'
        for name, digest in sorted(hashes.items())
    )
    changes.write(f"{FOLDER}/index.html", page_html("libtorch", lines))


def _check(path: Path) -> None:
    """Read all of an archive: whole, and every name below libtorch/."""
    try:
        stray = [
            name for name in _names(path) if name.partition("/")[0] != "libtorch" or escapes(name)
        ]
    except (
        *(tarfile.TarError, zipfile.BadZipFile, zlib.error),
        *(EOFError, OSError, ValueError, RuntimeError),
    ) as error:
        stray = [f"it cannot be unpacked: {error}"]
    if stray:
        raise VerificationError(
            f"{path.name} is not a libtorch archive to publish: {stray[0]}",
            "Build or download it again.",
        )


def _names(path: Path) -> Iterator[str]:
    if path.name.endswith(".zip"):
        with zipfile.ZipFile(path) as archive:
            check_zip(archive, path.stat().st_size)
            if bad := archive.testzip():
                raise zipfile.BadZipFile(f"{bad} is damaged")
            yield from archive.namelist()
        return
    with gzip.open(path) as packed:
        most = 2 * most_bytes(path.stat().st_size)
        stream = cast("IO[bytes]", Metered(cast("IO[bytes]", packed), most, BombError()))
        with tarfile.open(fileobj=stream, mode="r|", tarinfo=Member) as tar:
            for member in tar:
                check_member(member)
                yield member.name
        exhaust(stream)


def remove_archive(root: Path, name: str) -> list[Change]:
    """Take an archive away for good."""
    check_folder(root, "index", exists=True)
    with changing(root, "index") as changes:
        hashes = _published(root)
        target = f"{FOLDER}/{name}"
        if name not in hashes and not (root / target).exists():
            raise UsageError(f"{name} is not in {root}", f"It has {', '.join(hashes) or 'none'}.")
        hashes.pop(name, None)
        _write_page(changes, hashes)
        changes.drop(f"{target}.sha256")
        changes.drop(target)
    return [Change("removed", target)]

"""An archive from a web server or this machine, its hash known beforehand."""

from __future__ import annotations

import re
from pathlib import Path

from torchsmith.errors import SourceError
from torchsmith.resolve.models import SourceChoice
from torchsmith.sources.addresses import is_local, local_path, shown
from torchsmith.sources.download import PATIENT, Retry, download
from torchsmith.sources.extract import LIMITS, Limits, extract
from torchsmith.sources.models import FetchedSource, Progress
from torchsmith.sources.tree import file_hash, tree_hash

_SHA256 = re.compile(r"[0-9a-f]{64}")


def _here(path: Path, sha256: str, progress: Progress) -> Path:
    """A file of this machine, if it is the one expected."""
    if not path.is_file():
        raise SourceError(f"{path} is not a file", "Check source.path or source.url in the recipe.")
    progress(f"checking {path.name}", None, path.stat().st_size)
    found = file_hash(path)
    if found != sha256:
        raise SourceError(
            f"{path} is not the file expected: its sha256 is {found}, not {sha256}",
            "Find out which of the two is right before changing the hash; nothing was unpacked.",
        )
    return path


def archive_file(
    choice: SourceChoice, cache: Path, progress: Progress, retry: Retry = PATIENT
) -> tuple[Path, str, tuple[str, ...]]:
    """The archive itself, of the expected hash; where it came from, and notes."""
    if not _SHA256.fullmatch(choice.sha256):
        raise SourceError(
            "an archive needs its sha256", "Write source.sha256: the 64 digits `sha256sum` prints."
        )
    addresses = [url for url in (choice.url, *choice.mirrors) if url]
    notes: list[str] = []
    if choice.path or (addresses and is_local(addresses[0])):
        place = Path(choice.path) if choice.path else local_path(addresses[0])
        return _here(place, choice.sha256, progress), str(place), ()
    remote = [url for url in addresses if not is_local(url)]
    file, used = download(remote, cache, sha256=choice.sha256, progress=progress, retry=retry)
    location = shown(used or addresses[0])
    if not used:
        notes.append("taken from the cache: a file of this hash was there")
    elif used != addresses[0]:
        notes.append(f"{shown(addresses[0])} could not give it; the mirror {location} did")
    return file, location, tuple(notes)


def fetch_archive(
    choice: SourceChoice,
    destination: Path,
    *,
    cache: Path,
    progress: Progress,
    limits: Limits = LIMITS,
    retry: Retry = PATIENT,
) -> FetchedSource:
    """Bring an archive, check its hash, and only then unpack it."""
    file, location, notes = archive_file(choice, cache, progress, retry)
    name = location.split("?")[0].rsplit("/", 1)[-1]
    extract(file, destination, name=name, limits=limits, progress=progress)
    evidence = {"sha256": choice.sha256, "tree": tree_hash(destination)}
    return FetchedSource("archive", location, evidence, notes)

"""Files from web servers: resumed, retried, checked, and kept by their hash."""

from __future__ import annotations

import base64
import contextlib
import fcntl
import hashlib
import re
import shutil
import ssl
import tempfile
import time
import urllib.parse
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO

from torchsmith.errors import NotServedError, SourceError, UnreachableError
from torchsmith.foreign import whole
from torchsmith.http_client import TRY_AGAIN, StatusError, TransferError, request
from torchsmith.sources.addresses import shown
from torchsmith.sources.tree import Progress, file_hash, quiet

# The variable that names the folder where downloads are kept.
DOWNLOADS = "TORCHSMITH_DOWNLOADS"


@contextlib.contextmanager
def locked(path: Path) -> Iterator[None]:
    """Hold a file or folder of the cache for this process alone; others wait.

    The lock goes with the process, so a crash leaves none behind.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.with_name(path.name + ".lock").open("ab") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


def emptied(folder: Path) -> None:
    """Remove everything in a folder, so that what failed cannot pass for complete."""
    for entry in folder.iterdir():
        if entry.is_dir() and not entry.is_symlink():
            shutil.rmtree(entry)
        else:
            entry.unlink()


# No source of anything we build comes near; a server that never stops sending is stopped.
MOST_BYTES = 20 << 30
_CONTENT_RANGE = re.compile(r"bytes (\d+)-\d+/(\d+|\*)")


@dataclass(frozen=True, slots=True)
class Retry:
    """How often a broken transfer is taken up again, and the pause before the first time."""

    attempts: int = 4
    pause_s: float = 1.0
    timeout_s: float = 60.0

    def wait(self, attempt: int) -> None:
        """Pause before attempt number `attempt`, counted from 0: twice as long each time."""
        if attempt:
            time.sleep(self.pause_s * 2 ** (attempt - 1))


PATIENT = Retry()


def _without_login(url: str) -> tuple[str, str]:
    """An address as it is requested, and what its server is shown of the login in it."""
    parts = urllib.parse.urlsplit(url)
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise SourceError(f"{shown(url)!r} is not an http or https address")
    login, _, host = parts.netloc.rpartition("@")
    secret = base64.b64encode(urllib.parse.unquote(login).encode()).decode()
    bare = parts._replace(netloc=host, fragment="").geturl()
    return bare, f"Basic {secret}" if login else ""


def _refusal(url: str, error: StatusError) -> SourceError:
    if error.status in (404, 410):
        return NotServedError(
            f"{shown(url)} is not served (HTTP {error.status})",
            "Check the address, or try a mirror.",
        )
    return UnreachableError(
        f"{shown(url)} was refused: {error}",
        "Check the address and your right to read it, or try a mirror.",
    )


def _append(
    url: str, part: IO[bytes], limit: int, label: str, progress: Progress, timeout: float
) -> None:
    """Download what the part file lacks; an OSError is one of the disk."""
    have = part.seek(0, 2)
    address, authorization = _without_login(url)
    # Compressed on the way, neither the size nor the place to resume from would be the file's.
    headers = {"Accept-Encoding": "identity"}
    if have:
        headers["Range"] = f"bytes={have}-"
    with request(address, timeout=timeout, headers=headers, authorization=authorization) as answer:
        span = _CONTENT_RANGE.match(answer.headers.get("Content-Range", ""))
        if not (have and answer.status == 206 and span and int(span[1]) == have):
            # The server sends the whole file: what was there is of no use.
            have = 0
            part.seek(0)
            part.truncate()
        length = whole(answer.headers.get("Content-Length", ""))
        total = None if length is None else have + length
        if total is not None and total > limit:
            raise SourceError(f"{shown(url)} has {total} bytes, more than the {limit} expected")
        for piece in answer.pieces():
            have += len(piece)
            if have > limit:
                raise SourceError(f"{shown(url)} sends more than the {limit} bytes expected")
            part.write(piece)
            progress(label, have, total)


def _bring(
    url: str, part: IO[bytes], limit: int, label: str, progress: Progress, retry: Retry
) -> None:
    problem: Exception | None = None
    for attempt in range(retry.attempts):
        retry.wait(attempt)
        try:
            return _append(url, part, limit, label, progress, retry.timeout_s)
        except StatusError as error:
            if error.status == 416:
                # Asked to go on past the end: the part is whole, or another file's.
                part.truncate(0)
            elif error.status not in TRY_AGAIN:
                raise _refusal(url, error) from None
            problem = error
        except TransferError as error:
            problem = error
            if isinstance(error.cause, ssl.SSLCertVerificationError):
                break
        except OSError as error:
            raise SourceError(
                f"{shown(url)} could not be kept: {error.strerror}",
                "Make room in the cache folder, or name another.",
            ) from None
    raise UnreachableError(
        f"{shown(url)} cannot be fetched: {problem}",
        "Check the network, the proxy and SSL_CERT_FILE; what came is kept for the next attempt.",
    )


def read_url(url: str, *, limit: int, retry: Retry = PATIENT) -> bytes:
    """A small file, whole, in memory; nothing of it is checked but its size."""
    with tempfile.TemporaryFile() as part:
        _bring(url, part, limit, _name(url), quiet, retry)
        part.seek(0)
        return part.read()


def _name(url: str) -> str:
    return urllib.parse.unquote(urllib.parse.urlsplit(url).path.rsplit("/", 1)[-1]) or shown(url)


def download(
    urls: Sequence[str],
    cache: Path,
    *,
    sha256: str,
    size: int | None = None,
    label: str = "",
    progress: Progress = quiet,
    retry: Retry = PATIENT,
) -> tuple[Path, str]:
    """A file of this hash from the first address that gives it, and which one did.

    It lies in the cache under its hash; an address is "" if it lay there already. A broken
    transfer leaves its part for the next attempt, which asks for the rest only.
    """
    kept = cache / "files" / sha256
    with locked(kept):
        if kept.exists():
            if file_hash(kept) == sha256:
                return kept, ""
            kept.unlink()  # Something else wrote into the cache, or the disk is failing.
        part = kept.with_name(f"{sha256}.part")
        problems: list[SourceError] = []
        for url in urls:
            try:
                _complete(url, part, sha256, size, label or _name(url), progress, retry)
            except UnreachableError as error:
                problems.append(error)
                continue
            part.replace(kept)
            return kept, url
    if len(problems) == 1:
        raise problems[0]
    missing = bool(problems) and all(isinstance(error, NotServedError) for error in problems)
    raise (NotServedError if missing else UnreachableError)(
        "; ".join(error.message for error in problems) or "no address to download from",
        problems[-1].hint if problems else "",
    )


def _complete(
    url: str,
    part: Path,
    sha256: str,
    size: int | None,
    label: str,
    progress: Progress,
    retry: Retry,
) -> None:
    limit = MOST_BYTES if size is None else size
    for resumed in (part.exists() and part.stat().st_size > 0, False):
        try:
            with part.open("ab+") as file:
                _bring(url, file, limit, label, progress, retry)
        except UnreachableError:
            raise
        except SourceError:
            # Longer than it should be: nothing that begins like this can become the file.
            part.unlink()
            if resumed:
                continue
            raise
        with part.open("rb") as file:
            found = hashlib.file_digest(file, "sha256")
        if found.hexdigest() == sha256:
            return
        part.unlink()
        # What was resumed may have begun as another file: only a whole one proves the server wrong.
        if not resumed:
            raise SourceError(
                f"{shown(url)} is not the file expected: its sha256 is {found.hexdigest()},"
                f" not {sha256}",
                "Find out which of the two is right before changing the hash; nothing was kept.",
            )

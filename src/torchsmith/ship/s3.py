"""Copying a published folder to an S3 bucket, with the AWS command line.

The folder stays the record: the bucket is a copy of it. Files go first and are never replaced;
the pages that name them follow. Where a bucket is read without a web server in front of it, an
address that ends with a slash is an object of that name, so the index's pages are put there too.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
from collections.abc import Sequence
from functools import partial
from pathlib import Path

from torchsmith.errors import OutputError, UsageError
from torchsmith.ship.client import ClientError, run_client
from torchsmith.ship.folder import Change, FolderKind, Say, check_folder, file_hash

_CURE = "pip install awscli"
_SECRETS = ("AWS_SECRET_ACCESS_KEY", "AWS_SESSION_TOKEN")
# What S3 takes in one request.
_MOST = 5 << 30
_PAGES = re.compile(
    r"index\.(?:html|json)|.*\.(?:metadata|sha256)|channeldata\.json"
    r"|(?:current_)?(?:repodata|run_exports)\.json(?:\.zst)?"
)
_NAMED = (".metadata", ".sha256")
_BUCKET = re.compile(r"s3://([a-z0-9][a-z0-9.-]{1,61}[a-z0-9])(?:/(.*))?")


def copy_folder(
    root: Path, kind: FolderKind, bucket: str, say: Say, *, dry_run: bool = False
) -> list[Change]:
    """Bring a bucket up to date with an index or a channel."""
    check_folder(root, kind, exists=True)
    match = _BUCKET.fullmatch(bucket.rstrip("/"))
    if match is None:
        raise UsageError(f"{bucket} is not a bucket's address", "Write s3://BUCKET/FOLDER.")
    name, start = match[1], f"{match[2]}/" if match[2] else ""
    known = _objects(name, start)
    files = [path for path in sorted(root.rglob("*")) if path.is_file()]
    shown = [path for path in files if not _hidden(path.relative_to(root))]
    made: list[Change] = []
    for path in (path for path in shown if not _PAGES.fullmatch(path.name)):
        place = path.relative_to(root).as_posix()
        key = f"{start}{place}"
        if dry_run and key not in known:
            made.append(Change("added", place, file_hash(path)))
        else:
            made.append(_bring(path, place, name, key, known, say))
    if dry_run:
        return made
    pages = [path for path in shown if _PAGES.fullmatch(path.name)]
    keys = {path: f"{start}{path.relative_to(root).as_posix()}" for path in pages}
    changed = [path for path in pages if known.get(keys[path]) != _md5(path)]
    # Metadata before the pages that name it.
    named = [path for path in changed if path.suffix in _NAMED]
    for group in (named, [path for path in changed if path not in named]):
        if group:
            _copy(root, group, f"s3://{name}/{start}")
    for path in pages:
        key = keys[path].removesuffix("index.html")
        if key != keys[path] and known.get(key) != _md5(path):
            _put(path, name, key, "--content-type", "text/html", "--cache-control", "no-cache")
    return made


def _copy(root: Path, pages: Sequence[Path], target: str) -> None:
    """Copy pages in one call, several at a time."""
    includes = [("--include", path.relative_to(root).as_posix()) for path in pages]
    words = [word for pair in includes for word in pair]
    _aws(
        *("s3", "cp", str(root), target, "--recursive", "--exclude", "*", *words),
        *("--cache-control", "no-cache", "--only-show-errors"),
    )


def _hidden(path: Path) -> bool:
    return any(part.startswith(".") for part in path.parts)


def _bring(
    path: Path, place: str, bucket: str, key: str, known: dict[str, str], say: Say
) -> Change:
    sha256 = file_hash(path)
    if key not in known:
        if path.stat().st_size > _MOST:
            raise UsageError(
                f"{path.name} is larger than S3 takes in one request, 5 GiB",
                f"Copy it first: aws s3 cp --metadata sha256={sha256} {path} s3://{bucket}/{key}",
            )
        say(f"uploading {place}")
        try:
            # Never over an object that is there.
            mark = ("--metadata", f"sha256={sha256}", "--if-none-match", "*")
            _put(path, bucket, key, "--content-type", "application/octet-stream", *mark)
        except ClientError as error:
            # Somebody else was quicker.
            if "PreconditionFailed" not in error.said:
                raise
        else:
            return Change("added", place, sha256)
    elif known[key] == _md5(path):
        return Change("same", place, sha256)
    # What a bucket calls ETag is the MD5 of most objects, not of all: ask for what we wrote.
    head = json.loads(_aws("s3api", "head-object", "--bucket", bucket, "--key", key))
    if head.get("Metadata", {}).get("sha256") != sha256:
        raise OutputError(
            f"{key} is in {bucket} already, with other bytes",
            "Give the new build another version or build number.",
        )
    return Change("same", place, sha256)


def _put(path: Path, bucket: str, key: str, *more: str) -> None:
    _aws("s3api", "put-object", "--bucket", bucket, "--key", key, "--body", str(path), *more)


def _aws(*words: str) -> str:
    """Run the client, which finds credentials itself; what it prints of them is redacted."""
    known = {name: os.environ[name] for name in _SECRETS if name in os.environ}
    return run_client(["aws", *words, "--output", "json"], _CURE, known)


def _objects(bucket: str, start: str) -> dict[str, str]:
    """The objects below a prefix, and their ETags."""
    query = ("--query", "Contents[].[Key,ETag]")
    listing = _aws("s3api", "list-objects-v2", "--bucket", bucket, "--prefix", start, *query)
    return {key: mark.strip('"') for key, mark in json.loads(listing or "null") or ()}


def _md5(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, partial(hashlib.md5, usedforsecurity=False)).hexdigest()

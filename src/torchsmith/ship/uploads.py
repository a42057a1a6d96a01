"""Uploading to PyPI or a server like it, to anaconda.org and to S3, each with its own client.

A client gets secrets as variables, and is quoted without them. A bucket is a copy of a published
folder, which stays the record. Files go first and are never replaced; the pages that name them
follow. Where a bucket is read without a web server in front of it, an address that ends with a
slash is an object of that name, so the index's pages are put there too.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import shutil
import sys
from collections.abc import Mapping, Sequence
from functools import partial
from html import unescape
from pathlib import Path
from urllib.parse import unquote, urljoin

import msgspec
from packaging.utils import canonicalize_name

from torchsmith.errors import HostError, OutputError, UsageError
from torchsmith.http_client import StatusError, TransferError, request
from torchsmith.programs import call
from torchsmith.redact import Redactor
from torchsmith.ship.channel import read_record
from torchsmith.ship.folder import Action, Change, FolderKind, Say, check_folder, file_hash
from torchsmith.ship.index import JSON_TYPE, read_hashes
from torchsmith.verify.wheelfile import sound_wheel

_SECONDS = 30
_MOST = 64 << 20


def read_page(url: str, accept: str = "*/*") -> bytes | None:
    """A page, or None where there is none to be read."""
    try:
        with request(url, timeout=_SECONDS, headers={"Accept": accept}) as answer:
            return answer.read(_MOST)
    except (StatusError, TransferError):
        return None


_SHOWN_LINES = 6


class ClientError(OutputError):
    """A client ended badly; `output` is all it printed, without secrets."""

    def __init__(self, name: str, status: int, output: str) -> None:
        self.output = output
        lines = [line.strip() for line in output.splitlines() if line.strip()]
        shown = "".join(f"\n  {line}" for line in lines[-_SHOWN_LINES:])
        super().__init__(
            f"{name} ended with {status}{shown}",
            "What was uploaded before that stays; the same command again does the rest.",
        )


def run_client(command: Sequence[str], cure: str, secrets: Mapping[str, str] | None = None) -> str:
    """Run a client and return what it printed. Secrets reach it as variables, never as words."""
    name = command[0]
    own = str(Path(sys.executable).parent)
    program = shutil.which(name, path=f"{own}{os.pathsep}{os.environ.get('PATH', os.defpath)}")
    if program is None:
        raise HostError(f"{name} is missing", cure)
    variables = dict(secrets or {})
    redactor = Redactor(variables.values())
    answer = call([program, *command[1:]], env={**os.environ, **variables})
    if answer.code != 0:
        raise ClientError(name, answer.code, redactor.text(answer.out + answer.err))
    return redactor.text(answer.out)


def stored_password(service: str, user: str) -> str | None:
    """A password from the keyring, where `keyring` is installed and has it."""
    try:
        import keyring
        from keyring.errors import KeyringError
    except ImportError:
        return None
    try:
        return keyring.get_password(service, user)
    except KeyringError:
        return None


def secret(variable: str, service: str, user: str) -> str:
    """A password from the environment or, where `keyring` is installed, from there."""
    if value := os.environ.get(variable):
        return value
    stored = stored_password(service, user)
    if not stored:
        raise UsageError(
            f"there is no password for {service}",
            f"Set {variable} in the environment, or keep it with: keyring set {service} {user}",
        )
    return stored


# Where what was uploaded there is read; elsewhere both are one server.
_READ_AT = {"https://upload.pypi.org/": "https://pypi.org/"}
_HREF = re.compile(r"""href=["']([^"'#]+)#sha256=([0-9a-f]{64})["']""")


def upload_wheels(
    files: Sequence[Path], repository: str, say: Say, *, dry_run: bool = False
) -> list[Change]:
    """Upload wheels; one that is there with the same bytes is fine, with other bytes refused."""
    made: list[Change] = []
    new: list[Path] = []
    for path in files:
        sound_wheel(path)
        digest = file_hash(path)
        known = _published(repository, path.name)
        if known not in (None, digest):
            raise OutputError(
                f"{path.name} is at {repository} already, with other bytes",
                "Give the new build another version or build number.",
            )
        made.append(Change("added" if known is None else "same", path.name, digest))
        if known is None:
            new.append(path)
    if new and not dry_run:
        user = os.environ.get("TWINE_USERNAME", "__token__")
        password = secret("TWINE_PASSWORD", repository, user)
        say(f"uploading {', '.join(path.name for path in new)} to {repository}")
        run_client(
            [
                *("twine", "upload", "--non-interactive", "--disable-progress-bar"),
                *("--username", user, "--repository-url", repository, *map(str, new)),
            ],
            "pip install twine",
            {"TWINE_PASSWORD": password},
        )
    return made


def _published(repository: str, name: str) -> str | None:
    """The hash a repository's own index gives for a file, None where it does not say."""
    for start, read_at in _READ_AT.items():
        repository = repository.replace(start, read_at)
    base = re.sub(r"(?:legacy/?)?$", "", repository.rstrip("/") + "/")
    project = canonicalize_name(name.partition("-")[0])
    page = read_page(urljoin(base, f"simple/{project}/"), f"{JSON_TYPE}, text/html;q=0.5")
    if page is None:
        return None
    try:
        return read_hashes(page).get(name) or None
    except msgspec.DecodeError:
        links = _HREF.findall(unescape(page.decode(errors="replace")))
        return {unquote(href).rpartition("/")[2]: digest for href, digest in links}.get(name)


API = "https://api.anaconda.org"


def upload_packages(
    files: Sequence[Path],
    user: str,
    variable: str,
    say: Say,
    *,
    force: bool = False,
    dry_run: bool = False,
    api: str = API,
) -> list[Change]:
    """Upload packages; one that is there with the same bytes is fine, with other bytes refused.

    `variable` holds the token. With `force`, other bytes take the place of those that are there.
    """
    made: list[Change] = []
    new: list[Path] = []
    for path in files:
        record = read_record(path)
        place = f"{record['subdir']}/{path.name}"
        known = read_page(f"{api}/dist/{user}/{record['name']}/{record['version']}/{place}")
        same = known is not None and _same(known, str(record["md5"]))
        if known is not None and not same and not force:
            raise OutputError(
                f"{place} is in the channel of {user} already, with other bytes",
                "Give the new build another version or build number; or replace it: --force.",
            )
        action: Action = "same" if same else "added" if known is None else "replaced"
        made.append(Change(action, place, str(record["sha256"])))
        if not same:
            new.append(path)
    if new and not dry_run:
        token = secret(variable, API, user)
        say(f"uploading {', '.join(path.name for path in new)} to the channel of {user}")
        run_client(
            ["anaconda", "upload", "--user", user, *["--force"] * force, *map(str, new)],
            "pip install anaconda-client",
            {"ANACONDA_API_TOKEN": token},
        )
    return made


def _same(answer: bytes, md5: str) -> bool:
    try:
        table = json.loads(answer)
    except ValueError:
        return False
    return isinstance(table, dict) and table.get("md5") == md5


_CURE = "pip install awscli"
_SECRETS = ("AWS_SECRET_ACCESS_KEY", "AWS_SESSION_TOKEN")
# What S3 takes in one request.
_MOST_S3_BYTES = 5 << 30
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
    shown = [path for path in files if "/." not in f"/{path.relative_to(root)}"]
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


def _bring(
    path: Path, place: str, bucket: str, key: str, known: dict[str, str], say: Say
) -> Change:
    sha256 = file_hash(path)
    if key not in known:
        if path.stat().st_size > _MOST_S3_BYTES:
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
            if "PreconditionFailed" not in error.output:
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

"""Refresh the snapshot of what PyPI says about torch and its companions.

The facts files ``releases.toml`` and ``companions.toml`` are checked against this snapshot
in the unit tests, so that they need no network. For every final release it holds the
Linux wheels' Python tags, Requires-Python, the requirements on torch and on NVIDIA's
packages, and what ``version.py`` in the wheel says of its origin.

A wheel of torch is up to a gigabyte, and a few kilobytes of it are of interest here: they
are read in place, by HTTP range requests.

    python tools/refresh_pypi.py            rewrite tests/data/pypi.json
    python tools/refresh_pypi.py --check    only say whether it is out of date (exit 1)
"""

from __future__ import annotations

import argparse
import email.parser
import http.client
import io
import json
import os
import re
import sys
import tempfile
import time
import urllib.error
import urllib.parse
import urllib.request
import zipfile
import zlib
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import asdict, dataclass
from html.parser import HTMLParser
from pathlib import Path

SNAPSHOT = Path(__file__).parent.parent / "tests" / "data" / "pypi.json"
INDEX = "https://pypi.org/simple"
PROJECTS = ("torch", "torchvision", "torchaudio", "torchtext", "xformers", "vllm")
# Older ones belong to another time: Python 2, CUDA 8, no companion with compiled code.
OLDEST = {"torch": (1, 0), "xformers": (0, 0, 20), "vllm": (0, 4, 1)}
# Which of a wheel's requirements are worth keeping.
KEPT_REQUIREMENTS = re.compile(r"(torch|triton|pytorch[-_]triton|nvidia[-_\w]*|cuda[-_\w]*)\b")

TIMEOUT_S = 60
RETRY_DELAYS_S = (1.0, 3.0, 9.0)
# One block holds the end of a wheel with its directory, or a small member of it.
BLOCK = 64 * 1024

_FINAL = re.compile(r"\d+(?:\.\d+)*(?:\.post\d+)?")
_LINUX = re.compile(r"linux.*_(x86_64|aarch64)$")
_ASSIGNMENT = re.compile(
    r"^(?P<name>git_version|cuda)\s*(?::[^=\n]+)?=\s*['\"](?P<value>[^'\"\n]*)['\"]", re.MULTILINE
)


class RefreshError(Exception):
    """Something a person has to know of; the snapshot has not been touched."""


# ------------------------------------------------------------------------------- reading


class Web:
    """HTTP with retries. Proxies and certificates come from the usual environment."""

    def __init__(self, retry_delays: Sequence[float] = RETRY_DELAYS_S) -> None:
        self.retry_delays = retry_delays

    def read(self, url: str) -> bytes:
        """Return everything at `url`."""
        return self._get(url, None)[0]

    def read_range(self, url: str, wanted: str) -> tuple[bytes, int]:
        """Return the bytes `wanted` (as in the Range header) and the whole file's size."""
        body, content_range = self._get(url, wanted)
        total = re.fullmatch(r"bytes \d+-\d+/(\d+)", content_range or "")
        if total is None:
            raise RefreshError(
                f"{url}: the server ignores range requests, and whole wheels are too large "
                "to fetch for this. Use an index whose file server supports them."
            )
        return body, int(total[1])

    def _get(self, url: str, wanted: str | None) -> tuple[bytes, str | None]:
        headers = {"Accept": "text/html, */*;q=0.1", "User-Agent": "torchsmith-refresh-pypi"}
        if wanted:
            headers["Range"] = f"bytes={wanted}"
        request = urllib.request.Request(url, headers=headers)
        for delay in (*self.retry_delays, None):
            try:
                with urllib.request.urlopen(request, timeout=TIMEOUT_S) as answer:
                    if wanted and answer.status != http.HTTPStatus.PARTIAL_CONTENT:
                        return b"", None
                    return answer.read(), answer.headers["Content-Range"]
            except urllib.error.HTTPError as error:
                error.close()
                if delay is None or error.code not in (408, 429, 500, 502, 503, 504):
                    raise RefreshError(f"{url}: HTTP {error.code} {error.reason}") from error
            except (OSError, http.client.HTTPException) as error:
                if delay is None:
                    raise RefreshError(f"{url}: {error}") from error
            time.sleep(delay)
        raise AssertionError("the last attempt either returns or raises")


class RemoteFile(io.RawIOBase):
    """A file on a web server, seekable, of which only the parts read are transferred."""

    def __init__(self, web: Web, url: str) -> None:
        super().__init__()
        self._web = web
        self._url = url
        self._position = 0
        # Reading a zip starts at its end, and the end also tells the size.
        self._tail, self._size = web.read_range(url, f"-{BLOCK}")

    def readable(self) -> bool:
        """Whether it can be read."""
        return True

    def seekable(self) -> bool:
        """Whether it can be read from anywhere."""
        return True

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        """Move to `offset`; nothing is transferred yet."""
        start = {io.SEEK_SET: 0, io.SEEK_CUR: self._position, io.SEEK_END: self._size}[whence]
        self._position = max(0, start + offset)
        return self._position

    def readall(self) -> bytes:
        """Return the rest of the file."""
        return self.read(max(0, self._size - self._position))

    def read(self, size: int = -1) -> bytes:
        """Return up to `size` bytes, fewer only at the end of the file."""
        if size < 0:
            return self.readall()
        stop = min(self._position + size, self._size)
        if stop <= self._position:
            return b""
        tail_start = self._size - len(self._tail)
        if self._position >= tail_start:
            data = self._tail[self._position - tail_start : stop - tail_start]
        else:
            data, _ = self._web.read_range(self._url, f"{self._position}-{stop - 1}")
        self._position += len(data)
        return data

    # typeshed gives the buffer a private protocol; bytearray and memoryview are what comes.
    def readinto(self, buffer: bytearray | memoryview) -> int:  # type: ignore[override]
        """Fill `buffer` and say how much of it."""
        data = self.read(len(buffer))
        buffer[: len(data)] = data
        return len(data)


# ------------------------------------------------------------------------- the index page


@dataclass(frozen=True)
class File:
    """One file of a project, as the simple index lists it."""

    name: str
    url: str
    yanked: bool
    has_metadata: bool
    requires_python: str = ""

    @property
    def is_wheel(self) -> bool:
        """Whether it is a wheel."""
        return self.name.endswith(".whl")

    @property
    def version(self) -> str | None:
        """The version in its name, where the name has one."""
        if self.is_wheel:
            return self.name.split("-")[1]
        # Of NumPy's there were only these for years.
        stem = self.name.removesuffix(".tar.gz").removesuffix(".zip")
        return stem.rpartition("-")[2] if stem != self.name else None

    @property
    def platform(self) -> str:
        """The CPU of a Linux wheel, ``any`` of a pure one; empty for everything else."""
        if not self.is_wheel:
            return ""
        tag = self.name.removesuffix(".whl").rpartition("-")[2]
        linux = _LINUX.search(tag)
        return linux[1] if linux else "any" if tag == "any" else ""

    @property
    def python(self) -> str:
        """The Python tag of a wheel, with a ``t`` if it is for free-threaded CPython."""
        python, abi, _ = self.name.removesuffix(".whl").rsplit("-", 3)[1:]
        return f"{python}t" if abi == f"{python}t" else python


class _SimplePage(HTMLParser):
    """Collects the links of a simple index page (PEP 503, 592, 658)."""

    def __init__(self, base: str) -> None:
        super().__init__()
        self.files: list[File] = []
        self._base = base

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        attributes = dict(attrs)
        href = attributes.get("href")
        if tag != "a" or not href:
            return
        url = urllib.parse.urldefrag(urllib.parse.urljoin(self._base, href)).url
        name = urllib.parse.unquote(urllib.parse.urlsplit(url).path.rpartition("/")[2])
        self.files.append(
            File(
                name=name,
                url=url,
                yanked="data-yanked" in attributes,
                has_metadata=bool(
                    attributes.keys() & {"data-core-metadata", "data-dist-info-metadata"}
                ),
                requires_python=attributes.get("data-requires-python") or "",
            )
        )


def files_of(web: Web, index: str, project: str) -> list[File]:
    """Return every file the index lists for a project."""
    url = f"{index.rstrip('/')}/{project}/"
    page = _SimplePage(url)
    page.feed(web.read(url).decode("utf-8", "replace"))
    if not page.files:
        raise RefreshError(f"{url}: lists no files. Is it a simple index page (PEP 503)?")
    return page.files


# ------------------------------------------------------------------------------- releases


@dataclass(frozen=True)
class Release:
    """What is kept of one release. The field order is the order in the snapshot."""

    commit: str | None
    cuda: str | None
    requires: list[str]
    requires_python: str | None
    wheel: str | None
    wheels: dict[str, list[str]]
    yanked: bool


Snapshot = dict[str, dict[str, Release]]
# The same as JSON has it: project, version, field.
Table = dict[str, dict[str, dict[str, object]]]


def numbers(text: str) -> tuple[int, ...]:
    """Return the numbers in a version or tag, to sort by."""
    return tuple(int(part) for part in re.findall(r"\d+", text))


def python_order(tag: str) -> tuple[tuple[int, ...], str]:
    """Order cp36 before cp310 before cp310t."""
    return tuple(int(part) for part in re.findall(r"(?<=\d)\d+|\d", tag)), tag


def by_release(files: Iterable[File], oldest: tuple[int, ...]) -> dict[str, list[File]]:
    """Group the files of final releases, oldest release first."""
    groups: dict[str, list[File]] = {}
    for file in files:
        version = file.version
        if version and _FINAL.fullmatch(version) and numbers(version) >= oldest:
            groups.setdefault(version, []).append(file)
    return dict(sorted(groups.items(), key=lambda item: numbers(item[0])))


def representative(files: Iterable[File]) -> File | None:
    """Choose the wheel to look into: for Linux x86_64 if there is one, of the newest CPython."""
    rank = {"x86_64": 3, "aarch64": 2, "any": 1, "": 0}
    wheels = [file for file in files if file.is_wheel]
    return max(
        wheels,
        key=lambda wheel: (rank[wheel.platform], python_order(wheel.python), wheel.name),
        default=None,
    )


def _members(web: Web, wheel: File, wanted: Sequence[str]) -> Iterator[tuple[str, str]]:
    """Read the members of a remote wheel whose names end in one of `wanted`."""
    try:
        with zipfile.ZipFile(io.BufferedReader(RemoteFile(web, wheel.url), BLOCK)) as archive:
            for name in archive.namelist():
                if name.endswith(tuple(wanted)) and name.count("/") == 1:
                    yield name, archive.read(name).decode("utf-8", "replace")
    except (zipfile.BadZipFile, zlib.error, EOFError) as error:
        raise RefreshError(f"{wheel.url}: not a complete wheel ({error})") from error


def look_into(web: Web, project: str, files: Sequence[File]) -> Release:
    """Read one release: its file names, and the metadata and version.py of one wheel."""
    wheel = representative(files)
    wheels: dict[str, list[str]] = {}
    for platform in ("aarch64", "any", "x86_64"):
        tags = {file.python for file in files if file.platform == platform}
        if tags:
            wheels[platform] = sorted(tags, key=python_order)
    metadata = version_py = ""
    if wheel is not None:
        if wheel.has_metadata:
            metadata = web.read(f"{wheel.url}.metadata").decode("utf-8", "replace")
        for name, text in _members(web, wheel, [".dist-info/METADATA", "/version.py"]):
            if name == f"{project}/version.py":
                version_py = text
            elif name.endswith("/METADATA"):
                metadata = metadata or text
        if not metadata:
            raise RefreshError(f"{wheel.url}: holds no METADATA")
    headers = email.parser.HeaderParser().parsestr(metadata)
    requires = [" ".join(line.split()) for line in headers.get_all("Requires-Dist", [])]
    assigned = {found["name"]: found["value"] for found in _ASSIGNMENT.finditer(version_py)}
    commit = assigned.get("git_version", "")
    return Release(
        commit=commit if re.fullmatch(r"[0-9a-f]{40}", commit) else None,
        cuda=assigned.get("cuda"),
        requires=sorted(line for line in requires if KEPT_REQUIREMENTS.match(line)),
        requires_python=headers.get("Requires-Python"),
        wheel=wheel.name if wheel else None,
        wheels=wheels,
        yanked=all(file.yanked for file in files),
    )


def take(web: Web, index: str, projects: Sequence[str], jobs: int) -> Snapshot:
    """Read everything the snapshot holds from an index."""
    snapshot: Snapshot = {}
    with ThreadPoolExecutor(jobs) as pool:
        try:
            waiting = {}
            for project in projects:
                groups = by_release(files_of(web, index, project), OLDEST.get(project, ()))
                if not groups:
                    raise RefreshError(f"{index}: {project} has no final release there")
                print(f"{project}: {len(groups)} releases", file=sys.stderr)
                snapshot[project] = {}
                for version, files in groups.items():
                    waiting[pool.submit(look_into, web, project, files)] = project, version
            for done, future in enumerate(as_completed(waiting), start=1):
                project, version = waiting[future]
                snapshot[project][version] = future.result()
                print(f"[{done}/{len(waiting)}] {project} {version}", file=sys.stderr)
        except BaseException:
            pool.shutdown(cancel_futures=True)
            raise
    return snapshot


# --------------------------------------------------------------------------- the snapshot


def as_table(snapshot: Snapshot) -> Table:
    """Turn a snapshot into what JSON can hold."""
    return {
        project: {version: asdict(release) for version, release in releases.items()}
        for project, releases in snapshot.items()
    }


def as_text(table: Table) -> str:
    """Write a snapshot down: the same releases always give the same text."""
    ordered = {
        project: dict(sorted(releases.items(), key=lambda item: numbers(item[0])))
        for project, releases in sorted(table.items())
    }
    return json.dumps(ordered, indent=1) + "\n"


def differences(before: Table, after: Table) -> list[str]:
    """Say, release by release, how two snapshots differ."""
    lines = []
    for project in sorted(before.keys() | after.keys()):
        then, now = before.get(project, {}), after.get(project, {})
        for version in sorted(then.keys() | now.keys(), key=numbers):
            if version not in now:
                lines.append(f"{project} {version}: no longer on the index")
            elif version not in then:
                lines.append(f"{project} {version}: new")
            elif then[version] != now[version]:
                fields = sorted(then[version].keys() | now[version].keys())
                changed = [f for f in fields if then[version].get(f) != now[version].get(f)]
                lines.append(f"{project} {version}: {', '.join(changed)} changed")
    return lines


def write_atomically(path: Path, content: bytes) -> None:
    """Replace a file in one step, so that nobody ever sees half of it."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.NamedTemporaryFile(
        dir=path.parent, prefix=f".{path.name}.", delete=False
    ) as file:
        try:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
            Path(file.name).chmod(0o644)
            Path(file.name).replace(path)
        except BaseException:
            Path(file.name).unlink(missing_ok=True)
            raise


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the program; 0: done or current, 1: out of date (--check), 2: it failed."""
    parser = argparse.ArgumentParser(description="Refresh the snapshot of PyPI's metadata.")
    parser.add_argument("--index", default=INDEX, help="simple index (default: %(default)s)")
    parser.add_argument("--snapshot", type=Path, default=SNAPSHOT, help="the file to write")
    parser.add_argument(
        "--project", action="append", help=f"only these (default: {', '.join(PROJECTS)})"
    )
    parser.add_argument("--check", action="store_true", help="write nothing; exit 1 if stale")
    parser.add_argument("--jobs", type=int, default=8, help="downloads at a time")
    parser.add_argument("--retries", type=int, default=len(RETRY_DELAYS_S), help="per download")
    options = parser.parse_args(arguments)

    delays = [RETRY_DELAYS_S[min(n, len(RETRY_DELAYS_S) - 1)] for n in range(options.retries)]
    try:
        old = options.snapshot.read_text(encoding="utf-8") if options.snapshot.exists() else "{}"
        before: Table = json.loads(old)
        taken = take(Web(delays), options.index, options.project or PROJECTS, options.jobs)
        # A project that was not asked for stays as it is.
        after = {**before, **as_table(taken)}
        changes = differences(before, after)
        if not options.check and old != as_text(after):
            write_atomically(options.snapshot, as_text(after).encode())
    except (RefreshError, OSError, json.JSONDecodeError) as error:
        print(f"refresh_pypi: {error}", file=sys.stderr)
        print("The snapshot has not been changed.", file=sys.stderr)
        return 2
    for line in changes:
        print(line)
    if options.check and changes:
        print(f"{options.snapshot} is out of date: run tools/refresh_pypi.py", file=sys.stderr)
        return 1
    print(f"{options.snapshot}: {len(changes)} releases differ from before", file=sys.stderr)
    return 0


if __name__ == "__main__":
    sys.exit(main())

"""Reading a conda package: what it says of itself, and whether it is whole.

Both forms: a .tar.bz2 of everything, and a .conda, which is a zip of two .tar.zst.
https://docs.conda.io/projects/conda-build/en/latest/resources/package-spec.html
"""

from __future__ import annotations

import hashlib
import json
import re
import tarfile
import zipfile
import zlib
from pathlib import Path
from typing import IO, cast

from torchsmith.errors import UsageError
from torchsmith.ship.archives import CHUNK, escapes, exhaust
from torchsmith.verify.errors import VerificationError

ENDINGS = (".conda", ".tar.bz2")

# Every field of index.json that a channel's record has; others are of no use to a solver.
_FIELDS = frozenset(
    [
        *("arch", "build", "build_number", "constrains", "depends", "extra_depends", "features"),
        *("flags", "license", "license_family", "name", "noarch", "platform"),
        *("preferred_env", "purls", "python_site_packages_path", "subdir", "timestamp"),
        *("track_features", "version"),
    ]
)
_SUBDIR = re.compile(r"noarch|[a-z0-9]+-[a-z0-9_]+")
_WANTED = ("info/index.json", "info/run_exports.json")

# A line of a channel's repodata.json.
Record = dict[str, object]


def stem(name: str) -> str:
    """NAME-VERSION-BUILD of a package's file."""
    for ending in ENDINGS:
        if name.endswith(ending):
            return name.removesuffix(ending)
    raise UsageError(
        f"{name} is not the name of a conda package", "They end in .conda or .tar.bz2."
    )


def read_record(path: Path) -> Record:
    """Read all of a package; return its line for the channel, or refuse it."""
    from zstandard import ZstdError

    try:
        found = _read_through(path)
        index = json.loads(found["info/index.json"])
        exports = json.loads(found.get("info/run_exports.json", b"{}"))
    except KeyError:
        raise _bad(path, "it has no info/index.json") from None
    except (tarfile.TarError, zipfile.BadZipFile, zlib.error, ZstdError, EOFError) as error:
        raise _bad(path, f"it cannot be unpacked: {error}") from None
    except OSError as error:
        raise _bad(path, f"it cannot be read: {error}") from None
    except (ValueError, RecursionError):
        raise _bad(path, "its info/index.json is not JSON") from None
    if not isinstance(index, dict):
        raise _bad(path, "its info/index.json is not a table")
    said = "-".join(str(index.get(key, "")) for key in ("name", "version", "build"))
    if said != stem(path.name):
        raise _bad(path, f"it calls itself {said}")
    subdir = index.get("subdir")
    if not isinstance(subdir, str) or not _SUBDIR.fullmatch(subdir):
        raise _bad(path, f"its subdir is {subdir!r}")
    record: Record = {
        key: value for key, value in index.items() if key in _FIELDS and value is not None
    }
    record.setdefault("depends", [])
    record.setdefault("build_number", 0)
    if exports:
        record["run_exports"] = exports
    return record | _marks(path)


def _bad(path: Path, why: str) -> VerificationError:
    return VerificationError(
        f"{path.name} is not a conda package to publish: {why}", "Build or download it again."
    )


def _marks(path: Path) -> Record:
    sha256, md5 = hashlib.sha256(), hashlib.md5(usedforsecurity=False)
    with path.open("rb") as file:
        while chunk := file.read(CHUNK):
            sha256.update(chunk)
            md5.update(chunk)
    return {"sha256": sha256.hexdigest(), "md5": md5.hexdigest(), "size": path.stat().st_size}


def _read_through(path: Path) -> dict[str, bytes]:
    """Unpack everything, to know that it can be; keep the two small files that are wanted."""
    if path.name.endswith(".tar.bz2"):
        with tarfile.open(path, "r:bz2") as tar:
            return _wanted(path, tar)
    import zstandard

    found: dict[str, bytes] = {}
    with zipfile.ZipFile(path) as archive:
        for part in ("info", "pkg"):
            name = f"{part}-{stem(path.name)}.tar.zst"
            if name not in archive.namelist():
                raise _bad(path, f"it has no {name}")
            with archive.open(name) as compressed:
                with (
                    zstandard.ZstdDecompressor().stream_reader(compressed, closefd=False) as stream,
                    tarfile.open(fileobj=cast("IO[bytes]", stream), mode="r|") as tar,
                ):
                    found |= _wanted(path, tar)
                # To its very end, where zip's own checksum is compared.
                exhaust(compressed)
    return found


def _wanted(path: Path, tar: tarfile.TarFile) -> dict[str, bytes]:
    found: dict[str, bytes] = {}
    for member in tar:
        if escapes(member.name):
            raise _bad(path, f"{member.name} leaves the folder it is unpacked in")
        stream = tar.extractfile(member) if member.isfile() else None
        if stream is not None and member.name in _WANTED:
            found[member.name] = stream.read()
        elif stream is not None:
            exhaust(stream)
    return found

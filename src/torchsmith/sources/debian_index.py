"""Reading a Debian archive: its signed list of indexes, and the source package in them."""

from __future__ import annotations

import gzip
import lzma
import os
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from torchsmith.errors import SourceError
from torchsmith.sources.programs import call
from torchsmith.temporary import temporary_folder

KEYRING = Path("/usr/share/keyrings/debian-archive-keyring.gpg")
# OpenPGP's numbers of SHA-256, 384, 512 and 224: a signature over a weaker hash proves nothing.
_STRONG = frozenset({"8", "9", "10", "11"})
_FILE_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9.+_~-]*")
_SHA256 = re.compile(r"[0-9a-f]{64}")
# Debian marks what it took out of or did to upstream's release; the release is the same.
_REPACKED = re.compile(r"[+~.-](?:dfsg|ds|repack|debian)[0-9A-Za-z.+~]*$")


@dataclass(frozen=True, slots=True)
class File:
    """A file an index vouches for."""

    name: str
    size: int
    sha256: str


@dataclass(frozen=True, slots=True)
class Release:
    """A suite's list of indexes, its signature verified."""

    fields: Mapping[str, str]
    files: Mapping[str, File]
    key: str


@dataclass(frozen=True, slots=True)
class SourcePackage:
    """A source package as an index lists it."""

    name: str
    version: str
    format: str
    folder: str
    files: tuple[File, ...]

    @property
    def upstream(self) -> str:
        """Upstream's own version: without epoch, revision and Debian's marks."""
        version = self.version.partition(":")[2] or self.version
        version = version.rpartition("-")[0] or version
        return _REPACKED.sub("", version)


def verified(signed: bytes, keyring: Path, what: str) -> tuple[str, str]:
    """The text a clear-signed file vouches for, and the fingerprint of the key that signed it.

    Only what gpgv itself puts out is read: text around the signed part is nobody's word.
    """
    if not keyring.is_file():
        raise SourceError(
            f"the keys of Debian's archive are not at {keyring}",
            "apt-get install debian-archive-keyring",
        )
    with temporary_folder("gpgv") as folder:
        name = str(folder)
        (folder / "signed").write_bytes(signed)
        argv = ["gpgv", "--status-fd", "1", "--keyring", str(keyring.resolve())]
        argv += ["--output", str(folder / "text"), str(folder / "signed")]
        env = {"PATH": os.environ.get("PATH", ""), "LC_ALL": "C", "GNUPGHOME": name, "HOME": name}
        said = call(argv, env=env, package="gpgv")
        status = [
            line.split()[1:] for line in said.out.splitlines() if line.startswith("[GNUPG:] ")
        ]
        words = {fields[0] for fields in status if fields}
        # Several keys sign; as apt does, one known good one is enough and one bad one too many.
        keys = [
            fields[1]
            for fields in status
            if fields[0] == "VALIDSIG" and len(fields) > 8 and fields[8] in _STRONG
        ]
        if "BADSIG" in words or "GOODSIG" not in words or not keys:
            seen = ", ".join(sorted(words & _TROUBLE)) or "no signature"
            raise SourceError(
                f"{what} is not signed by a key of {keyring.name} ({seen})",
                "The mirror is out of date or not Debian's; an old keyring is renewed with"
                " apt-get install debian-archive-keyring.",
            )
        return (folder / "text").read_text("utf-8"), keys[0]


_TROUBLE = frozenset(
    {"BADSIG", "ERRSIG", "NO_PUBKEY", "EXPSIG", "EXPKEYSIG", "REVKEYSIG", "NODATA"}
)


def stanzas(text: str) -> Iterator[dict[str, str]]:
    """The paragraphs of a Debian control file, each field with its lines."""
    fields: dict[str, str] = {}
    last = ""
    for line in text.split("\n"):
        if not line.strip():
            if fields:
                yield fields
            fields, last = {}, ""
        elif line[0] in " \t":
            fields[last] = f"{fields.get(last, '')}\n{line.strip()}"
        else:
            last, _, value = line.partition(":")
            fields[last] = value.strip()
    if fields:
        yield fields


def _files(field: str, *, plain: bool) -> Iterator[File]:
    for line in field.splitlines():
        parts = line.split()
        if len(parts) != 3:
            continue
        sha256, size, name = parts
        fine = _SHA256.fullmatch(sha256) and size.isascii() and size.isdigit()
        if not fine or (plain and not _FILE_NAME.fullmatch(name)):
            raise SourceError(f"the archive's index has a line that makes no sense: {line!r}")
        yield File(name, int(size), sha256)


def read_release(signed: bytes, keyring: Path, suite: str, what: str) -> Release:
    """A suite's InRelease file, verified, and really of that suite."""
    text, key = verified(signed, keyring, what)
    fields = next(stanzas(text), {})
    if suite not in (fields.get("Suite"), fields.get("Codename")):
        raise SourceError(
            f"{what} is of {fields.get('Codename', 'no suite')}, not of {suite}",
            "The mirror gives the wrong suite: use another, with DEBIAN_MIRROR.",
        )
    files = {file.name: file for file in _files(fields.get("SHA256", ""), plain=False)}
    return Release(fields, files, key)


def unpacked(index: bytes, name: str) -> str:
    """An index's text."""
    try:
        plain = lzma.decompress(index) if name.endswith(".xz") else gzip.decompress(index)
        return plain.decode("utf-8")
    except (lzma.LZMAError, OSError, EOFError, ValueError) as error:
        raise SourceError(f"{name} cannot be unpacked: {error}") from None


def packages(index: str, name: str) -> Iterator[SourcePackage]:
    """Every version of a source package an index lists."""
    mark = f"Package: {name}\n"
    # An index has 40,000 stanzas: only the ones that name the package are read.
    for start in re.finditer(rf"(?:\A|(?<=\n\n)){re.escape(mark)}", index):
        end = index.find("\n\n", start.start())
        fields = next(stanzas(index[start.start() : end if end >= 0 else len(index)]))
        folder = fields.get("Directory", "")
        if folder.startswith("/") or ".." in folder.split("/"):
            raise SourceError(f"the archive's index puts {name} in {folder!r}")
        files = tuple(_files(fields.get("Checksums-Sha256", ""), plain=True))
        yield SourcePackage(name, fields["Version"], fields.get("Format", "1.0"), folder, files)


def _order(char: str) -> int:
    if char == "~":
        return -1
    return ord(char) if char.isalpha() else ord(char) + 256


def version_key(version: str) -> tuple[object, ...]:
    """Debian's order of versions: text and numbers in turn, '~' before the end of the text."""
    epoch, colon, rest = version.partition(":")
    number, rest = (int(epoch), rest) if colon and epoch.isdigit() else (0, version)
    upstream, _, revision = rest.rpartition("-")
    pieces: list[object] = [number]
    for part in (upstream or revision, revision if upstream else ""):
        turns = re.findall(r"(\D*)(\d*)", part)
        pieces.append(tuple(((*map(_order, text), 0), int(digits or 0)) for text, digits in turns))
    return tuple(pieces)

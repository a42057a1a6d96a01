"""Debian source packages: from the real archive, and from small ones signed here."""

from __future__ import annotations

import gzip
import hashlib
import http.server
import io
import lzma
import shutil
import subprocess
import tarfile
import tempfile
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from msgspec import structs

from torchsmith.errors import NotServedError, SourceError, UnreachableError
from torchsmith.resolve.models import SourceChoice
from torchsmith.sources.debian import SourcePackage, fetch_debian, version_key
from torchsmith.sources.download import Retry
from torchsmith.sources.fetch import fetch
from torchsmith.sources.tree import FetchedSource, quiet

pytestmark = pytest.mark.integration

SWIFT = Retry(attempts=2, pause_s=0.01)
CHOICE = SourceChoice("debian", suite="demo", package="pytorch", ref="2.6.0")
PATCH = b"--- a/a.txt\n+++ b/a.txt\n@@ -1 +1 @@\n-old\n+new\n"


class Signer:
    """A throw-away key."""

    def __init__(self) -> None:
        # gpg's agent has a socket in here, whose path must be short.
        self.home = Path(tempfile.mkdtemp(prefix="ts-gpg-"))
        self.gpg(
            "--passphrase", "", "--quick-gen-key", "demo@example.org", "ed25519", "sign", "never"
        )
        self.keyring = self.home / "keyring.gpg"
        self.keyring.write_bytes(self.gpg("--export"))

    def gpg(self, *arguments: str, given: bytes = b"") -> bytes:
        argv = ["gpg", "--homedir", str(self.home), "--batch", "--quiet", *arguments]
        return subprocess.run(argv, input=given, capture_output=True, check=True).stdout

    def close(self) -> None:
        subprocess.run(["gpgconf", "--homedir", str(self.home), "--kill", "all"], check=False)
        # The agent removes its sockets when it ends, which may be at the same time.
        shutil.rmtree(self.home, ignore_errors=True)


@pytest.fixture(scope="module")
def signer() -> Iterator[Signer]:
    made = Signer()
    yield made
    made.close()


def packed(kind: str, **files: bytes) -> bytes:
    file = io.BytesIO()
    with tarfile.open(fileobj=file, mode=f"w:{kind}") as tar:  # type: ignore[call-overload]
        for name, content in files.items():
            info = tarfile.TarInfo(name.replace("__", "/").replace("_DOT_", "."))
            info.size = len(content)
            tar.addfile(info, io.BytesIO(content))
    return file.getvalue()


ORIG = packed(
    "gz", **{"pytorch-2.6.0__a_DOT_txt": b"old\n", "pytorch-2.6.0__debian__x": b"upstream's"}
)
PART = packed(
    "xz",
    debian__changelog=b"pytorch\n",
    debian__patches__series=b"# why\n\nfirst.patch -p1\nempty.patch\n",
    **{"debian__patches__first.patch": PATCH, "debian__patches__empty.patch": b"gone upstream\n"},
)


@dataclass
class Mirror:
    """A Debian archive in a folder, served on this machine."""

    root: Path
    signer: Signer
    url: str = ""
    asked: list[str] = field(default_factory=list)

    def publish(
        self, files: dict[str, bytes], *, format_: str = "3.0 (quilt)", codename: str = "demo",
        version: str = "2.6.0+dfsg-1", more: str = "",
    ) -> None:  # fmt: skip
        pool = self.root / "pool"
        pool.mkdir(exist_ok=True)
        sums = ""
        for name, content in files.items():
            (pool / name).write_bytes(content)
            sums += f" {hashlib.sha256(content).hexdigest()} {len(content)} {name}\n"
        stanza = f"Package: pytorch\nVersion: {version}\nFormat: {format_}\nDirectory: pool\n"
        other = "Package: other\nVersion: 1\nDirectory: pool\n\n"
        index = lzma.compress(f"{other}{stanza}Checksums-Sha256:\n{sums}\n{other}".encode())
        folder = self.root / "dists" / "demo" / "main" / "source"
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "Sources.xz").write_bytes(index)
        release = (
            f"Origin: Demo\nCodename: {codename}\nDate: Sat, 12 Sep 2026 07:55:41 UTC\n"
            f"{more}Components: main\nSHA256:\n {hashlib.sha256(index).hexdigest()} {len(index)}"
            " main/source/Sources.xz\n"
        )
        self.inrelease.write_bytes(self.signer.gpg("--clearsign", given=release.encode()))

    @property
    def inrelease(self) -> Path:
        return self.root / "dists" / "demo" / "InRelease"


@pytest.fixture
def mirror(tmp_path: Path, signer: Signer, monkeypatch: pytest.MonkeyPatch) -> Iterator[Mirror]:
    here = Mirror(tmp_path / "mirror", signer)
    here.root.mkdir()

    class Handler(http.server.SimpleHTTPRequestHandler):
        def __init__(self, *given: object, **named: object) -> None:
            super().__init__(*given, directory=str(here.root))  # type: ignore[arg-type]

        def log_request(self, code: object = "-", size: object = "-") -> None:
            here.asked.append(self.path)

        def log_error(self, format: str, *args: object) -> None:  # noqa: A002
            """Stay silent."""

    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler) as running:
        here.url = f"http://127.0.0.1:{running.server_address[1]}"
        monkeypatch.setenv("DEBIAN_MIRROR", here.url + "/")
        threading.Thread(target=running.serve_forever, daemon=True).start()
        here.publish(
            {
                "pytorch_2.6.0+dfsg-1.dsc": b"dsc",
                "pytorch_2.6.0+dfsg.orig.tar.gz": ORIG,
                "pytorch_2.6.0+dfsg-1.debian.tar.xz": PART,
            }
        )
        yield here
        running.shutdown()


def bring(
    mirror: Mirror, tmp_path: Path, choice: SourceChoice = CHOICE, name: str = "tree"
) -> FetchedSource:
    (tmp_path / name).mkdir()
    return fetch_debian(
        choice, tmp_path / name, cache=tmp_path / "cache", progress=quiet, retry=SWIFT,
        keyring=mirror.signer.keyring,
    )  # fmt: skip


def test_a_package_comes_whole_with_its_patches(mirror: Mirror, tmp_path: Path) -> None:
    brought = bring(mirror, tmp_path)
    assert (tmp_path / "tree/a.txt").read_text() == "new\n"
    assert (tmp_path / "tree/debian/changelog").exists()
    assert not (tmp_path / "tree/debian/x").exists()
    assert brought.evidence["version"] == "2.6.0+dfsg-1"
    assert brought.evidence["patches"] == "1"
    orig = brought.evidence["sha256 pytorch_2.6.0+dfsg.orig.tar.gz"]
    assert orig == hashlib.sha256(ORIG).hexdigest()
    assert brought.notes == ()
    assert brought.location == f"{mirror.url}/pool"


def test_where_it_will_do_upstreams_part_is_taken_alone_and_said_so(
    mirror: Mirror, tmp_path: Path
) -> None:
    (mirror.root / "pool/pytorch_2.6.0+dfsg-1.debian.tar.xz").unlink()
    (mirror.root / "pool/pytorch_2.6.0+dfsg-1.dsc").unlink()
    brought = bring(mirror, tmp_path, structs.replace(CHOICE, upstream_alone=True))
    assert (tmp_path / "tree/a.txt").read_text() == "old\n"
    assert brought.evidence["patches"] == "0"
    assert any("patch series is not applied" in note for note in brought.notes)
    assert any(".dsc" in note for note in brought.notes)


def test_upstreams_part_alone_is_held_against_the_signed_list_too(
    mirror: Mirror, tmp_path: Path
) -> None:
    (mirror.root / "pool/pytorch_2.6.0+dfsg-1.debian.tar.xz").unlink()
    orig = mirror.root / "pool/pytorch_2.6.0+dfsg.orig.tar.gz"
    orig.write_bytes(orig.read_bytes()[:-1] + b"!")
    with pytest.raises(SourceError, match=r"orig\.tar\.gz") as caught:
        bring(mirror, tmp_path, structs.replace(CHOICE, upstream_alone=True))
    assert not isinstance(caught.value, UnreachableError)
    assert not any((tmp_path / "tree").iterdir())


def test_where_it_will_not_do_a_missing_part_of_debians_is_an_error(
    mirror: Mirror, tmp_path: Path
) -> None:
    (mirror.root / "pool/pytorch_2.6.0+dfsg-1.debian.tar.xz").unlink()
    with pytest.raises(NotServedError, match="cannot be built without"):
        bring(mirror, tmp_path)
    assert not any((tmp_path / "tree").iterdir())


def test_with_debians_part_at_hand_it_is_taken_even_where_it_could_be_done_without(
    mirror: Mirror, tmp_path: Path
) -> None:
    brought = bring(mirror, tmp_path, structs.replace(CHOICE, upstream_alone=True))
    assert brought.evidence["patches"] == "1"
    assert brought.notes == ()


def test_without_upstreams_part_the_suites_are_named(mirror: Mirror, tmp_path: Path) -> None:
    (mirror.root / "pool/pytorch_2.6.0+dfsg.orig.tar.gz").unlink()
    with pytest.raises(NotServedError, match=r"orig\.tar\.gz") as caught:
        bring(mirror, tmp_path)
    assert "trixie: pytorch 2.6.0" in caught.value.hint
    assert not any((tmp_path / "tree").iterdir())


def test_another_version_is_refused_with_what_there_is(mirror: Mirror, tmp_path: Path) -> None:
    other = SourceChoice("debian", suite="demo", package="pytorch", ref="2.5.1")
    with pytest.raises(NotServedError, match=r"has pytorch 2\.6\.0, not 2\.5\.1") as caught:
        bring(mirror, tmp_path, other)
    assert "bookworm: pytorch 1.13.1" in caught.value.hint


def test_an_unknown_package_or_suite_is_refused(mirror: Mirror, tmp_path: Path) -> None:
    with pytest.raises(NotServedError, match="no source package 'nothing'"):
        bring(mirror, tmp_path, SourceChoice("debian", suite="demo", package="nothing"), "1")
    with pytest.raises(NotServedError, match="no mirror has a suite 'never'"):
        bring(mirror, tmp_path, SourceChoice("debian", suite="never", package="pytorch"), "2")
    with pytest.raises(SourceError, match="not the name"):
        bring(mirror, tmp_path, SourceChoice("debian", suite="../x", package="pytorch"), "3")


def test_an_older_format_is_unpacked_with_its_diff(mirror: Mirror, tmp_path: Path) -> None:
    new = b"--- p.orig/debian/rules\n+++ p/debian/rules\n@@ -0,0 +1 @@\n+#!/usr/bin/make -f\n"
    files = {
        "p.dsc": b"dsc",
        "p_2.6.0.orig.tar.gz": ORIG,
        "p_2.6.0-1.diff.gz": gzip.compress(PATCH + new),
    }
    mirror.publish(files, format_="1.0", version="2.6.0-1")
    bring(mirror, tmp_path)
    assert (tmp_path / "tree/a.txt").read_text() == "new\n"
    assert (tmp_path / "tree/debian/rules").exists()


def test_a_native_package_and_a_component_are_unpacked(mirror: Mirror, tmp_path: Path) -> None:
    mirror.publish({"p.dsc": b"d", "p_2.6.0.tar.xz": packed("xz", p__b=b"b")}, version="2.6.0")
    bring(mirror, tmp_path, name="native")
    assert (tmp_path / "native/b").exists()
    mirror.publish(
        {
            "p.dsc": b"d",
            "p_2.6.0.orig-extra.tar.gz": packed("gz", e__c=b"c"),
            "p_2.6.0.orig.tar.gz": ORIG,
            "p_2.6.0-1.debian.tar.xz": PART,
        }
    )
    bring(mirror, tmp_path, name="component")
    assert (tmp_path / "component/extra/c").exists()
    assert (tmp_path / "component/a.txt").read_text() == "new\n"


def test_a_changed_list_is_refused(mirror: Mirror, tmp_path: Path) -> None:
    text = mirror.inrelease.read_bytes()
    mirror.inrelease.write_bytes(text.replace(b"Origin: Demo", b"Origin: Evil"))
    with pytest.raises(SourceError, match="BADSIG"):
        bring(mirror, tmp_path)


@pytest.mark.parametrize(
    "unsigned", [b"", b"Origin: Demo\nCodename: demo\n", b"<html>portal</html>"]
)
def test_an_unsigned_list_is_refused(mirror: Mirror, tmp_path: Path, unsigned: bytes) -> None:
    mirror.inrelease.write_bytes(unsigned)
    with pytest.raises(SourceError, match="not signed"):
        bring(mirror, tmp_path)


def test_text_around_the_signed_part_counts_for_nothing(mirror: Mirror, tmp_path: Path) -> None:
    text = mirror.inrelease.read_bytes()
    evil = f"Codename: demo\nSHA256:\n {'0' * 64} 1 main/source/Sources.xz\n\n".encode()
    mirror.inrelease.write_bytes(evil + text + evil)
    brought = bring(mirror, tmp_path)
    assert brought.evidence["patches"] == "1"


def test_a_list_signed_by_a_stranger_is_refused(mirror: Mirror, tmp_path: Path) -> None:
    (tmp_path / "tree").mkdir()
    with pytest.raises(SourceError, match="NO_PUBKEY") as caught:
        fetch_debian(CHOICE, tmp_path / "tree", cache=tmp_path / "c", progress=quiet, retry=SWIFT)
    assert "debian-archive-keyring" in caught.value.hint


def test_without_keys_the_command_that_brings_them_is_told(mirror: Mirror, tmp_path: Path) -> None:
    (tmp_path / "tree").mkdir()
    with pytest.raises(SourceError) as caught:
        fetch_debian(
            CHOICE, tmp_path / "tree", cache=tmp_path / "c", progress=quiet, retry=SWIFT,
            keyring=tmp_path / "none.gpg",
        )  # fmt: skip
    assert caught.value.hint == "apt-get install debian-archive-keyring"


def test_a_list_of_another_suite_is_refused(mirror: Mirror, tmp_path: Path) -> None:
    mirror.publish({"p_2.6.0.tar.xz": PART}, codename="older")
    with pytest.raises(SourceError, match="is of older, not of demo"):
        bring(mirror, tmp_path)


def test_a_list_past_its_date_is_remarked_on(mirror: Mirror, tmp_path: Path) -> None:
    files = {"p_2.6.0.tar.xz": packed("xz", p__b=b"b")}
    mirror.publish(files, more="Valid-Until: Sat, 02 Jan 2021 00:00:00 UTC\n", version="2.6.0")
    assert "02 Jan 2021" in bring(mirror, tmp_path).notes[0]


@pytest.mark.parametrize(
    "path", ["dists/demo/main/source/Sources.xz", "pool/pytorch_2.6.0+dfsg.orig.tar.gz"]
)
def test_a_changed_file_is_refused(mirror: Mirror, tmp_path: Path, path: str) -> None:
    content = bytearray((mirror.root / path).read_bytes())
    content[-20] ^= 1
    (mirror.root / path).write_bytes(content)
    with pytest.raises(SourceError, match="not the file expected") as caught:
        bring(mirror, tmp_path)
    assert not isinstance(caught.value, UnreachableError)
    assert not any((tmp_path / "tree").iterdir())


def test_a_second_time_needs_the_list_only_and_not_even_that(
    mirror: Mirror, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    bring(mirror, tmp_path, name="one")
    mirror.asked.clear()
    bring(mirror, tmp_path, name="two")
    assert mirror.asked == ["/dists/demo/InRelease"]
    monkeypatch.setenv("DEBIAN_MIRROR", "http://127.0.0.1:9/debian")
    brought = bring(mirror, tmp_path, name="three")
    assert "cache" in brought.notes[0]


def test_a_package_of_the_real_archive_is_verified_and_patched(tmp_path: Path) -> None:
    lists = Path("/var/lib/apt/lists")
    before = sorted(lists.glob("*"))
    choice = SourceChoice("debian", suite="trixie", package="cowsay", ref="3.03")
    brought = fetch(choice, tmp_path / "tree", cache=tmp_path / "cache")
    assert brought.evidence["version"].startswith("3.03+dfsg2-")
    assert len(brought.evidence["signed-by"]) == 40
    assert int(brought.evidence["patches"]) > 0
    assert "Source: cowsay" in (tmp_path / "tree/debian/control").read_text()
    assert sorted(lists.glob("*")) == before


def test_where_no_git_server_answers_debian_has_the_release(tmp_path: Path) -> None:
    choice = SourceChoice(
        "git", url="http://127.0.0.1:9/cowsay", ref="v3.03", suite="trixie", package="cowsay"
    )
    brought = fetch(choice, tmp_path / "tree", cache=tmp_path / "cache")
    assert brought.kind == "debian"
    assert "127.0.0.1:9" in brought.notes[0]
    assert "taken instead" in brought.notes[0]
    branch = SourceChoice("git", url=choice.url, ref="main", suite="trixie", package="cowsay")
    with pytest.raises(UnreachableError):
        fetch(branch, tmp_path / "second", cache=tmp_path / "cache")


def test_versions_are_ordered_as_dpkg_orders_them() -> None:
    ordered = [
        "1.0~rc1-1",
        "1.0-1",
        "1.0-2",
        "1.0-10",
        "1.0+dfsg-1",
        "1.0.1-1",
        "1.2-1",
        "1.10-1",
        "2:0.1-1",
    ]
    shuffled = [*ordered[4:], *ordered[:4]]
    assert sorted(shuffled, key=version_key) == ordered


@pytest.mark.parametrize(
    ("version", "upstream"),
    [
        ("2.6.0+dfsg-7", "2.6.0"),
        ("1.13.1+dfsg-4", "1.13.1"),
        ("0.21.0-3", "0.21.0"),
        ("3.03+dfsg2-8", "3.03"),
        ("1:2.0~rc1-1", "2.0~rc1"),
        ("3.25", "3.25"),
        ("2.9.0+ds-2", "2.9.0"),
    ],
)
def test_the_upstream_version_is_without_debians_marks(version: str, upstream: str) -> None:
    assert SourcePackage("p", version, "1.0", "pool", ()).upstream == upstream

"""Downloads: resumed, retried, checked; against a real server on this machine."""

from __future__ import annotations

import hashlib
import http.server
import io
import os
import tarfile
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from torchsmith.errors import NotServedError, SourceError, UnreachableError
from torchsmith.resolve.models import SourceChoice
from torchsmith.sources.download import Retry, download, read_url
from torchsmith.sources.fetch import fetch_archive
from torchsmith.sources.tree import quiet

pytestmark = pytest.mark.unit

CONTENT = os.urandom(3_000_000)
SHA256 = hashlib.sha256(CONTENT).hexdigest()
SWIFT = Retry(attempts=3, pause_s=0.01, timeout_s=5)


@dataclass
class Site:
    """A server's files, how it behaves, and what it was asked."""

    url: str = ""
    files: dict[str, bytes] = field(default_factory=dict)
    # Bytes after which a connection is cut, one for each request to come.
    cuts: list[int] = field(default_factory=list)
    errors: list[int] = field(default_factory=list)
    ranges: bool = True
    asked: list[tuple[str, str]] = field(default_factory=list)
    logins: list[str] = field(default_factory=list)


@pytest.fixture
def site() -> Iterator[Site]:
    here = Site()

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            wanted = self.headers.get("Range", "")
            here.asked.append((self.path, wanted))
            here.logins.append(self.headers.get("Authorization", ""))
            if self.path.startswith("/to?"):
                self.send_response(302)
                self.send_header("Location", self.path[4:])
                self.end_headers()
                return
            content = here.files.get(self.path)
            if here.errors or content is None:
                self.send_error(here.errors.pop(0) if here.errors else 404)
                return
            start = int(wanted[6:-1]) if wanted and here.ranges else 0
            if start >= len(content) and start:
                self.send_error(416)
                return
            self.send_response(206 if start else 200)
            if start:
                self.send_header(
                    "Content-Range", f"bytes {start}-{len(content) - 1}/{len(content)}"
                )
            self.send_header("Content-Length", str(len(content) - start))
            self.end_headers()
            end = start + here.cuts.pop(0) if here.cuts else len(content)
            self.wfile.write(content[start:end])

        def log_message(self, format: str, *args: object) -> None:  # noqa: A002
            """Stay silent."""

    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        here.url = f"http://127.0.0.1:{server.server_address[1]}"
        here.files["/f"] = CONTENT
        thread = threading.Thread(target=server.serve_forever, daemon=True)
        thread.start()
        yield here
        server.shutdown()


def test_a_file_is_kept_by_its_hash_and_not_fetched_twice(site: Site, tmp_path: Path) -> None:
    seen: list[tuple[str, int | None, int | None]] = []
    path, used = download(
        [f"{site.url}/f"], tmp_path, sha256=SHA256, progress=lambda *report: seen.append(report)
    )
    assert (path.read_bytes(), used) == (CONTENT, f"{site.url}/f")
    assert seen[-1] == ("f", len(CONTENT), len(CONTENT))
    assert download([f"{site.url}/f"], tmp_path, sha256=SHA256) == (path, "")
    assert len(site.asked) == 1


def test_a_cut_transfer_goes_on_where_it_stopped(site: Site, tmp_path: Path) -> None:
    site.cuts = [1_000_000, 500_000]
    path, _ = download([f"{site.url}/f"], tmp_path, sha256=SHA256, retry=SWIFT)
    assert path.read_bytes() == CONTENT
    assert [wanted for _, wanted in site.asked] == ["", "bytes=1000000-", "bytes=1500000-"]


def test_the_next_attempt_brings_only_what_is_missing(site: Site, tmp_path: Path) -> None:
    site.cuts = [2_000_000]
    with pytest.raises(UnreachableError, match="2000000 of 3000000"):
        download([f"{site.url}/f"], tmp_path, sha256=SHA256, retry=Retry(1))
    assert not (tmp_path / "files" / SHA256).exists()
    path, _ = download([f"{site.url}/f"], tmp_path, sha256=SHA256, retry=SWIFT)
    assert path.read_bytes() == CONTENT
    assert site.asked[-1] == ("/f", "bytes=2000000-")


def test_a_server_without_ranges_sends_the_whole_again(site: Site, tmp_path: Path) -> None:
    site.cuts, site.ranges = [1_000_000], False
    path, _ = download([f"{site.url}/f"], tmp_path, sha256=SHA256, retry=SWIFT)
    assert path.read_bytes() == CONTENT


@pytest.mark.parametrize("size", [10, 4_000_000])
def test_a_part_of_another_file_is_thrown_away(site: Site, tmp_path: Path, size: int) -> None:
    (tmp_path / "files").mkdir()
    (tmp_path / "files" / f"{SHA256}.part").write_bytes(bytes(size))
    path, _ = download([f"{site.url}/f"], tmp_path, sha256=SHA256, size=len(CONTENT), retry=SWIFT)
    assert path.read_bytes() == CONTENT


def test_a_busy_server_is_asked_again(site: Site, tmp_path: Path) -> None:
    site.errors = [503, 429]
    path, _ = download([f"{site.url}/f"], tmp_path, sha256=SHA256, retry=SWIFT)
    assert path.read_bytes() == CONTENT


def test_a_wrong_file_is_refused_and_not_kept(site: Site, tmp_path: Path) -> None:
    with pytest.raises(SourceError, match="not the file expected") as caught:
        download([f"{site.url}/f"], tmp_path, sha256="0" * 64, retry=SWIFT)
    assert SHA256 in caught.value.message
    assert [p.name for p in (tmp_path / "files").iterdir()] == [f"{'0' * 64}.lock"]


def test_a_file_longer_than_listed_is_refused(site: Site, tmp_path: Path) -> None:
    with pytest.raises(SourceError, match="more than the 1000 expected"):
        download([f"{site.url}/f"], tmp_path, sha256=SHA256, size=1000, retry=SWIFT)


def test_a_damaged_cache_is_mended(site: Site, tmp_path: Path) -> None:
    path, _ = download([f"{site.url}/f"], tmp_path, sha256=SHA256)
    path.write_bytes(b"damaged")
    path, used = download([f"{site.url}/f"], tmp_path, sha256=SHA256)
    assert used
    assert path.read_bytes() == CONTENT


def test_mirrors_are_tried_in_order(site: Site, tmp_path: Path) -> None:
    urls = [f"{site.url}/none", "http://127.0.0.1:9/f", f"{site.url}/f"]
    _, used = download(urls, tmp_path, sha256=SHA256, retry=SWIFT)
    assert used == urls[2]


def test_a_missing_file_is_told_from_a_silent_server(site: Site, tmp_path: Path) -> None:
    with pytest.raises(NotServedError, match="404"):
        download([f"{site.url}/none"], tmp_path, sha256=SHA256, retry=SWIFT)
    with pytest.raises(UnreachableError, match="refused") as caught:
        download(["http://127.0.0.1:9/f"], tmp_path, sha256=SHA256, retry=SWIFT)
    assert not isinstance(caught.value, NotServedError)


@pytest.mark.parametrize("target", ["file:///etc/passwd", "ftp://127.0.0.1/f"])
def test_a_redirect_leads_to_web_servers_only(site: Site, target: str) -> None:
    with pytest.raises(SourceError):
        read_url(f"{site.url}/to?{target}", limit=1 << 20, retry=SWIFT)


def test_a_redirect_is_followed_without_the_password(site: Site) -> None:
    url = site.url.replace("//", "//me:p%40ss@") + "/to?/f"
    assert read_url(url, limit=1 << 23, retry=SWIFT) == CONTENT
    assert site.logins == ["Basic bWU6cEBzcw==", ""]


def test_an_error_shows_no_password(site: Site) -> None:
    with pytest.raises(SourceError) as caught:
        read_url(site.url.replace("//", "//me:secret@") + "/none", limit=1, retry=SWIFT)
    assert "secret" not in caught.value.message


def test_an_archive_comes_from_the_mirror_that_has_it(site: Site, tmp_path: Path) -> None:
    file = io.BytesIO()
    with tarfile.open(fileobj=file, mode="w:xz") as tar:
        info = tarfile.TarInfo("p/a")
        tar.addfile(info)
    site.files["/p.tar.xz"] = file.getvalue()
    sha256 = hashlib.sha256(file.getvalue()).hexdigest()
    choice = SourceChoice(
        "archive", url=f"{site.url}/x.tar.xz", mirrors=(f"{site.url}/p.tar.xz",), sha256=sha256
    )
    for folder, note in (("first", "the mirror"), ("second", "cache")):
        (tmp_path / folder).mkdir()
        brought = fetch_archive(
            choice, tmp_path / folder, cache=tmp_path / "cache", progress=quiet, retry=SWIFT
        )
        assert note in brought.notes[0]
        assert (tmp_path / folder / "a").is_file()

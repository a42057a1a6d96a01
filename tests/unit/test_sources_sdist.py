"""A source archive of a package index: found by its hash, never run, and held to its version."""

from __future__ import annotations

import gzip
import hashlib
import io
import tarfile
import threading
import zipfile
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from torchsmith.errors import NotServedError, SourceError
from torchsmith.resolve.models import SourceChoice
from torchsmith.sources.fetch import fetch
from torchsmith.sources.sdist import indexes, linked

pytestmark = pytest.mark.unit


def archive(name: str, version: str, **more: str) -> bytes:
    """An sdist of a project; `more` are further members, of any name."""
    files = {
        f"{name}-{version}/PKG-INFO": f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n",
        f"{name}-{version}/setup.py": "raise SystemExit('a fetch runs nothing')\n",
        **more,
    }
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w") as tar:
        for path, text in files.items():
            member = tarfile.TarInfo(path)
            member.size = len(text)
            tar.addfile(member, io.BytesIO(text.encode()))
    return gzip.compress(packed.getvalue(), mtime=0)


GOOD = archive("torch_tiny", "1.2")
HASH = hashlib.sha256(GOOD).hexdigest()


class Index:
    """A package index on this machine: pages and files, and what was asked of it."""

    def __init__(self) -> None:
        self.asked: list[str] = []
        self.content: dict[str, bytes] = {}
        index = self

        class Answers(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                index.asked.append(self.path)
                body = index.content.get(self.path)
                self.send_response(404 if body is None else 200)
                self.send_header("Content-Length", str(len(body or b"")))
                self.end_headers()
                self.wfile.write(body or b"")

            def log_message(self, format: str, *args: object) -> None:  # noqa: A002
                """Stay silent."""

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Answers)
        threading.Thread(target=self.server.serve_forever, daemon=True).start()
        self.url = f"http://127.0.0.1:{self.server.server_port}/simple"

    def offer(self, file: bytes, sha256: str = "") -> None:
        found = sha256 or hashlib.sha256(file).hexdigest()
        link = f'<a href="../../files/torch_tiny-1.2.tar.gz#sha256={found}">torch_tiny</a>'
        self.content["/simple/torch-tiny/"] = f"<html>{link}</html>".encode()
        self.content["/files/torch_tiny-1.2.tar.gz"] = file


@pytest.fixture
def index(monkeypatch: pytest.MonkeyPatch) -> Iterator[Index]:
    made = Index()
    monkeypatch.setenv("PIP_INDEX_URL", made.url)
    monkeypatch.delenv("PIP_EXTRA_INDEX_URL", raising=False)
    monkeypatch.setenv("no_proxy", "127.0.0.1")
    yield made
    made.server.shutdown()
    made.server.server_close()


def choice(sha256: str = HASH, version: str = "1.2") -> SourceChoice:
    return SourceChoice("sdist", package="torch_tiny", ref=version, sha256=sha256)


def test_it_is_found_by_its_hash_and_not_run(index: Index, tmp_path: Path) -> None:
    index.offer(GOOD)
    brought = fetch(choice(), tmp_path / "tree", cache=tmp_path / "cache")
    assert brought.evidence["sha256"] == HASH
    assert (tmp_path / "tree/setup.py").read_text().startswith("raise SystemExit")
    assert index.asked == ["/simple/torch-tiny/", "/files/torch_tiny-1.2.tar.gz"]


def wheel(name: str, version: str) -> bytes:
    """A wheel that carries headers."""
    packed = io.BytesIO()
    with zipfile.ZipFile(packed, "w") as archive:
        about = f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n"
        archive.writestr(f"{name}-{version}.dist-info/METADATA", about)
        archive.writestr(f"{name}/include/deep/part.h", "int part;\n")
        archive.writestr(f"{name}/__init__.py", "raise SystemExit('a fetch runs nothing')\n")
    return packed.getvalue()


def test_of_a_wheel_the_folders_named_are_kept_and_nothing_else(
    index: Index, tmp_path: Path
) -> None:
    file = wheel("torch_tiny", "1.2")
    index.offer(file)
    wish = SourceChoice(
        "wheel",
        package="torch-tiny",
        ref="1.2",
        sha256=hashlib.sha256(file).hexdigest(),
        files=("torch_tiny/include",),
    )
    brought = fetch(wish, tmp_path / "tree", cache=tmp_path / "cache")
    assert brought.kind == "wheel"
    found = [path for path in (tmp_path / "tree").rglob("*") if path.is_file()]
    assert found == [tmp_path / "tree/torch_tiny/include/deep/part.h"]


def test_a_folder_the_wheel_does_not_have_is_refused(index: Index, tmp_path: Path) -> None:
    file = wheel("torch_tiny", "1.2")
    index.offer(file)
    wish = SourceChoice(
        "wheel",
        package="torch-tiny",
        ref="1.2",
        sha256=hashlib.sha256(file).hexdigest(),
        files=("torch_tiny/headers",),
    )
    assert "has no file 'torch_tiny/headers'" in refused(tmp_path, wish).message


def test_a_wheel_of_another_release_is_refused(index: Index, tmp_path: Path) -> None:
    file = wheel("torch_tiny", "1.3")
    index.offer(file)
    wish = SourceChoice(
        "wheel", package="torch-tiny", ref="1.2", sha256=hashlib.sha256(file).hexdigest()
    )
    assert "is torch_tiny 1.3, not torch-tiny 1.2" in refused(tmp_path, wish).message


def test_a_second_fetch_asks_nobody(index: Index, tmp_path: Path) -> None:
    index.offer(GOOD)
    fetch(choice(), tmp_path / "first", cache=tmp_path / "cache")
    index.asked.clear()
    fetch(choice(), tmp_path / "second", cache=tmp_path / "cache")
    assert index.asked == []
    assert (tmp_path / "second/PKG-INFO").exists()


def refused(tmp_path: Path, wish: SourceChoice) -> SourceError:
    with pytest.raises(SourceError) as caught:
        fetch(wish, tmp_path / "tree", cache=tmp_path / "cache")
    assert not any((tmp_path / "tree").iterdir())
    return caught.value


def test_a_hash_nobody_offers_is_refused(index: Index, tmp_path: Path) -> None:
    index.offer(GOOD)
    error = refused(tmp_path, choice("0" * 64))
    assert isinstance(error, NotServedError)
    assert "has no file with the sha256 000" in error.message


def test_another_file_under_that_hash_is_refused(index: Index, tmp_path: Path) -> None:
    index.offer(archive("torch_tiny", "1.3"), HASH)
    assert "is not the file expected" in refused(tmp_path, choice()).message


def test_another_release_than_the_one_pinned_is_refused(index: Index, tmp_path: Path) -> None:
    index.offer(GOOD)
    error = refused(tmp_path, choice(version="1.3"))
    assert error.message == "the archive of this hash is torch_tiny 1.2, not torch_tiny 1.3"


def test_a_member_that_leaves_the_tree_is_refused(index: Index, tmp_path: Path) -> None:
    bad = archive("torch_tiny", "1.2", **{"torch_tiny-1.2/../../out": "x"})
    index.offer(bad)
    refused(tmp_path, choice(hashlib.sha256(bad).hexdigest()))
    assert not (tmp_path / "out").exists()


def test_a_link_is_taken_for_its_hash_only() -> None:
    page = f'<a href="/b/x.tar.gz#sha256={HASH}">x</a><a href="/b/y.whl#sha256={"1" * 64}">y</a>'
    assert linked(page, "https://a/simple/x/", HASH) == ["https://a/b/x.tar.gz"]


def test_pips_own_variables_name_the_indexes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PIP_INDEX_URL", "https://a.example/simple/")
    monkeypatch.setenv("PIP_EXTRA_INDEX_URL", "https://b.example/simple file:///srv/simple")
    assert indexes() == ("https://a.example/simple", "https://b.example/simple")
    monkeypatch.delenv("PIP_INDEX_URL")
    monkeypatch.delenv("PIP_EXTRA_INDEX_URL")
    assert indexes() == ("https://pypi.org/simple",)

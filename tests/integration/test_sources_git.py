"""Git sources, with the real git: repositories made here, served by path and over http."""

from __future__ import annotations

import http.server
import os
import subprocess
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from torchsmith.errors import SourceError, UnreachableError
from torchsmith.resolve.models import SourceChoice
from torchsmith.sources.bundle import bundled, write_bundle
from torchsmith.sources.download import Retry
from torchsmith.sources.fetch import fetch
from torchsmith.sources.git import fetch_git
from torchsmith.sources.git_program import read_progress
from torchsmith.sources.git_tree import git_proof
from torchsmith.sources.tree import EARLIEST, FetchedSource, quiet, source_date

pytestmark = pytest.mark.integration

SWIFT = Retry(attempts=2, pause_s=0.01)
ENV = {
    "PATH": os.environ["PATH"],
    "GIT_CONFIG_NOSYSTEM": "1",
    "GIT_CONFIG_GLOBAL": "/dev/null",
    **{
        f"GIT_{who}_{what}": f"{who}@example.org"
        for who in ("AUTHOR", "COMMITTER")
        for what in ("NAME", "EMAIL")
    },
}


def git(folder: Path, *arguments: str) -> str:
    argv = ["git", "-C", str(folder), "-c", "protocol.file.allow=always", *arguments]
    done = subprocess.run(argv, env=ENV, capture_output=True, text=True, check=True)
    return done.stdout.strip()


def repository(folder: Path, name: str, **content: str) -> Path:
    path = folder / name
    path.mkdir(parents=True)
    git(path, "init", "--quiet", "--initial-branch=main")
    commit(path, "first", name=name, **content)
    return path


def commit(path: Path, message: str, **content: str) -> str:
    for name, text in content.items():
        (path / f"{name}.txt").write_text(text)
    git(path, "add", "--all")
    git(path, "commit", "--quiet", "--allow-empty", "-m", message)
    return git(path, "rev-parse", "HEAD")


def link_submodule(path: Path, at: str, url: str, commit_id: str) -> str:
    """What `git submodule add` records, also where it would refuse to."""
    (path / ".gitmodules").write_text(f'[submodule "{at}"]\n\tpath = {at}\n\turl = {url}\n')
    git(path, "add", ".gitmodules")
    git(path, "update-index", "--add", "--cacheinfo", f"160000,{commit_id},sub")
    git(path, "commit", "--quiet", "-m", "submodule")
    return git(path, "rev-parse", "HEAD")


@pytest.fixture
def family(tmp_path: Path) -> Path:
    """A repository with a submodule that has one of its own, addresses relative."""
    served = tmp_path / "served"
    repository(served, "inner", data="i" * 10)
    middle = repository(served, "middle", data=os.urandom(40_000).hex())
    git(middle, "submodule", "--quiet", "add", "../inner", "deep/inner")
    commit(middle, "with inner")
    top = repository(served, "top", data=os.urandom(40_000).hex())
    git(top, "submodule", "--quiet", "add", "../middle", "third_party/middle")
    commit(top, "with middle")
    git(top, "tag", "-a", "v1.0.0", "-m", "release")
    commit(top, "later", more="more")
    return served


def bring(
    choice: SourceChoice, tmp_path: Path, name: str = "tree", retry: Retry = SWIFT
) -> FetchedSource:
    (tmp_path / name).mkdir()
    return fetch_git(choice, tmp_path / name, cache=tmp_path / "cache", progress=quiet, retry=retry)


def test_a_release_comes_with_all_its_submodules(family: Path, tmp_path: Path) -> None:
    seen: list[str] = []
    expected = git(family / "top", "rev-parse", "v1.0.0^{commit}")
    choice = SourceChoice("git", url=str(family / "top"), ref="v1.0.0", commit=expected)
    tree = tmp_path / "tree"
    brought = fetch(
        choice, tree, cache=tmp_path / "cache", progress=lambda what, *_: seen.append(what)
    )
    assert brought.evidence["commit"] == expected
    assert brought.evidence["submodules"] == "2"
    assert brought.notes == ()
    assert (tree / "third_party/middle/deep/inner/data.txt").read_text() == "i" * 10
    assert not (tree / "more.txt").exists()
    # What PyTorch's build asks its tree.
    assert git(tree, "describe", "--tags", "--exact") == "v1.0.0"
    assert git(tree, "status", "--porcelain") == ""
    status = git(tree, "submodule", "status", "--recursive").splitlines()
    assert len(status) == 2
    assert not [line for line in status if line.startswith(("-", "+", "U"))]
    # No history, and nothing that points back into the cache.
    assert git(tree, "rev-list", "--count", "HEAD") == "1"
    assert not (tree / ".git/objects/info/alternates").exists()
    assert any(what.startswith("top: ") and what.endswith("100%") for what in seen)
    assert any(what.startswith("third_party/middle/deep/inner: ") for what in seen)


def test_a_branch_is_brought_and_its_commit_told(family: Path, tmp_path: Path) -> None:
    brought = bring(SourceChoice("git", url=(family / "top").as_uri(), ref="main"), tmp_path)
    assert brought.evidence["commit"] == git(family / "top", "rev-parse", "main")
    assert "not pinned" in brought.notes[0]


def test_a_commit_is_a_ref(family: Path, tmp_path: Path) -> None:
    first = git(family / "top", "rev-list", "--max-parents=0", "main")
    brought = bring(SourceChoice("git", url=str(family / "top"), ref=first), tmp_path)
    assert brought.evidence["commit"] == first
    assert not (tmp_path / "tree/third_party").exists()


def test_a_moved_tag_is_refused_and_leaves_nothing(family: Path, tmp_path: Path) -> None:
    pinned = git(family / "top", "rev-parse", "v1.0.0^{commit}")
    choice = SourceChoice("git", url=str(family / "top"), ref="v1.0.0", commit=pinned)
    bring(choice, tmp_path, "before")
    git(family / "top", "tag", "--force", "-a", "v1.0.0", "-m", "moved", "main")
    with pytest.raises(SourceError, match="tag was moved") as caught:
        fetch(choice, tmp_path / "after", cache=tmp_path / "cache")
    assert not isinstance(caught.value, UnreachableError)
    assert not any((tmp_path / "after").iterdir())


def test_a_branch_that_moved_on_gives_the_pinned_commit(family: Path, tmp_path: Path) -> None:
    pinned = git(family / "top", "rev-parse", "main~1")
    choice = SourceChoice("git", url=str(family / "top"), ref="main", commit=pinned)
    brought = bring(choice, tmp_path)
    assert git(tmp_path / "tree", "rev-parse", "HEAD") == pinned
    assert "moved on" in brought.notes[0]


@pytest.mark.parametrize(
    ("ref", "commit_id"),
    [
        ("--upload-pack=touch ran", ""),
        ("-v", ""),
        ("main\nx", ""),
        ("a..b", ""),
        ("x@{1}", ""),
        ("main:refs/heads/x", ""),
        ("", ""),
        ("main", "abc"),
        ("main", "--all"),
        ("none", ""),
        ("", "0" * 40),
        ("1" * 40, "2" * 40),
    ],
)
def test_a_ref_that_is_none_is_refused(
    family: Path, tmp_path: Path, ref: str, commit_id: str
) -> None:
    choice = SourceChoice("git", url=str(family / "top"), ref=ref, commit=commit_id)
    with pytest.raises(SourceError):
        bring(choice, tmp_path)
    assert not list(tmp_path.rglob("ran"))


@pytest.mark.parametrize(
    ("at", "url"),
    [
        ("sub", "ext::sh -c touch% ran"),
        ("sub", "--upload-pack=touch ran"),
        ("sub", "ssh://-oProxyCommand=touch ran/x"),
        ("sub", "/etc"),
        ("sub", "file:///etc"),
        ("sub", ""),
        ("../sub", "https://example.org/x"),
        (".git/hooks", "https://example.org/x"),
        ("/tmp/sub", "https://example.org/x"),
    ],
)
def test_a_hostile_submodule_stops_everything(tmp_path: Path, at: str, url: str) -> None:
    served = tmp_path / "served"
    hostile = repository(served, "hostile")
    link_submodule(hostile, at, url, "1" * 40)
    with serve(served) as server:
        choice = SourceChoice("git", url=f"{server.url}/hostile", ref="main")
        with pytest.raises(SourceError, match="submodule") as caught:
            fetch(choice, tmp_path / "tree", cache=tmp_path / "cache")
    assert not isinstance(caught.value, UnreachableError)
    assert not any((tmp_path / "tree").iterdir())
    assert not list(tmp_path.rglob("ran"))


def test_a_link_out_of_the_repository_is_refused(tmp_path: Path) -> None:
    path = repository(tmp_path / "served", "links")
    (path / "passwd").symlink_to("../../../../../../etc/passwd")
    commit(path, "link")
    choice = SourceChoice("git", url=str(path), ref="main")
    with pytest.raises(SourceError, match="leads out"):
        fetch(choice, tmp_path / "tree", cache=tmp_path / "cache")
    assert not any((tmp_path / "tree").iterdir())


def test_nothing_of_the_environment_or_configuration_is_run(
    family: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    hooks = tmp_path / "hooks"
    hooks.mkdir()
    (hooks / "post-checkout").write_text(f"#!/bin/sh\ntouch {tmp_path}/ran\n")
    (hooks / "post-checkout").chmod(0o755)
    home = tmp_path / "home"
    home.mkdir()
    (home / ".gitconfig").write_text(
        f"[core]\n\thooksPath = {hooks}\n[init]\n\ttemplateDir = {hooks}\n"
    )
    monkeypatch.setenv("HOME", str(home))
    monkeypatch.setenv("GIT_DIR", str(tmp_path / "elsewhere"))
    monkeypatch.setenv("GIT_WORK_TREE", str(tmp_path / "elsewhere"))
    bring(SourceChoice("git", url=str(family / "top"), ref="v1.0.0"), tmp_path)
    assert (tmp_path / "tree/name.txt").read_text() == "top"
    assert not (tmp_path / "ran").exists()


def test_a_repositorys_own_settings_run_no_program(tmp_path: Path) -> None:
    top = repository(tmp_path, "top")
    lines = git(top, "cat-file", "commit", "HEAD").replace(
        "\n\n", "\ngpgsig -----BEGIN PGP SIGNATURE-----\n \n YQ==\n -----END PGP SIGNATURE-----\n\n"
    )
    (tmp_path / "commit").write_text(lines + "\n")
    signed = git(top, "hash-object", "-t", "commit", "-w", str(tmp_path / "commit"))
    git(top, "update-ref", "HEAD", signed)
    program = tmp_path / "program"
    program.write_text(f"#!/bin/sh\ntouch {tmp_path}/ran\n")
    program.chmod(0o755)
    git(top, "config", "log.showSignature", "true")
    for name in ("gpg.program", "core.fsmonitor", "core.pager", "diff.external"):
        git(top, "config", name, str(program))
    assert source_date(top) > EARLIEST
    assert not (tmp_path / "ran").exists()


@dataclass
class Server:
    """git's own http server program, and what it was asked."""

    url: str = ""
    cut: str = ""
    old: bool = False
    fetched: list[str] = field(default_factory=list)


class serve:  # noqa: N801 - reads as what it does in a `with`
    """Serve a folder of repositories; requests for `cut` break off midway."""

    def __init__(self, folder: Path) -> None:
        self.server = here = Server()

        class Handler(http.server.BaseHTTPRequestHandler):
            def answer(self) -> None:
                path, _, query = self.path.partition("?")
                name = path.split("/")[1]
                env = {
                    **ENV,
                    "GIT_PROJECT_ROOT": str(folder),
                    "GIT_HTTP_EXPORT_ALL": "1",
                    "PATH_INFO": path,
                    "QUERY_STRING": query,
                    "REQUEST_METHOD": self.command,
                    "CONTENT_TYPE": self.headers.get("Content-Type", ""),
                    "HTTP_CONTENT_ENCODING": self.headers.get("Content-Encoding", ""),
                    # Before protocol 2 a server gave only what it advertised.
                    "GIT_PROTOCOL": "" if here.old else self.headers.get("Git-Protocol", ""),
                }
                body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
                done = subprocess.run(
                    ["git", "http-backend"], input=body, env=env, capture_output=True
                )
                head, _, content = done.stdout.partition(b"\r\n\r\n")
                pack = b"PACK" in content
                if pack:
                    here.fetched.append(name)
                self.send_response(200)
                for line in head.decode().splitlines():
                    key, _, value = line.partition(": ")
                    self.send_header(key, value)
                self.send_header("Content-Length", str(len(content)))
                self.end_headers()
                half = pack and name == here.cut
                self.wfile.write(content[: len(content) // 2] if half else content)
                self.close_connection = True

            do_GET = do_POST = answer  # noqa: N815

            def log_message(self, format: str, *args: object) -> None:  # noqa: A002
                """Stay silent."""

        self.http = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        here.url = f"http://127.0.0.1:{self.http.server_address[1]}"

    def __enter__(self) -> Server:
        threading.Thread(target=self.http.serve_forever, daemon=True).start()
        return self.server

    def __exit__(self, *problem: object) -> None:
        self.http.shutdown()
        self.http.server_close()


@pytest.fixture
def server(family: Path) -> Iterator[Server]:
    with serve(family) as running:
        yield running


def test_a_broken_transfer_costs_only_the_repository_it_broke_in(
    server: Server, tmp_path: Path
) -> None:
    choice = SourceChoice("git", url=f"{server.url}/top", ref="v1.0.0")
    server.cut = "middle"
    with pytest.raises(UnreachableError):
        fetch(choice, tmp_path / "tree", cache=tmp_path / "cache")
    assert not any((tmp_path / "tree").iterdir())
    assert set(server.fetched) == {"top", "middle"}
    server.cut = ""
    server.fetched.clear()
    fetch(choice, tmp_path / "tree", cache=tmp_path / "cache")
    assert server.fetched == ["middle", "inner"]
    assert (tmp_path / "tree/third_party/middle/deep/inner/data.txt").exists()


def test_a_second_tree_of_the_same_commit_costs_no_transfer(server: Server, tmp_path: Path) -> None:
    choice = SourceChoice("git", url=f"{server.url}/top", ref="v1.0.0")
    bring(choice, tmp_path, "one")
    server.fetched.clear()
    bring(choice, tmp_path, "two")
    assert server.fetched == []


def test_a_pinned_commit_in_the_cache_needs_no_server(family: Path, tmp_path: Path) -> None:
    pinned = git(family / "top", "rev-parse", "v1.0.0^{commit}")
    with serve(family) as server:
        choice = SourceChoice("git", url=f"{server.url}/top", ref="v1.0.0", commit=pinned)
        bring(choice, tmp_path, "one")
    brought = bring(choice, tmp_path, "two")
    assert "was in the cache" in brought.notes[0]
    assert brought.evidence["commit"] == pinned


def test_mirrors_are_tried_in_order_and_named(server: Server, tmp_path: Path) -> None:
    choice = SourceChoice(
        "git",
        url="http://127.0.0.1:9/top",
        mirrors=(f"{server.url}/none", f"{server.url}/top"),
        ref="v1.0.0",
    )
    brought = bring(choice, tmp_path)
    assert brought.location == f"{server.url}/top"
    assert "127.0.0.1:9" in brought.notes[0]
    assert "/none" in brought.notes[1]
    assert (tmp_path / "tree/third_party/middle/data.txt").exists()


def test_a_server_that_gives_no_single_commit_gives_its_history(
    server: Server, family: Path, tmp_path: Path
) -> None:
    server.old = True
    pinned = git(family / "top", "rev-parse", "main~1")
    commit(family / "top", "later still")
    choice = SourceChoice("git", url=f"{server.url}/top", ref="main", commit=pinned)
    brought = bring(choice, tmp_path)
    assert brought.evidence["commit"] == pinned


def test_a_tag_is_asked_for_by_name_where_its_commit_may_not_be(
    server: Server, tmp_path: Path
) -> None:
    server.old = True
    bring(SourceChoice("git", url=f"{server.url}/top", ref="v1.0.0"), tmp_path)
    assert git(tmp_path / "tree", "rev-list", "--count", "HEAD") == "1"
    bare = next((tmp_path / "cache/git").glob("top-*.git"))
    assert git(bare, "rev-parse", "--is-shallow-repository") == "true"


def test_an_interruption_ends_every_transfer_and_leaves_nothing(
    server: Server, tmp_path: Path
) -> None:
    def interrupt(what: str, done: int | None, total: int | None) -> None:
        if what.startswith("third_party"):
            raise KeyboardInterrupt

    choice = SourceChoice("git", url=f"{server.url}/top", ref="v1.0.0")
    with pytest.raises(KeyboardInterrupt):
        fetch(choice, tmp_path / "tree", cache=tmp_path / "cache", progress=interrupt)
    assert not any((tmp_path / "tree").iterdir())
    fetch(choice, tmp_path / "tree", cache=tmp_path / "cache")


def test_plain_web_space_is_enough(family: Path, tmp_path: Path) -> None:
    web = tmp_path / "web"
    web.mkdir()
    git(web, "clone", "--quiet", "--bare", str(family / "inner"), "inner.git")
    git(web / "inner.git", "update-server-info")

    class Handler(http.server.SimpleHTTPRequestHandler):
        def __init__(self, *given: object, **named: object) -> None:
            super().__init__(*given, directory=str(web))  # type: ignore[arg-type]

        def log_message(self, format: str, *args: object) -> None:  # noqa: A002
            """Stay silent."""

    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler) as running:
        threading.Thread(target=running.serve_forever, daemon=True).start()
        url = f"http://127.0.0.1:{running.server_address[1]}/inner.git"
        brought = bring(SourceChoice("git", url=url, ref="main"), tmp_path)
        running.shutdown()
    assert brought.evidence["commit"] == git(family / "inner", "rev-parse", "main")


def test_a_killed_fetch_does_not_block_the_next(family: Path, tmp_path: Path) -> None:
    choice = SourceChoice("git", url=str(family / "inner"), ref="main")
    bring(choice, tmp_path, "one")
    bare = next((tmp_path / "cache/git").glob("inner-*.git"))
    (bare / "shallow.lock").write_text("")
    (bare / "objects/pack/tmp_pack_x").write_text("half")
    commit(family / "inner", "more", data="new")
    bring(choice, tmp_path, "two")
    assert (tmp_path / "two/data.txt").read_text() == "new"
    assert not list((bare / "objects/pack").glob("tmp_*"))


def test_a_repository_that_is_not_there_says_so(tmp_path: Path) -> None:
    choice = SourceChoice("git", url=str(tmp_path / "none"), ref="main")
    with pytest.raises(UnreachableError) as caught:
        bring(choice, tmp_path)
    assert caught.value.hint


def test_a_password_in_an_address_reaches_neither_messages_nor_the_tree(
    server: Server, tmp_path: Path
) -> None:
    url = server.url.replace("//", "//me:secret@")
    brought = bring(SourceChoice("git", url=f"{url}/top", ref="v1.0.0"), tmp_path)
    assert "secret" not in repr(brought)
    config = (tmp_path / "tree/.git/config").read_text()
    assert "secret" not in config
    with pytest.raises(SourceError) as caught:
        bring(SourceChoice("git", url=f"{url}/none", ref="v1"), tmp_path, "second")
    assert "secret" not in caught.value.message


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        (
            "Receiving objects:  45% (123/456), 1.50 MiB | 1.20 MiB/s",
            ("receiving objects 45%", 3 << 19),
        ),
        ("remote: Compressing objects: 100% (3/3), done.", ("compressing objects 100%", None)),
        ("Resolving deltas:   7% (1/14)", ("resolving deltas 7%", None)),
        ("From https://example.org/x", None),
        ("fatal: 100% wrong", None),
    ],
)
def test_progress_is_read_from_what_git_says(
    line: str, expected: tuple[str, int | None] | None
) -> None:
    assert read_progress(line) == expected


def test_a_clone_in_a_bundle_proves_its_commit(family: Path, tmp_path: Path) -> None:
    (family / "top" / ".gitattributes").write_text("*.bat text eol=crlf\n")
    (family / "top" / "run.bat").write_bytes(b"a\r\nb\r\n")
    expected = commit(family / "top", "with line ends")
    source = SourceChoice("git", url=str(family / "top"), commit=expected)
    bring(source, tmp_path)
    bundle = tmp_path / "b.tar.gz"
    manifest = write_bundle({"top": tmp_path / "tree"}, {}, bundle)
    choice = bundled(source, bundle, manifest, "top")
    found = fetch(choice, tmp_path / "out", cache=tmp_path / "cache")
    assert found.evidence["commit"] == expected
    assert (tmp_path / "out/third_party/middle/deep/inner/data.txt").exists()
    (tmp_path / "tree/third_party/middle/name.txt").write_text("changed")
    assert git_proof(tmp_path / "tree") is None

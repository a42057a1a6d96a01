"""ccache behind the memory governor's launcher, with the real one."""

from __future__ import annotations

import contextlib
import os
import socket
import subprocess
import threading
import time
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import ClassVar

import pytest
from tests.integration.conftest import ROOT

from torchsmith.plan.torch import env_folder
from torchsmith.toolchain.build_paths import names_from_within
from torchsmith.toolchain.cache import CompilerCache, compiler_cache
from torchsmith.toolchain.governor import Governor

pytestmark = [pytest.mark.integration, pytest.mark.usefixtures("build_tools")]


def build(work: Path, cache: CompilerCache) -> None:
    source = work / "source"
    source.mkdir(parents=True)
    (source / "a.cpp").write_text(
        "#include <map>\nint main() { return std::map<int, int>().size(); }\n"
    )
    (source / "CMakeLists.txt").write_text(
        "cmake_minimum_required(VERSION 3.18)\nproject(cached CXX)\nadd_executable(a a.cpp)\n"
    )
    make(work, source, work / "build", cache)


def make(work: Path, source: Path, folder: Path, cache: CompilerCache) -> None:
    """Build as builds do: told of their own folder, which the cache must not mind."""
    with Governor(options=names_from_within(work)) as governor:
        variables = {
            **os.environ,
            **governor.environment(cache.command),
            **(cache.environment or {}),
        }
        for command in (
            ["cmake", "-G", "Ninja", "-S", str(source), "-B", str(folder)],
            ["ninja", "-C", str(folder)],
        ):
            subprocess.run(command, env=variables, check=True, capture_output=True)


def misses(cache: CompilerCache) -> int:
    said = subprocess.check_output(
        [*cache.command, "--print-stats"],
        env={**os.environ, **(cache.environment or {})},
        text=True,
    )
    counts = dict(line.split("\t") for line in said.splitlines())
    return int(counts["cache_miss"])


def test_a_file_compiled_in_one_folder_is_not_compiled_in_another(tmp_path: Path) -> None:
    store = tmp_path / "store"
    first = compiler_cache(store, tmp_path / "one")
    assert first.command, "tools/install_test_tools.sh installs ccache"
    build(tmp_path / "one", first)
    compiled = misses(first)
    assert compiled > 0
    assert first.used() == (0, compiled)
    second = compiler_cache(store, tmp_path / "two")
    build(tmp_path / "two", second)
    assert misses(second) == compiled
    assert second.used() == (compiled, 0)
    assert (store / "compiler-cache").is_dir()


def test_variants_of_one_python_share_what_reads_headers_of_their_environments(
    tmp_path: Path,
) -> None:
    for variant in ("one", "another"):
        header = tmp_path / env_folder(variant) / "include/numpy.h"
        header.parent.mkdir(parents=True)
        header.write_text("inline int numpy() { return 1; }\n")
        source = tmp_path / "build" / variant / "torch"
        source.mkdir()
        (source / "a.cpp").write_text("#include <numpy.h>\nint main() { return numpy(); }\n")
        (source / "CMakeLists.txt").write_text(
            "cmake_minimum_required(VERSION 3.18)\nproject(bound CXX)\nadd_executable(a a.cpp)\n"
            f"include_directories(SYSTEM {header.parent})\n"
        )
    first = compiler_cache(tmp_path / "store", tmp_path)
    make(tmp_path, tmp_path / "build/one/torch", tmp_path / "build/one/torch/build", first)
    compiled = first.used()[1]
    assert compiled > 0
    second = compiler_cache(tmp_path / "store", tmp_path)
    make(tmp_path, tmp_path / "build/another/torch", tmp_path / "build/another/torch/build", second)
    assert second.used() == (compiled, 0)


class Shelf(BaseHTTPRequestHandler):
    """A web server that keeps what is put there."""

    kept: ClassVar[dict[str, bytes]] = {}

    def do_GET(self) -> None:
        body = self.kept.get(self.path)
        self.send_response(404 if body is None else 200)
        self.send_header("Content-Length", str(len(body or b"")))
        self.end_headers()
        self.wfile.write(body or b"")

    def do_PUT(self) -> None:
        self.kept[self.path] = self.rfile.read(int(self.headers["Content-Length"]))
        self.send_response(201)
        self.send_header("Content-Length", "0")
        self.end_headers()

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002
        """Say nothing."""


@pytest.fixture
def web() -> Iterator[str]:
    with ThreadingHTTPServer(("127.0.0.1", 0), Shelf) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}/torch"
        server.shutdown()


@pytest.fixture
def redis(tmp_path: Path) -> Iterator[str]:
    """A Redis server of our own, that keeps nothing on disk."""
    subprocess.run([ROOT / "tools/install_test_tools.sh"], check=True)
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    options = ("--port", str(port), "--bind", "127.0.0.1", "--save", "", "--dir", str(tmp_path))
    with subprocess.Popen(["redis-server", *options], stdout=subprocess.DEVNULL) as server:
        until = time.monotonic() + 60
        while time.monotonic() < until:
            with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port)):
                break
            time.sleep(0.05)
        yield f"redis://127.0.0.1:{port}"
        server.terminate()


@pytest.mark.parametrize("kind", ["folder", "web", "redis"])
def test_machines_of_a_team_share_what_one_compiled(
    kind: str,
    tmp_path: Path,
    request: pytest.FixtureRequest,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    shared = f"file:{tmp_path / 'shared'}" if kind == "folder" else request.getfixturevalue(kind)
    monkeypatch.setenv("CCACHE_REMOTE_STORAGE", shared)
    one = compiler_cache(tmp_path / "store-one", tmp_path / "one")
    build(tmp_path / "one", one)
    compiled = one.used()[1]
    assert compiled > 0
    other = compiler_cache(tmp_path / "store-other", tmp_path / "other")
    build(tmp_path / "other", other)
    assert other.used() == (compiled, 0)


def test_hosts_that_share_a_store_keep_half_written_files_to_themselves(tmp_path: Path) -> None:
    alone = compiler_cache(tmp_path / "store", tmp_path / "one").environment
    shared = compiler_cache(tmp_path / "store", tmp_path / "one", shared=True)
    assert alone is not None
    assert "CCACHE_TEMPDIR" not in alone
    assert shared.environment is not None
    assert not Path(shared.environment["CCACHE_TEMPDIR"]).is_relative_to(tmp_path)
    build(tmp_path / "one", shared)
    assert shared.used()[1] > 0


def test_what_the_caller_set_stays_in_force(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CCACHE_MAXSIZE", "1G")
    settings = compiler_cache(tmp_path, tmp_path).environment
    assert settings is not None
    assert settings["CCACHE_MAXSIZE"] == "1G"


def test_without_ccache_compilers_run_as_they_are(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    assert compiler_cache(tmp_path, tmp_path) == CompilerCache()

"""What is published is installed by the clients people use: pip, uv, rattler."""

from __future__ import annotations

import asyncio
import hashlib
import json
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import rattler
from rattler.index import index_fs
from tests.tiny_packages import conda, wheel

from torchsmith.ship import addresses
from torchsmith.ship.addresses import Found
from torchsmith.ship.index import JSON_TYPE
from torchsmith.ship.publish import Places, publish, yank
from torchsmith.web import app
from torchsmith.web.app import Server, make_app
from torchsmith.web.portal import Portal

pytestmark = pytest.mark.integration

PIP = (sys.executable, "-m", "pip", "--isolated", "--no-cache-dir")
UV = (str(Path(sys.executable).parent / "uv"), "pip")
UV_OPTIONS = ("--no-config", "--no-cache", "--python", sys.executable)


class Shop:
    """Published folders behind a running server, and what was asked of it."""

    def __init__(self, places: Places, server: Server) -> None:
        self.places = places
        self.server = server
        self.asked: list[tuple[str, str]] = []

    @property
    def index(self) -> str:
        return f"{self.server.address}/simple/"

    @property
    def channel(self) -> str:
        return f"{self.server.address}/channel"


@pytest.fixture
def shop(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Shop]:
    made = tmp_path / "made"
    places = Places(tmp_path / "index", tmp_path / "channel")
    publish(
        [
            *(wheel(made, "tiny-lib", version) for version in ("0.9", "1.0", "2.0")),
            wheel(made, "tiny-lib", "1.0+cpu.sm86"),
            wheel(made, "tiny-lib", "3.0", requires_python=">=4"),
            conda(made, "tiny", "1.0", depends=["tiny-base >=1"]),
            conda(made, "tiny", "1.1", depends=["tiny-base >=1"]),
            conda(made, "tiny-base", "1.0", form=".tar.bz2"),
        ],
        places,
    )
    with Server(make_app(Portal(places=places)), "127.0.0.1", 0) as server:
        shop = Shop(places, server)
        real = addresses.look_up

        def seen(places: Places, address: str, accept: str = "") -> Found:
            shop.asked.append((address, accept))
            return real(places, address, accept)

        monkeypatch.setattr(app, "look_up", seen)
        yield shop


def installed(
    client: str, target: Path, index: str, *wanted: str
) -> subprocess.CompletedProcess[str]:
    """Install with pip or uv into an empty folder."""
    words = [*PIP, "install"] if client == "pip" else [*UV, "install", *UV_OPTIONS]
    return subprocess.run(
        [*words, "--index-url", index, "--target", str(target), *wanted],
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
    )


@pytest.mark.skipif(sys.version_info >= (3, 12), reason="these pips do not run on this Python")
def test_the_pip_of_debian_12_takes_it(shop: Shop, tmp_path: Path) -> None:
    old = tmp_path / "old"
    subprocess.run([*PIP[:3], "install", "-q", "--target", old, "pip==23.0.1"], check=True)
    done = subprocess.run(
        [*PIP, "install", "--index-url", shop.index, "--target", tmp_path / "site", "tiny-lib"],
        env={**os.environ, "PYTHONPATH": str(old)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert version(tmp_path / "site") == "2.0"
    assert any(accept.startswith(JSON_TYPE) for _, accept in shop.asked)


def version(target: Path) -> str:
    (info,) = target.glob("tiny_lib-*.dist-info")
    return info.name.removeprefix("tiny_lib-").removesuffix(".dist-info")


CLIENTS = ["pip", "uv"]


@pytest.mark.parametrize("client", CLIENTS)
def test_a_client_takes_the_newest_that_fits_its_python(
    client: str, shop: Shop, tmp_path: Path
) -> None:
    made = installed(client, tmp_path / "site", shop.index, "Tiny.Lib")
    assert made.returncode == 0, made.stderr
    assert version(tmp_path / "site") == "2.0"
    pages = [accept for address, accept in shop.asked if address == "/simple/tiny-lib/"]
    assert pages
    assert JSON_TYPE in pages[0]
    addresses = [address for address, _ in shop.asked]
    metadata = "/simple/tiny-lib/tiny_lib-2.0-py3-none-any.whl.metadata"
    assert metadata in addresses
    assert addresses.index(metadata) < addresses.index(metadata.removesuffix(".metadata"))


@pytest.mark.parametrize("client", CLIENTS)
@pytest.mark.parametrize("wanted", ["0.9", "1.0+cpu.sm86"])
def test_an_older_release_and_a_local_version_can_be_had(
    client: str, wanted: str, shop: Shop, tmp_path: Path
) -> None:
    made = installed(client, tmp_path / "site", shop.index, f"tiny-lib=={wanted}")
    assert made.returncode == 0, made.stderr
    assert version(tmp_path / "site") == wanted


@pytest.mark.parametrize("client", CLIENTS)
def test_hashes_hold_a_client_to_the_very_file(client: str, shop: Shop, tmp_path: Path) -> None:
    path = tmp_path / "made/tiny_lib-1.0+cpu.sm86-py3-none-any.whl"
    digest = hashlib.sha256(path.read_bytes()).hexdigest()
    lock = tmp_path / "requirements.txt"
    for said, code in ((digest, 0), ("0" * 64, 1)):
        lock.write_text(f"tiny-lib==1.0+cpu.sm86 --hash=sha256:{said}\n")
        target = tmp_path / f"site-{code}"
        made = installed(client, target, shop.index, "--require-hashes", "-r", str(lock))
        assert made.returncode == code, made.stderr


@pytest.mark.parametrize("client", CLIENTS)
def test_a_yanked_release_is_had_only_by_those_who_pin_it(
    client: str, shop: Shop, tmp_path: Path
) -> None:
    yank("tiny-lib==2.0", Places(shop.places.index), reason="wrong results on Sundays")
    made = installed(client, tmp_path / "open", shop.index, "tiny-lib")
    assert made.returncode == 0, made.stderr
    assert version(tmp_path / "open") == "1.0+cpu.sm86"
    made = installed(client, tmp_path / "pinned", shop.index, "tiny-lib==2.0")
    assert made.returncode == 0, made.stderr
    assert version(tmp_path / "pinned") == "2.0"
    assert "wrong results on Sundays" in made.stderr


def test_pip_installs_from_the_folder_behind_any_static_server(tmp_path: Path) -> None:
    index = tmp_path / "index"
    publish([wheel(tmp_path / "made", "tiny-lib", "1.0+cpu")], Places(index))
    moved = index.rename(tmp_path / "moved")
    command = [sys.executable, "-u", "-m", "http.server", "0", "--bind", "127.0.0.1"]
    with subprocess.Popen(command, cwd=moved, stdout=subprocess.PIPE, text=True) as server:
        try:
            assert server.stdout is not None
            address = server.stdout.readline().split("(")[1].split(")")[0]
            made = installed("pip", tmp_path / "site", f"{address}simple/", "tiny-lib")
        finally:
            server.terminate()
    assert made.returncode == 0, made.stderr
    assert version(tmp_path / "site") == "1.0+cpu"


def solved(channel: str, *wanted: str) -> dict[str, str]:
    found = asyncio.run(
        rattler.solve(
            sources=[rattler.Channel(channel)], specs=list(wanted), platforms=["linux-64", "noarch"]
        )
    )
    return {record.name.normalized: str(record.version) for record in found}


@pytest.mark.parametrize("way", ["file", "http"])
def test_rattler_solves_and_installs_from_the_channel(way: str, shop: Shop, tmp_path: Path) -> None:
    channel = shop.channel if way == "http" else f"file://{shop.places.channel}"

    async def install() -> None:
        found = await rattler.solve(
            sources=[rattler.Channel(channel)], specs=["tiny"], platforms=["linux-64", "noarch"]
        )
        await rattler.install(found, tmp_path / "prefix", cache_dir=tmp_path / "cache")

    asyncio.run(install())
    assert (tmp_path / "prefix/share/tiny").read_text() == "tiny 1.1\n"
    assert (tmp_path / "prefix/share/tiny-base").read_text() == "tiny-base 1.0\n"


def test_rattler_does_not_choose_a_yanked_package(shop: Shop) -> None:
    channel = f"file://{shop.places.channel}"
    assert solved(channel, "tiny")["tiny"] == "1.1"
    yank("tiny==1.1", Places(channel=shop.places.channel))
    assert solved(channel, "tiny")["tiny"] == "1.0"


def records(channel: Path) -> dict[str, Any]:
    """Every record of a channel; when it was indexed is no part of what it says."""
    found: dict[str, Any] = {}
    for page in channel.glob("*/repodata.json"):
        table = json.loads(page.read_bytes())
        for name, record in (table["packages"] | table["packages.conda"]).items():
            record.pop("indexed_timestamp", None)
            found[f"{page.parent.name}/{name}"] = record
    return found


def test_records_are_those_of_rattlers_own_indexer(tmp_path: Path) -> None:
    made = tmp_path / "made"
    publish(
        [
            conda(made, "tiny", "1.0", track_features="a b", constrains=["other >1"], extra="x"),
            conda(made, "tiny", "1.1", run_exports={"weak": ["tiny >=1.1"]}, features=""),
            conda(
                made,
                "tiny-lib",
                "1.0",
                subdir="linux-64",
                form=".tar.bz2",
                arch="x86_64",
                platform="linux",
                license_family="BSD",
                purls=["pkg:pypi/tiny-lib"],
                depends=["tiny", "__glibc >=2.17"],
                build="py311_0",
                build_number=3,
                noarch=None,
            ),
        ],
        Places(channel=tmp_path / "ours"),
    )
    for path in (tmp_path / "ours").glob("*/tiny-*"):
        target = tmp_path / "theirs" / path.parent.name
        target.mkdir(parents=True, exist_ok=True)
        shutil.copy(path, target)
    asyncio.run(index_fs(tmp_path / "theirs", write_zst=True, write_shards=False))
    assert len(records(tmp_path / "ours")) == 3
    assert records(tmp_path / "ours") == records(tmp_path / "theirs")


def test_the_server_says_its_address_and_ends_with_ctrl_c(tmp_path: Path) -> None:
    publish([wheel(tmp_path / "made", "tiny-lib", "1.0")], Places(tmp_path / "index"))
    command = [sys.executable, "-m", "torchsmith", "serve", "--port", "0", "--index"]
    with subprocess.Popen(
        [*command, str(tmp_path / "index")],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as server:
        assert server.stdout is not None
        address = server.stdout.readline().removeprefix("serving at ").strip()
        told = server.stdout.readline().split()
        assert told == ["pip", "install", "--index-url", f"{address}/simple/", "NAME"]
        made = installed("pip", tmp_path / "site", told[3], "tiny-lib")
        server.send_signal(signal.SIGINT)
        _, log = server.communicate(timeout=20)
    assert made.returncode == 0, made.stderr
    assert server.returncode == 0
    assert '"GET /simple/tiny-lib/ HTTP/1.1" 200' in log
    assert log.endswith("stopped\n")

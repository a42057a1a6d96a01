"""Registries for tests: Docker's own `docker-registry`, and what can stand between it and us."""

from __future__ import annotations

import base64
import contextlib
import json
import select
import shutil
import socket
import subprocess
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest

_OCI = "application/vnd.oci.image.manifest.v1+json"
_DOCKER = "application/vnd.docker.distribution.manifest.v2+json"


def free_port(host: str = "127.0.0.1") -> int:
    with socket.socket() as taken:
        taken.bind((host, 0))
        return int(taken.getsockname()[1])


class RegistryHere:
    """A registry at an address, asked in its own words."""

    def __init__(self, address: str) -> None:
        self.address = address

    def digest(self, repository: str, tag: str) -> str | None:
        """What a tag means; None where there is no such tag."""
        request = urllib.request.Request(
            f"http://{self.address}/v2/{repository}/manifests/{tag}",
            headers={"Accept": f"{_OCI}, {_DOCKER}"},
            method="HEAD",
        )
        try:
            with urllib.request.urlopen(request, timeout=10) as answer:
                return str(answer.headers["Docker-Content-Digest"])
        except urllib.error.HTTPError as error:
            if error.code == 404:
                return None
            raise


@contextlib.contextmanager
def serving(folder: Path, host: str = "127.0.0.1", **http: object) -> Iterator[RegistryHere]:
    """`docker-registry serve` with a configuration of its own; `http` may hold `tls`, `auth`."""
    folder.mkdir(parents=True, exist_ok=True)
    port = free_port(host)
    auth = http.pop("auth", None)
    settings = {
        "version": "0.1",
        "log": {"level": "error", "accesslog": {"disabled": True}},
        "storage": {"filesystem": {"rootdirectory": str(folder / "data")}},
        "http": {"addr": f"{host}:{port}", **http},
        **({"auth": auth} if auth else {}),
    }
    # JSON is YAML.
    (folder / "config.yml").write_text(json.dumps(settings))
    with (folder / "log").open("wb") as log:
        process = subprocess.Popen(
            ["docker-registry", "serve", folder / "config.yml"], stdout=log, stderr=log
        )
    try:
        until = time.monotonic() + 60
        while True:
            with contextlib.suppress(OSError), socket.create_connection((host, port), 1):
                break
            assert process.poll() is None, (folder / "log").read_text()
            assert time.monotonic() < until, (folder / "log").read_text()
            time.sleep(0.05)
        yield RegistryHere(f"{host}:{port}")
    finally:
        process.terminate()
        process.wait(20)
        shutil.rmtree(folder / "data", ignore_errors=True)


@pytest.fixture(scope="session")
def registry(
    rendering_tools: None, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[RegistryHere]:
    """A registry on this machine that lets everybody in."""
    with serving(tmp_path_factory.mktemp("registry")) as here:
        yield here


def password_file(folder: Path, user: str, password: str) -> dict[str, object]:
    """The `auth` of a registry that lets one user in."""
    done = subprocess.run(
        ["htpasswd", "-nbB", user, password], capture_output=True, text=True, check=True
    )
    path = folder / "htpasswd"
    path.write_text(done.stdout)
    return {"htpasswd": {"realm": "tests", "path": str(path)}}


def login_file(folder: Path, registry: str, user: str, password: str) -> Path:
    """What `podman login` leaves."""
    pair = base64.b64encode(f"{user}:{password}".encode()).decode()
    path = folder / "auth.json"
    path.write_text(json.dumps({"auths": {registry: {"auth": pair}}}))
    return path


def own_certificate(folder: Path, host: str) -> dict[str, object]:
    """The `tls` of a registry whose certificate nobody trusts."""
    key, certificate = folder / "key.pem", folder / "certificate.pem"
    subprocess.run(
        [
            *("openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "1"),
            *("-subj", f"/CN={host}", "-addext", f"subjectAltName=DNS:{host}"),
            *("-keyout", key, "-out", certificate),
        ],
        check=True,
        capture_output=True,
    )
    return {"certificate": str(certificate), "key": str(key)}


class Stalling:
    """A proxy that hands on so many bytes of what is sent, and then nothing more."""

    def __init__(self, to: str, most: int) -> None:
        host, _, port = to.rpartition(":")
        self._to = (host, int(port))
        self._left = most
        self.stalled = threading.Event()
        self._over = threading.Event()
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.address = f"127.0.0.1:{self._listener.getsockname()[1]}"

    def __enter__(self) -> Stalling:
        threading.Thread(target=self._accept, daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._listener.close()

    def _accept(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                near, _ = self._listener.accept()
                threading.Thread(target=self._carry, args=(near,), daemon=True).start()

    def _carry(self, near: socket.socket) -> None:
        with near, socket.create_connection(self._to) as far, contextlib.suppress(OSError):
            while not self._over.is_set():
                ready = select.select([near, far], [], [], 0.1)[0]
                if near in ready:
                    if self._left <= 0:
                        self.stalled.set()
                        self._over.wait()
                        return
                    content = near.recv(min(65536, self._left))
                    if not content:
                        return
                    self._left -= len(content)
                    far.sendall(content)
                if far in ready:
                    content = far.recv(65536)
                    if not content:
                        return
                    near.sendall(content)

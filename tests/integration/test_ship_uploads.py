"""Uploads by the real clients, to real servers on this machine."""

from __future__ import annotations

import hashlib
import json
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import ClassVar

import pytest
from tests.tiny_packages import conda, wheel

from torchsmith.errors import HostError, OutputError, UsageError
from torchsmith.plan.publish import Accounts
from torchsmith.ship.publish import Places, deliver, publish
from torchsmith.ship.uploads import upload_packages

pytestmark = pytest.mark.integration

SECRET = "hunter2-and-more"
# Of the tests; that of the clients is another.
PYTHON = sys.executable


@pytest.fixture(scope="session")
def programs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The clients, and the servers they talk to, in an environment of their own."""
    folder = tmp_path_factory.mktemp("clients") / "env"
    wanted = [
        "twine",
        "pypiserver[passlib]",
        "awscli",
        "moto[s3]",
        "flask",
        "flask-cors",
        "anaconda-client",
    ]
    # By pip, which takes packages from where this machine is set up to take them from.
    subprocess.run([sys.executable, "-m", "venv", folder], check=True)
    pip = [str(folder / "bin/python"), "-m", "pip", "install", "--quiet"]
    subprocess.run([*pip, *wanted], check=True)
    return folder / "bin"


@pytest.fixture(autouse=True)
def _clients(programs: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.executable", str(programs / "python"))
    # Compiling all of aws at every call takes longer than the call.
    unset = ("TWINE_USERNAME", "TWINE_PASSWORD", "ANACONDA_TOKEN", "PYTHONDONTWRITEBYTECODE")
    for name in unset:
        monkeypatch.delenv(name, raising=False)


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


@contextmanager
def running(command: list[str], port: int) -> Iterator[str]:
    """A server, from the moment it answers until the block ends."""
    server = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        for _ in range(300):
            assert server.poll() is None
            with socket.socket() as probe:
                if probe.connect_ex(("127.0.0.1", port)) == 0:
                    break
            time.sleep(0.1)
        yield f"http://127.0.0.1:{port}/"
    finally:
        server.terminate()
        server.wait()


# -------------------------------------------------------------------------------- PyPI-like


@pytest.fixture
def pypi(programs: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """A package server that lets only one user write, and never overwrites."""
    (tmp_path / "packages").mkdir()
    # The form of Apache's password files.
    digest = subprocess.run(
        ["openssl", "passwd", "-apr1", SECRET], capture_output=True, text=True, check=True
    ).stdout.strip()
    (tmp_path / "users").write_text(f"alice:{digest}\n")
    port = free_port()
    command = [str(programs / "pypi-server"), "run", "-p", str(port), "-i", "127.0.0.1"]
    monkeypatch.setenv("TWINE_USERNAME", "alice")
    monkeypatch.setenv("TWINE_PASSWORD", SECRET)
    with running([*command, "-P", str(tmp_path / "users"), str(tmp_path / "packages")], port) as at:
        yield at


def test_twine_uploads_once_and_other_bytes_are_refused(pypi: str, tmp_path: Path) -> None:
    accounts = Accounts(repository=pypi)
    path = wheel(tmp_path / "made", "tiny-lib", "1.0+cpu")
    (change,) = deliver([path], to=["pypi"], accounts=accounts, dry_run=True)
    assert change.action == "added"
    assert list((tmp_path / "packages").iterdir()) == []
    for action in ("added", "same"):
        (change,) = deliver([path], to=["pypi"], accounts=accounts)
        assert change.action == action
    held = tmp_path / "packages" / path.name
    assert held.read_bytes() == path.read_bytes()
    other = wheel(tmp_path / "other", "tiny-lib", "1.0+cpu", content="# other")
    with pytest.raises(OutputError, match="with other bytes"):
        deliver([other], to=["pypi"], accounts=accounts)
    assert held.read_bytes() == path.read_bytes()


def test_a_wrong_password_is_told_and_not_shown(
    pypi: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TWINE_PASSWORD", "wrong-password")
    path = wheel(tmp_path / "made", "tiny-lib", "1.0")
    with pytest.raises(OutputError, match="twine ended with 1") as caught:
        deliver([path], to=["pypi"], accounts=Accounts(repository=pypi))
    assert "403" in caught.value.message
    assert "wrong-password" not in caught.value.message + caught.value.hint


def test_a_missing_password_is_asked_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHON_KEYRING_BACKEND", "keyring.backends.null.Keyring")
    path = wheel(tmp_path / "made", "tiny-lib", "1.0")
    with pytest.raises(UsageError, match="there is no password for") as caught:
        deliver([path], to=["pypi"], accounts=Accounts(repository="http://127.0.0.1:9/"))
    assert "TWINE_PASSWORD" in caught.value.hint


def test_a_missing_client_is_named_with_its_cure(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sys.executable", "/nowhere/python")
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setenv("TWINE_PASSWORD", SECRET)
    path = wheel(tmp_path / "made", "tiny-lib", "1.0")
    with pytest.raises(HostError, match="twine is missing") as caught:
        deliver([path], to=["pypi"], accounts=Accounts(repository="http://127.0.0.1:9/"))
    assert caught.value.hint == "pip install twine"


# --------------------------------------------------------------------------------------- S3


@pytest.fixture(scope="session")
def s3(programs: Path) -> Iterator[str]:
    """An S3 server."""
    port = free_port()
    with running([str(programs / "moto_server"), "-H", "127.0.0.1", "-p", str(port)], port) as at:
        yield at


@pytest.fixture
def bucket(s3: str, programs: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> str:
    """The name of a bucket that anybody may read."""
    for name, value in (
        ("AWS_ACCESS_KEY_ID", "AKIAEXAMPLE"),
        ("AWS_SECRET_ACCESS_KEY", SECRET),
        ("AWS_DEFAULT_REGION", "us-east-1"),
        ("AWS_ENDPOINT_URL", s3.rstrip("/")),
        ("AWS_CONFIG_FILE", str(tmp_path / "none")),
        ("AWS_SHARED_CREDENTIALS_FILE", str(tmp_path / "none")),
    ):
        monkeypatch.setenv(name, value)
    made = f"lab-{free_port()}"
    make = [str(programs / "aws"), "s3api", "create-bucket", "--bucket", made]
    subprocess.run([*make, "--acl", "public-read-write"], check=True, capture_output=True)
    return made


def test_a_bucket_gets_a_copy_that_pip_installs_from(s3: str, bucket: str, tmp_path: Path) -> None:
    made = tmp_path / "made"
    places = Places(tmp_path / "index", tmp_path / "channel")
    publish([wheel(made, "tiny-lib", "1.0+cpu"), conda(made, "tiny", "1.0")], places)
    accounts = Accounts(bucket=f"s3://{bucket}/torch/")
    kept = {"index": places.index, "channel": places.channel, "accounts": accounts}
    for action in ("added", "same"):
        changes = deliver([], to=["s3"], **kept)  # type: ignore[arg-type]
        assert {change.path: change.action for change in changes} == {
            "simple/tiny-lib/tiny_lib-1.0+cpu-py3-none-any.whl": action,
            "noarch/tiny-1.0-0.conda": action,
        }
    pip = [PYTHON, "-m", "pip", "--isolated", "install"]
    done = subprocess.run(
        [
            *(*pip, "--no-cache-dir", "--target", str(tmp_path / "site")),
            *("--index-url", f"{s3}{bucket}/torch/simple/", "tiny-lib"),
        ],
        check=False,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "site/tiny_lib-1.0+cpu.dist-info").is_dir()


def test_a_bucket_never_gets_other_bytes_for_a_name(bucket: str, tmp_path: Path) -> None:
    accounts = Accounts(bucket=f"s3://{bucket}")
    for place, content in (("a", ""), ("b", "# other")):
        index = tmp_path / place / "index"
        path = wheel(tmp_path / place, "tiny-lib", "1.0", content=content)
        publish([path], Places(index))
        if place == "a":
            deliver([], to=["s3"], index=index, accounts=accounts)
    with pytest.raises(OutputError, match="already, with other bytes"):
        deliver([], to=["s3"], index=index, accounts=accounts)


@pytest.mark.usefixtures("bucket")
def test_a_bucket_that_is_not_there_is_told_without_the_secret(tmp_path: Path) -> None:
    publish([wheel(tmp_path, "tiny-lib", "1.0")], Places(tmp_path / "index"))
    with pytest.raises(OutputError, match="NoSuchBucket") as caught:
        deliver([], to=["s3"], index=tmp_path / "index", accounts=Accounts(bucket="s3://elsewhere"))
    assert SECRET not in caught.value.message


# ----------------------------------------------------------------------------- anaconda.org


class _Anaconda(BaseHTTPRequestHandler):
    """The few calls of anaconda.org's API that an upload makes."""

    files: ClassVar[dict[str, dict[str, object]]]
    tokens: ClassVar[set[str]]
    staged: ClassVar[str]

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002
        pass

    def _json(self, table: object, status: int = 200) -> None:
        body = json.dumps(table).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def _heard(self) -> bytes:
        if token := self.headers.get("Authorization"):
            self.tokens.add(token)
        return self.rfile.read(int(self.headers.get("Content-Length") or 0))

    def do_HEAD(self) -> None:
        self.send_response(200)
        self.end_headers()

    def do_GET(self) -> None:
        self._heard()
        kind, *rest = self.path.split("?")[0].strip("/").split("/")
        if kind == "user":
            self._json({"login": "alice", "user_type": "user"})
        elif kind == "dist" and "/".join(rest[3:]) in self.files:
            self._json(self.files["/".join(rest[3:])])
        elif kind in ("package", "release"):
            self._json({"name": "tiny", "package_types": ["conda"], "public": True})
        else:
            self._json({"error": "not found"}, 404)

    def do_POST(self) -> None:
        body = self._heard()
        kind, *rest = self.path.strip("/").split("/")
        if kind == "stage":
            type(self).staged = "/".join(rest[3:]).replace("%2F", "/")
            at = f"http://{self.headers['Host']}/s3"
            self._json({"post_url": at, "form_data": {"key": "x"}, "dist_id": "1"})
        elif kind == "s3":
            start = body.index(b"\r\n\r\n", body.index(b"filename=")) + 4
            content = body[start : body.rindex(b"\r\n--")]
            md5 = hashlib.md5(content, usedforsecurity=False).hexdigest()
            self.files[self.staged] = {"basename": self.staged, "md5": md5}
            self.send_response(201)
            self.send_header("Content-Length", "0")
            self.end_headers()
        else:
            self._json({"url": "x", "html_url": "x", "basename": self.staged})

    def do_PATCH(self) -> None:
        self.do_POST()

    def do_DELETE(self) -> None:
        self._heard()
        del self.files["/".join(self.path.strip("/").split("/")[4:]).replace("%2F", "/")]
        self._json({})


@pytest.fixture
def anaconda(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[str, type]]:
    handler = type("Handler", (_Anaconda,), {"files": {}, "tokens": set(), "staged": ""})
    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05})
        thread.start()
        at = f"http://127.0.0.1:{server.server_address[1]}"
        (tmp_path / "binstar/data").mkdir(parents=True)
        for place in ("binstar", "binstar/data"):
            (tmp_path / place / "config.yaml").write_text(f"url: {at}\n")
        monkeypatch.setenv("BINSTAR_CONFIG_DIR", str(tmp_path / "binstar"))
        monkeypatch.setenv("HOME", str(tmp_path))
        monkeypatch.setenv("ANACONDA_TOKEN", SECRET)
        try:
            yield at, handler
        finally:
            server.shutdown()
            thread.join()


def test_the_anaconda_client_uploads_once_and_other_bytes_are_refused(
    anaconda: tuple[str, type[_Anaconda]], tmp_path: Path
) -> None:
    api, server = anaconda
    path = conda(tmp_path / "made", "tiny", "1.0")
    for action in ("added", "same"):
        (change,) = upload_packages([path], "alice", "ANACONDA_TOKEN", lambda _: None, api=api)
        assert (change.action, change.path) == (action, "noarch/tiny-1.0-0.conda")
    md5 = hashlib.md5(path.read_bytes(), usedforsecurity=False).hexdigest()
    assert server.files["noarch/tiny-1.0-0.conda"]["md5"] == md5
    assert server.tokens == {f"token {SECRET}"}
    other = conda(tmp_path / "other", "tiny", "1.0", files={"share/tiny": b"other"})
    with pytest.raises(OutputError, match="with other bytes"):
        upload_packages([other], "alice", "ANACONDA_TOKEN", lambda _: None, api=api)
    (change,) = upload_packages(
        [other], "alice", "ANACONDA_TOKEN", lambda _: None, force=True, api=api
    )
    assert change.action == "replaced"
    md5 = hashlib.md5(other.read_bytes(), usedforsecurity=False).hexdigest()
    assert server.files["noarch/tiny-1.0-0.conda"]["md5"] == md5

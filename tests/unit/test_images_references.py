"""Names, logins, and what a registry may answer, over real HTTP."""

from __future__ import annotations

import base64
import hashlib
import json
import socket
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from torchsmith.errors import RegistryError, UsageError
from torchsmith.images.reference import at_registry, is_loopback, reference
from torchsmith.images.registry import Login, Manifest, Registry, find_login
from torchsmith.images.tools import ImageInfo
from torchsmith.images.transfer import is_same, target

pytestmark = pytest.mark.unit

DIGEST = f"sha256:{'0' * 64}"
MANIFEST = json.dumps({"schemaVersion": 2, "config": {"digest": DIGEST}}).encode()


@pytest.mark.parametrize(
    ("text", "registry", "repository", "version"),
    [
        ("torch", "docker.io", "library/torch", "latest"),
        ("lab/torch:2.6", "docker.io", "lab/torch", "2.6"),
        ("localhost/torch:1", "localhost", "torch", "1"),
        ("reg:5000/lab/torch:1", "reg:5000", "lab/torch", "1"),
        ("reg.example.org/a/b/c", "reg.example.org", "a/b/c", "latest"),
        (f"reg.example.org/a@{DIGEST}", "reg.example.org", "a", DIGEST),
        (f"reg.example.org/a:1@{DIGEST}", "reg.example.org", "a", DIGEST),
    ],
)
def test_names_are_read_as_engines_read_them(
    text: str, registry: str, repository: str, version: str
) -> None:
    found = at_registry(text)
    assert (found.registry, found.repository, found.version) == (registry, repository, version)


@pytest.mark.parametrize(
    "text", ["", "UPPER", "a:b:c", "a@sha256:12", "a b", "-a", "a/", "/a", "a" * 600, "a;id", "a\n"]
)
def test_a_text_that_is_no_name_is_refused(text: str) -> None:
    with pytest.raises(UsageError, match="is not the name of an image"):
        reference(text)


def test_only_this_machine_is_trusted_without_a_certificate() -> None:
    assert all(map(is_loopback, ("localhost", "localhost:5000", "127.0.0.1:5000", "127.9.9.9")))
    assert not any(map(is_loopback, ("10.0.0.1:5000", "localhost.example.org", "vm:5000")))


def test_an_image_goes_where_it_is_told_or_where_its_name_says() -> None:
    assert str(target("torch:1", "reg.example.org/lab/t:2")) == "reg.example.org/lab/t:2"
    assert str(target("reg.example.org/lab/t:1", "")) == "reg.example.org/lab/t:1"
    for name in ("torch:1", "localhost/torch:1"):
        with pytest.raises(UsageError, match="which registry"):
            target(name, "")


def test_the_same_image_is_known_by_its_configuration_or_its_digest() -> None:
    info = ImageInfo(id="ab", digests=("reg/x@sha256:cd",))
    assert is_same(info, Manifest("sha256:ff", "", "sha256:ab"))
    assert is_same(info, Manifest("sha256:cd", ""))
    assert not is_same(info, Manifest("sha256:ff", "", "sha256:ee"))


def test_logins_are_read_where_the_engine_keeps_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    for name in ("DOCKER_CONFIG", "REGISTRY_AUTH_FILE", "XDG_RUNTIME_DIR", "XDG_CONFIG_HOME"):
        monkeypatch.delenv(name, raising=False)

    def keep(path: Path, **logins: str) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        pairs = {
            key: {"auth": base64.b64encode(text.encode()).decode()} for key, text in logins.items()
        }
        path.write_text(json.dumps({"auths": pairs}))

    assert find_login("podman", "reg.example.org") is None
    keep(tmp_path / ".docker/config.json", **{"reg.example.org": "ann:docker's"})
    assert find_login("docker", "reg.example.org") == Login("ann", "docker's")
    assert find_login("podman", "reg.example.org") == Login("ann", "docker's")
    keep(
        tmp_path / ".config/containers/auth.json",
        **{"reg.example.org": "ann:podman's", "reg.example.org/lab": "lab:a:b"},
    )
    assert find_login("podman", "reg.example.org", "other/x") == Login("ann", "podman's")
    assert find_login("podman", "reg.example.org", "lab/x") == Login("lab", "a:b")
    assert "podman's" not in repr(find_login("podman", "reg.example.org"))
    (tmp_path / ".config/containers/auth.json").write_text("no json")
    assert find_login("podman", "reg.example.org") == Login("ann", "docker's")


def test_a_login_may_be_kept_by_a_program(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DOCKER_CONFIG", str(tmp_path))
    (tmp_path / "config.json").write_text(json.dumps({"credsStore": "tests"}))
    helper = tmp_path / "docker-credential-tests"
    helper.write_text(
        '#!/bin/sh\nread -r key || [ "$key" = reg.example.org ] || exit 1\n'
        'echo \'{"Username": "ann", "Secret": "kept"}\'\n'
    )
    helper.chmod(0o755)
    assert find_login("docker", "reg.example.org") is None
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    assert find_login("docker", "reg.example.org") == Login("ann", "kept")


class _Answers(BaseHTTPRequestHandler):
    """A registry with a token server, as the large ones are."""

    server: _Server

    def do_GET(self) -> None:
        given = self.headers.get("Authorization", "")
        if self.path.startswith("/token?"):
            self.server.asked.append(self.path)
            right = f"Basic {base64.b64encode(b'ann:right').decode()}"
            self.answer(200 if given == right else 401, b'{"token": "abc"}')
        elif self.path.endswith("/absent"):
            self.answer(404)
        elif self.path.endswith("/forbidden"):
            self.answer(403)
        elif self.path.endswith("/broken"):
            self.answer(500)
        elif self.path.endswith("/changed"):
            self.answer(200, MANIFEST, digest=DIGEST)
        elif given == "Bearer abc" or self.path.endswith("/open"):
            self.answer(200, MANIFEST, digest=f"sha256:{hashlib.sha256(MANIFEST).hexdigest()}")
        else:
            realm = f"http://{self.headers['Host']}/token"
            self.answer(401, challenge=f'Bearer realm="{realm}",service="tests"')

    def answer(self, code: int, body: bytes = b"", digest: str = "", challenge: str = "") -> None:
        self.send_response(code)
        if digest:
            self.send_header("Docker-Content-Digest", digest)
        if challenge:
            self.send_header("WWW-Authenticate", challenge)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: object) -> None:
        """Say nothing."""


class _Server(ThreadingHTTPServer):
    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Answers)
        self.asked: list[str] = []


@pytest.fixture
def server() -> Iterator[_Server]:
    with _Server() as there:
        thread = threading.Thread(target=there.serve_forever, daemon=True)
        thread.start()
        yield there
        there.shutdown()
        thread.join()


def ask(server: _Server, tag: str, login: Login | None = None) -> Manifest | None:
    host = f"127.0.0.1:{server.server_port}"
    return Registry(host, login).manifest(reference(f"{host}/lab/torch:{tag}"))


def test_a_manifest_is_hashed_and_its_configuration_read(server: _Server) -> None:
    found = ask(server, "open")
    assert found == Manifest(f"sha256:{hashlib.sha256(MANIFEST).hexdigest()}", "", DIGEST)
    assert ask(server, "absent") is None


def test_a_token_is_fetched_with_the_login_for_just_this_repository(server: _Server) -> None:
    assert ask(server, "private", Login("ann", "right")) is not None
    (asked,) = server.asked
    assert "scope=repository%3Alab%2Ftorch%3Apull" in asked
    assert "service=tests" in asked


@pytest.mark.parametrize(
    ("tag", "login", "said", "hint"),
    [
        ("private", None, "wants a login for lab/torch", "podman login"),
        ("private", Login("ann", "wrong"), "refuses lab/torch", "log in as another"),
        ("forbidden", Login("ann", "right"), "refuses lab/torch", "right to write"),
        ("broken", None, "answered 500", "Try again later"),
        ("changed", None, "other bytes than it says", "proxy"),
    ],
)
def test_a_refusal_says_what_to_do_next(
    server: _Server, tag: str, login: Login | None, said: str, hint: str
) -> None:
    with pytest.raises(RegistryError, match=said) as refused:
        ask(server, tag, login)
    assert hint in refused.value.hint
    assert "wrong" not in refused.value.message + refused.value.hint


def test_a_registry_nobody_answers_at_is_told_from_one_that_refuses() -> None:
    with socket.socket() as closed:
        closed.bind(("127.0.0.1", 0))
        place = f"127.0.0.1:{closed.getsockname()[1]}"
    with pytest.raises(RegistryError, match="cannot be reached") as gone:
        Registry(place, None).manifest(at_registry(f"{place}/lab/torch:1"))
    assert gone.value.exit_code == 8
    assert RegistryError("no").exit_code == 5

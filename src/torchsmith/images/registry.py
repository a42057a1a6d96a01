"""Asking a registry what it has, with the logins of the container tools, which do the carrying.

https://github.com/opencontainers/distribution-spec/blob/main/spec.md
"""

from __future__ import annotations

import base64
import contextlib
import hashlib
import os
import re
import ssl
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from email.message import Message
from pathlib import Path
from urllib.parse import urlencode, urlsplit

from msgspec import Struct

from torchsmith.errors import HostError, RegistryError, UnreachableRegistryError
from torchsmith.foreign import MalformedError, Table, read_json, table, text
from torchsmith.http_client import StatusError, TransferError, request
from torchsmith.images.reference import Reference, is_loopback, reference
from torchsmith.plan.lock import Image
from torchsmith.programs import call

_SECONDS = 30
_MOST = 8 << 20
_KINDS = (
    "application/vnd.oci.image.manifest.v1+json",
    "application/vnd.docker.distribution.manifest.v2+json",
    "application/vnd.oci.image.index.v1+json",
    "application/vnd.docker.distribution.manifest.list.v2+json",
)
# Where tools look for the certificates of a registry of one's own.
_CERTIFICATES = ("/etc/containers/certs.d", "/etc/docker/certs.d")
# Docker Hub answers under another name than the one it is known by.
_HUB = {"docker.io": "registry-1.docker.io"}


class Manifest(Struct, frozen=True):
    """What a registry has under a name: its digest, and the image's configuration if it is one."""

    digest: str
    kind: str
    config: str = ""


class Registry:
    """One registry, asked as the container tool would; `insecure`: plain HTTP, any certificate."""

    def __init__(self, host: str, login: Login | None, *, insecure: bool = False) -> None:
        self.host = host
        self._login = login
        self._insecure = insecure or is_loopback(host)
        self._scheme = "https"
        # The header it has accepted, or asked for.
        self._shown = ""
        self._context = _context(host, self._insecure)

    def manifest(self, name: Reference) -> Manifest | None:
        """Return what lies under a name; None where nothing does."""
        path = f"/v2/{name.repository}/manifests/{name.version}"
        try:
            content, headers = self._get(path, name.repository)
        except StatusError as error:
            if error.status == 404:
                return None
            raise self._refused(error, name) from None
        digest = f"sha256:{hashlib.sha256(content).hexdigest()}"
        claimed = headers.get("Docker-Content-Digest", digest)
        if digest != claimed or (name.digest and name.digest != digest):
            raise RegistryError(
                f"{self.host} answered for {name} with other bytes than it says they are",
                "Something between here and the registry changes it: a proxy, perhaps.",
            )
        return _manifest(digest, content)

    def _get(self, path: str, repository: str) -> tuple[bytes, Message]:
        address = f"{_HUB.get(self.host, self.host)}{path}"
        accept = {"Accept": ", ".join(_KINDS)}
        try:
            return self._open(f"{self._scheme}://{address}", self._shown, accept)
        except StatusError as error:
            if error.status != 401:
                raise
            self._shown = self._authorization(error.headers.get("WWW-Authenticate", ""), repository)
            if not self._shown:
                raise
        return self._open(f"{self._scheme}://{address}", self._shown, accept)

    def _open(
        self, url: str, authorization: str, headers: Mapping[str, str] | None = None
    ) -> tuple[bytes, Message]:
        try:
            with request(
                url,
                timeout=_SECONDS,
                headers=headers,
                authorization=authorization,
                proxies=not is_loopback(self.host),
                context=self._context,
            ) as answer:
                return answer.read(_MOST), answer.headers
        except TransferError as error:
            plain = isinstance(error.cause, ssl.SSLError) and "VERIFY" not in str(error)
            if plain and self._insecure and self._scheme == "https":
                self._scheme = "http"
                return self._open(url.replace("https:", "http:", 1), authorization, headers)
            raise self._unreachable(error.cause) from None

    def _authorization(self, challenge: str, repository: str) -> str:
        """Return what a registry asks to be shown; empty where we have nothing to show."""
        kind, _, rest = challenge.partition(" ")
        basic = ""
        if self._login is not None:
            pair = f"{self._login.user}:{self._login.password}"
            basic = f"Basic {base64.b64encode(pair.encode()).decode()}"
        if kind.lower() == "basic":
            return basic
        asked = dict(re.findall(r'(\w+)="([^"]*)"', rest))
        realm = asked.get("realm", "")
        if kind.lower() != "bearer" or urlsplit(realm).scheme not in ("http", "https"):
            return ""
        query = {"scope": f"repository:{repository}:pull"}
        if "service" in asked:
            query["service"] = asked["service"]
        content, _ = self._open(f"{realm}?{urlencode(query)}", basic)
        try:
            answer = table(read_json(content))
        except MalformedError:
            return ""
        token = text(answer, "token") or text(answer, "access_token")
        return f"Bearer {token}" if token else ""

    def _refused(self, error: StatusError, name: Reference) -> RegistryError:
        if error.status in (401, 403):
            return refused(self.host, name.repository, logged_in=self._login is not None)
        return RegistryError(
            f"{self.host} answered {error.status} ({error.reason}) when asked for {name}",
            "Try again later; if it stays so, its log says why.",
        )

    def _unreachable(self, reason: object) -> RegistryError:
        why = getattr(reason, "strerror", None) or getattr(reason, "verify_message", None)
        why = why or str(reason)
        if isinstance(reason, ssl.SSLCertVerificationError):
            return RegistryError(
                f"the certificate of {self.host} is not one this machine trusts: {why}",
                f"Put the certificate of its authority at {_CERTIFICATES[0]}/{self.host}/ca.crt "
                f"(docker: {_CERTIFICATES[1]}), or take the risk with --insecure.",
            )
        if isinstance(reason, ssl.SSLError):
            return RegistryError(
                f"{self.host} does not speak HTTPS: {why}",
                "If it is a registry without TLS on a network you trust, add --insecure.",
            )
        return UnreachableRegistryError(
            f"the registry {self.host} cannot be reached: {why}",
            "Is its name right, and is it running? `curl https://HOST/v2/` should answer 200 or "
            "401.",
        )


def refused(host: str, repository: str, *, logged_in: bool) -> RegistryError:
    """What to print when a registry refuses a login."""
    if logged_in:
        return RegistryError(
            f"{host} refuses {repository} to the user that is logged in",
            f"Ask its owner for the right to write there, or log in as another: "
            f"podman login {host} (or docker login).",
        )
    return RegistryError(
        f"{host} wants a login for {repository}",
        f"podman login {host} (or docker login {host}), then the same command again.",
    )


def _context(host: str, insecure: bool) -> ssl.SSLContext:
    context = ssl.create_default_context()
    if insecure:
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE
        return context
    for place in _CERTIFICATES:
        folder = Path(place) / host
        for path in sorted(folder.glob("*.crt")) if folder.is_dir() else ():
            # One that cannot be read proves nothing; the tool says so too.
            with contextlib.suppress(OSError):
                context.load_verify_locations(path)
    return context


def _manifest(digest: str, content: bytes) -> Manifest:
    try:
        found = table(read_json(content))
    except MalformedError:
        found = {}
    return Manifest(digest, text(found, "mediaType"), text(table(found.get("config")), "digest"))


def digests(names: Iterable[str]) -> tuple[Image, ...]:
    """Every image with the digest its registry has it by now."""
    return tuple(Image(name, _digest(name)) for name in names)


def _digest(name: str) -> str:
    wanted = reference(name)
    login = find_login("podman", wanted.registry, wanted.repository)
    found = Registry(wanted.registry, login).manifest(wanted)
    if found is None:
        raise RegistryError(f"{wanted.registry} has no {name}", "Check the name of the base image.")
    return found.digest


# Docker Hub's key in a login store is the address of its first API.
_HUB_KEYS = ("https://index.docker.io/v1/", "index.docker.io", "docker.io")
_HELPER_S = 20


@dataclass(frozen=True, slots=True)
class Login:
    """A user and a password, which no printing of this value shows."""

    user: str
    password: str = field(repr=False)


def find_login(tool: str, registry: str, repository: str = "") -> Login | None:
    """Return what a tool would log in with; None where it would not."""
    for path in login_files(tool):
        table = _read_logins(path)
        for key in _keys(registry, repository):
            if login := _from_helper(table, key) or _from_file(table, key):
                return login
    return None


def login_files(tool: str) -> Iterator[Path]:
    """Where a tool keeps its logins, in the order it looks."""
    home = Path.home()
    docker = Path(os.environ.get("DOCKER_CONFIG") or home / ".docker") / "config.json"
    if tool == "docker":
        yield docker
        return
    # containers-auth.json(5)
    if named := os.environ.get("REGISTRY_AUTH_FILE"):
        yield Path(named)
        return
    runtime = os.environ.get("XDG_RUNTIME_DIR") or f"/run/containers/{os.getuid()}"
    inner = "containers/auth.json" if "XDG_RUNTIME_DIR" in os.environ else "auth.json"
    yield Path(runtime) / inner
    yield Path(os.environ.get("XDG_CONFIG_HOME") or home / ".config") / "containers/auth.json"
    yield docker


def _keys(registry: str, repository: str) -> Iterator[str]:
    """Names a login may be kept under, the closest first: one may be for a repository alone."""
    parts = repository.split("/") if repository else []
    for count in range(len(parts), 0, -1):
        yield "/".join([registry, *parts[:count]])
    yield registry
    yield f"https://{registry}"
    if registry == "docker.io":
        yield from _HUB_KEYS


def _read_logins(path: Path) -> Table:
    try:
        return table(read_json(path.read_bytes()))
    except (OSError, MalformedError):
        # The tool itself complains of a file it cannot read.
        return {}


def _from_file(logins: Table, key: str) -> Login | None:
    try:
        kept = text(table(table(logins.get("auths")).get(key)), "auth")
        user, colon, password = base64.b64decode(kept).decode().partition(":")
    except ValueError:
        return None
    return Login(user, password.rstrip("\0")) if colon else None


def _from_helper(logins: Table, key: str) -> Login | None:
    """Ask the program a login store names; see docker's docs on credential helpers."""
    name = text(table(logins.get("credHelpers")), key) or text(logins, "credsStore")
    if not name.replace("-", "").isalnum():
        return None
    try:
        helper = [f"docker-credential-{name}", "get"]
        answer = table(read_json(call(helper, stdin=key.encode(), timeout=_HELPER_S).out))
        return Login(str(answer["Username"]), str(answer["Secret"]))
    except (HostError, MalformedError, KeyError):
        return None

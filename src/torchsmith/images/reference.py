"""The name of an image, taken apart: registry, repository, tag, digest."""

from __future__ import annotations

import ipaddress
import re
from dataclasses import dataclass, replace

from torchsmith.errors import UsageError

# What tools mean by a name without a registry.
_HUB = "docker.io"
# A first part is a registry if it could be nothing else: a dot, a port, or localhost.
_HOST = r"(?:localhost|[A-Za-z0-9-]+(?:\.[A-Za-z0-9-]+)+|[A-Za-z0-9-]+(?=:[0-9]))(?::[0-9]{1,5})?"
_PART = r"[a-z0-9]+(?:(?:\.|_{1,2}|-+)[a-z0-9]+)*"
_NAME = re.compile(
    rf"(?:(?P<registry>{_HOST})/)?"
    rf"(?P<repository>{_PART}(?:/{_PART})*)"
    r"(?::(?P<tag>[A-Za-z0-9_][A-Za-z0-9._-]{0,127}))?"
    r"(?:@(?P<digest>sha256:[0-9a-f]{64}))?"
)


@dataclass(frozen=True, slots=True)
class Reference:
    """An image at a registry; `registry` is empty where the name leaves it to the tool."""

    registry: str
    repository: str
    tag: str = ""
    digest: str = ""

    def __str__(self) -> str:
        tag = f":{self.tag}" if self.tag else ""
        digest = f"@{self.digest}" if self.digest else ""
        return f"{self.name}{tag}{digest}"

    @property
    def name(self) -> str:
        """Without tag and digest."""
        return f"{self.registry}/{self.repository}" if self.registry else self.repository

    @property
    def version(self) -> str:
        """What a registry is asked for: the digest, or else the tag."""
        return self.digest or self.tag or "latest"

    def at(self, digest: str) -> Reference:
        """The same image by its digest, which never means another."""
        return replace(self, tag="", digest=digest)


def reference(text: str) -> Reference:
    """Take a name apart."""
    found = _NAME.fullmatch(text) if len(text) <= 512 else None
    if found is None:
        raise UsageError(
            f"{text!r} is not the name of an image",
            "It is written as in registry.example.org/lab/torch:2.6: lower case, one tag.",
        )
    return Reference(**{part: value or "" for part, value in found.groupdict().items()})


def at_registry(text: str) -> Reference:
    """Take the name of an image at a registry apart; what it leaves out is filled in."""
    found = reference(text)
    if not found.registry:
        alone = "/" not in found.repository
        repository = f"library/{found.repository}" if alone else found.repository
        found = replace(found, registry=_HUB, repository=repository)
    return found if found.tag or found.digest else replace(found, tag="latest")


def is_loopback(registry: str) -> bool:
    """Whether a registry is on this very machine, where nobody can listen in."""
    host = re.sub(r":[0-9]{1,5}$", "", registry)
    if host == "localhost" or host.endswith(".localhost"):
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False

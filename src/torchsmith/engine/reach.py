"""How this machine reaches the network, for programs in containers: proxies, pip, certificates."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from pathlib import Path

from torchsmith.host.probe import ask

# Of the caller's variables those that say how the network is reached.
_PASSED = ("http_proxy", "https_proxy", "ftp_proxy", "no_proxy", "all_proxy")
_PASSED_GROUPS = ("PIP_", "UV_")
_CERTIFICATES = (
    "/etc/ssl/certs/ca-certificates.crt",
    "/etc/pki/tls/certs/ca-bundle.crt",
    "/etc/ssl/ca-bundle.pem",
)
# Of pip's settings those that say how an index is reached.
_INDEXES = ("index-url", "extra-index-url", "find-links")
_WAYS = ("trusted-host", "proxy", "default-timeout", "timeout", "retries")


def passed(caller: Mapping[str, str]) -> dict[str, str]:
    """The caller's variables that a program needs to reach what the caller reaches."""
    return {
        name: value
        for name, value in caller.items()
        if name.lower() in _PASSED or name.startswith(_PASSED_GROUPS) or name == "DEBIAN_MIRROR"
    }


def certificates() -> Path | None:
    """The file with the authorities this machine trusts."""
    return next((Path(name) for name in _CERTIFICATES if os.access(name, os.R_OK)), None)


def pip_settings(caller: Mapping[str, str]) -> dict[str, str]:
    """This machine's settings of pip, as variables."""
    answer = ask([sys.executable, "-P", "-m", "pip", "config", "list"], dict(caller), timeout=30)
    found: dict[str, str] = {}
    for line in answer.out.splitlines() if answer and answer.code == 0 else ():
        key, _, text = line.partition("=")
        section, _, option = key.rpartition(".")
        if section in ("global", "install", "download", "wheel"):
            # Of several values pip writes one a line, and reads them with spaces between.
            value = " ".join(text.strip("'\"").replace("\\n", "\n").split())
            found[f"PIP_{option.upper().replace('-', '_')}"] = value
    return found


def pip_conf(caller: Mapping[str, str], trusted: str) -> str:
    """A pip.conf for where none of this machine's folders are seen; `trusted` is a file there."""
    told = {**pip_settings(caller), **caller}
    lines = ["[global]"]
    for option in (*_INDEXES, *_WAYS):
        words = told.get(f"PIP_{option.upper().replace('-', '_')}", "").split()
        if option in _INDEXES:
            words = [word for word in words if word.startswith(("http://", "https://"))]
        if words:
            lines.append(f"{option} = {' '.join(words)}")
    if trusted:
        lines.append(f"cert = {trusted}")
    return "\n".join([*lines, ""])

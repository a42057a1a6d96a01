"""Who we are at a registry: read from the engines' own login stores, and from nowhere else."""

from __future__ import annotations

import base64
import json
import os
import subprocess
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

# Docker Hub's key in a login store is the address of its first API.
_HUB_KEYS = ("https://index.docker.io/v1/", "index.docker.io", "docker.io")
_SECONDS = 20


@dataclass(frozen=True, slots=True)
class Login:
    """A user and a password, which no printing of this value shows."""

    user: str
    password: str = field(repr=False)


def find_login(engine: str, registry: str, repository: str = "") -> Login | None:
    """Return what an engine would log in with; None where it would not."""
    for path in login_files(engine):
        table = _read(path)
        for key in _keys(registry, repository):
            if login := _from_helper(table, key) or _from_file(table, key):
                return login
    return None


def login_files(engine: str) -> Iterator[Path]:
    """Where an engine keeps its logins, in the order it looks."""
    home = Path.home()
    docker = Path(os.environ.get("DOCKER_CONFIG") or home / ".docker") / "config.json"
    if engine == "docker":
        yield docker
        return
    # containers-auth.json(5)
    if given := os.environ.get("REGISTRY_AUTH_FILE"):
        yield Path(given)
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


def _read(path: Path) -> Mapping[str, object]:
    try:
        table = json.loads(path.read_bytes())
    except (OSError, ValueError):
        # The engine itself complains of a file it cannot read.
        return {}
    return table if isinstance(table, dict) else {}


def _from_file(table: Mapping[str, object], key: str) -> Login | None:
    logins = table.get("auths")
    entry = logins.get(key) if isinstance(logins, dict) else None
    text = entry.get("auth") if isinstance(entry, dict) else None
    if not isinstance(text, str) or not text:
        return None
    try:
        user, colon, password = base64.b64decode(text).decode().partition(":")
    except ValueError:
        return None
    return Login(user, password.rstrip("\0")) if colon else None


def _from_helper(table: Mapping[str, object], key: str) -> Login | None:
    """Ask the program a login store names; see docker's docs on credential helpers."""
    helpers = table.get("credHelpers")
    name = helpers.get(key) if isinstance(helpers, dict) else None
    name = name or table.get("credsStore")
    if not isinstance(name, str) or not name.replace("-", "").isalnum():
        return None
    try:
        done = subprocess.run(
            [f"docker-credential-{name}", "get"],
            input=key.encode(),
            capture_output=True,
            check=True,
            timeout=_SECONDS,
        )
        said = json.loads(done.stdout)
        return Login(str(said["Username"]), str(said["Secret"]))
    except (OSError, subprocess.SubprocessError, ValueError, KeyError, TypeError):
        return None

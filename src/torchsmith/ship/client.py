"""Running the program that uploads: found, fed with secrets unseen, and quoted without them."""

from __future__ import annotations

import os
import shutil
import sys
import urllib.error
import urllib.request
from collections.abc import Mapping, Sequence
from pathlib import Path
from urllib.parse import urlsplit

from torchsmith.errors import HostError, OutputError, UsageError
from torchsmith.programs import call
from torchsmith.redact import Redactor

_SECONDS = 30
_MOST = 64 << 20


def read_page(url: str, accept: str = "*/*") -> bytes | None:
    """A page, or None where there is none to be read."""
    if urlsplit(url).scheme not in ("http", "https"):
        return None
    request = urllib.request.Request(url, headers={"Accept": accept, "User-Agent": "torchsmith"})
    try:
        with urllib.request.urlopen(request, timeout=_SECONDS) as answer:
            content: bytes = answer.read(_MOST)
            return content
    except (urllib.error.URLError, OSError, ValueError):
        return None


_SHOWN_LINES = 6


class ClientError(OutputError):
    """A client ended badly; `said` is everything it said, without secrets."""

    def __init__(self, name: str, status: int, said: str) -> None:
        self.said = said
        lines = [line.strip() for line in said.splitlines() if line.strip()]
        shown = "".join(f"\n  {line}" for line in lines[-_SHOWN_LINES:])
        super().__init__(
            f"{name} ended with {status}{shown}",
            "What was uploaded before that stays; the same command again does the rest.",
        )


def run_client(command: Sequence[str], cure: str, secrets: Mapping[str, str] | None = None) -> str:
    """Run a client and return what it printed. Secrets reach it as variables, never as words."""
    name = command[0]
    own = str(Path(sys.executable).parent)
    program = shutil.which(name, path=f"{own}{os.pathsep}{os.environ.get('PATH', os.defpath)}")
    if program is None:
        raise HostError(f"{name} is missing", cure)
    variables = dict(secrets or {})
    redactor = Redactor(variables.values())
    answer = call([program, *command[1:]], env={**os.environ, **variables})
    if answer.code != 0:
        raise ClientError(name, answer.code, redactor.text(answer.out + answer.err))
    return redactor.text(answer.out)


def stored_password(service: str, user: str) -> str | None:
    """A password from the keyring, where `keyring` is installed and has it."""
    try:
        import keyring
        from keyring.errors import KeyringError
    except ImportError:
        return None
    try:
        return keyring.get_password(service, user)
    except KeyringError:
        return None


def secret(variable: str, service: str, user: str) -> str:
    """A password from the environment or, where `keyring` is installed, from there."""
    if value := os.environ.get(variable):
        return value
    stored = stored_password(service, user)
    if not stored:
        raise UsageError(
            f"there is no password for {service}",
            f"Set {variable} in the environment, or keep it with: keyring set {service} {user}",
        )
    return stored

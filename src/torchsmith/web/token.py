"""The token: from a file that only its owner can read, never from a command line."""

from __future__ import annotations

import secrets
from pathlib import Path

from torchsmith.errors import OutputError, UsageError
from torchsmith.owners import make_folder, read_plain, who_else_writes
from torchsmith.web.access import SHORTEST_TOKEN

_LONGEST = 4096


def token_in(file: Path) -> str:
    """The token a file holds; a new one where there is no such file."""
    try:
        if not file.exists():
            make_folder(file.parent)
            file.touch(mode=0o600, exist_ok=False)
            file.write_text(secrets.token_urlsafe(32) + "\n")
        if other := who_else_writes(file):
            raise UsageError(other, "Make it yours alone: chmod 600.")
        if file.stat().st_mode & 0o077:
            raise UsageError(f"others can read {file}", "Make it yours alone: chmod 600.")
        return check_token(read_plain(file, _LONGEST).decode().strip())
    except UnicodeDecodeError:
        raise UsageError(f"{file} holds no token", "A token is plain text.") from None
    except OSError as error:
        raise OutputError(f"{file} cannot be used: {error.strerror}") from None


def check_token(token: str) -> str:
    """Refuse one that can be guessed."""
    if len(token) < SHORTEST_TOKEN or not token.isprintable():
        raise UsageError(
            f"the token has fewer than {SHORTEST_TOKEN} characters, or odd ones",
            "Leave the file out: a good one is made.",
        )
    return token

"""The values of secrets, from where their owner keeps them: a variable, or a file of their own."""

from __future__ import annotations

import os
from pathlib import Path

from torchsmith.errors import UsageError
from torchsmith.jobs.models import Job

_MOST_BYTES = 1 << 20


def folder() -> Path:
    """Where the files are; the scripts of other engines look there too."""
    named = os.environ.get("TORCHSMITH_SECRETS")
    return Path(named) if named else Path.home() / ".config/torchsmith/secrets"


def kept_value(variable: str, reference: str) -> str | None:
    """The value of a secret, if it is kept here."""
    if value := os.environ.get(variable):
        return value
    path = folder() / reference
    try:
        with path.open("rb") as file:
            if os.fstat(file.fileno()).st_mode & 0o077:
                raise UsageError(
                    f"{path} holds a secret and can be read by others", f"chmod 600 {path}"
                )
            return file.read(_MOST_BYTES).decode(errors="surrogateescape").strip() or None
    except (FileNotFoundError, NotADirectoryError, IsADirectoryError):
        return None
    except OSError as error:
        raise UsageError(f"{path} cannot be read: {error.strerror}") from None


def value_of(variable: str, reference: str) -> str:
    """The value of a secret; who has to bring it is told where."""
    value = kept_value(variable, reference)
    if value is None:
        raise UsageError(
            f"the secret {reference} has no value here",
            f"Set {variable} in the environment, or write it into {folder() / reference} "
            "(chmod 600).",
        )
    return value


def kept_here(job: Job) -> None:
    """Refuse a job whose secrets have no value, before it waits its turn to fail."""
    for secret in job.secrets:
        value_of(secret.variable, secret.reference)

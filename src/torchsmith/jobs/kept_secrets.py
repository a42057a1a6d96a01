"""Secrets of jobs: where their owner keeps them, and which variables a job gets."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

from torchsmith.errors import UsageError
from torchsmith.jobs.models import Job
from torchsmith.secret_names import is_secret_name

_MOST_BYTES = 1 << 20


def folder() -> Path:
    """Where the files are; the scripts of other targets look there too."""
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
    """The value of a secret; without one, the error says where to put it."""
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


def handed_on(job: Job, environ: Mapping[str, str]) -> dict[str, str]:
    """The variables a job gets: a secret only if it is one of the job's own."""
    own = {secret.variable for secret in job.secrets}
    return {
        name: value for name, value in environ.items() if name in own or not is_secret_name(name)
    }

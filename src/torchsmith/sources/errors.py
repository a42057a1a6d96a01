"""The failures a person can meet while source is brought."""

from __future__ import annotations

from torchsmith.errors import TorchsmithError


class SourceError(TorchsmithError):
    """A source could not be brought, or is not what it should be."""

    exit_code = 6


class UnreachableError(SourceError):
    """Nobody answered, or who answered does not have it: another place may.

    Kept apart from a source that came but is not what was expected, which no other
    place may paper over.
    """


class NotServedError(UnreachableError):
    """A server answered, and said that it does not have the file."""

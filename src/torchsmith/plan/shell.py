"""Writing shell lines that mean what they say."""

from __future__ import annotations

import shlex


def sh(*words: str) -> str:
    """Join words into one command, each quoted where it must be."""
    return shlex.join(words)


def unless(test: str, complaint: str) -> str:
    """A test that ends the step with a sentence when it fails."""
    return f"{test} || {{ echo {shlex.quote(complaint)} >&2; exit 1; }}"


def in_work(path: str) -> str:
    """A path of the work folder, absolute, as a shell word."""
    return f'"$WORK"/{shlex.quote(path)}'

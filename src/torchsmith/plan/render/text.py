"""What every rendering writes for people: comments of whole sentences."""

from __future__ import annotations

import textwrap
from functools import partial


def sentences(*parts: str) -> str:
    """Join texts as sentences: a capital first, one full stop last."""
    written = [part.strip() for part in parts if part.strip()]
    # An address or a path stays as it is.
    return " ".join(
        (part if "/" in part.split()[0] else part[0].upper() + part[1:]).rstrip(".") + "."
        for part in written
    )


# Names of packages and options stay whole.
_wrapped = partial(textwrap.wrap, width=96, break_long_words=False, break_on_hyphens=False)


def comment(text: str) -> list[str]:
    """A text as lines that start with a hash."""
    return [f"# {line}" for line in _wrapped(text)]

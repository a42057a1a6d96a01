"""JSON that others wrote, or that a kill cut short: one kind of error whatever is wrong with it."""

from __future__ import annotations

from typing import TypeVar

import msgspec

T = TypeVar("T")


class MalformedError(msgspec.ValidationError):
    """It is no JSON, has other types than it should, bytes that are no text, or no end of depth."""


def decode(content: bytes | str, kind: type[T]) -> T:
    """Read JSON of a kind; msgspec alone lets two of the errors through under other names."""
    try:
        return msgspec.json.decode(content, type=kind)
    except (msgspec.MsgspecError, UnicodeError, RecursionError) as error:
        raise MalformedError(str(error)) from None

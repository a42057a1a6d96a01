"""Versions and version ranges, the way build recipes write them.

A range is written ``LOW:HIGH``, both ends inclusive and either end optional. An end
counts *by prefix*: ``1.9:1.10`` holds 1.10.2, and ``2.6`` alone holds 2.6.0 and every
2.6.x. This is the notation of Spack, in which most public knowledge of this kind is
already written down.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import lru_cache

Release = tuple[int, ...]

_LABEL = re.compile(r"\A(?:cu([0-9]{1,2})|([0-9]{2}))([0-9])\Z")
_VERSION = re.compile(r"[0-9]{1,6}(?:\.[0-9]{1,6}){0,5}")


@lru_cache(maxsize=4096)
def release(text: str) -> Release:
    """Return the numbers of a dotted version; `ValueError` if it is not one."""
    if not _VERSION.fullmatch(text):
        raise ValueError(f"{text!r} is not a version number such as 2.6.0")
    return tuple(int(part) for part in text.split("."))


def cuda_release(text: str) -> str:
    """A CUDA release as it is, or as wheels are labelled: cu126, or 126."""
    return _LABEL.sub(r"\1\2.\3", text)


def python_release(text: str) -> Release:
    """Return the numbers of a CPython: (3, 13) for 3.13, and for the free-threaded 3.13t."""
    return release(text.removesuffix("t"))


def dotted(numbers: Release) -> str:
    """Write a release back as text."""
    return ".".join(map(str, numbers))


@dataclass(frozen=True, slots=True)
class VersionRange:
    """An inclusive, prefix-matching range of versions."""

    low: Release | None
    high: Release | None
    text: str

    def __contains__(self, version: str | Release) -> bool:
        numbers = release(version) if isinstance(version, str) else version
        if self.low is not None and numbers[: len(self.low)] < self.low:
            return False
        return self.high is None or numbers[: len(self.high)] <= self.high

    def touches(self, version: str | Release) -> bool:
        """Whether any release this version stands for is in the range: 8.0 may be 8.0.5."""
        numbers = release(version) if isinstance(version, str) else version
        depth = len(numbers)
        if self.low is not None and numbers[: len(self.low)] < self.low[:depth]:
            return False
        return self.high is None or numbers[: len(self.high)] <= self.high

    def __str__(self) -> str:
        low = dotted(self.low) if self.low is not None else ""
        # An end of one number takes in everything below it: 3 is 3.x.
        high = dotted(self.high) if self.high is not None else ""
        if self.high is not None and len(self.high) == 1:
            high += ".x"
        if not low:
            return f"up to {high}" if high else "any version"
        if self.low == self.high:
            return high
        return f"{low} to {high}" if high else f"{low} or newer"


@lru_cache(maxsize=4096)
def version_range(text: str) -> VersionRange:
    """Parse ``LOW:HIGH``; a single version is the range of everything it prefixes."""
    low, colon, high = text.partition(":")
    if not colon:
        only = release(low)
        return VersionRange(only, only, text)
    parsed = VersionRange(release(low) if low else None, release(high) if high else None, text)
    if parsed.low and parsed.high and parsed.low[: len(parsed.high)] > parsed.high:
        raise ValueError(f"the range {text!r} ends before it begins")
    return parsed


def requirement(name: str, span: VersionRange) -> str:
    """Write a range as a pip requirement: ``70.1:81`` -> ``name>=70.1,<82``."""
    bounds: list[str] = []
    if span.low is not None:
        bounds.append(f">={dotted(span.low)}")
    if span.high is not None:
        bounds.append(f"<{dotted((*span.high[:-1], span.high[-1] + 1))}")
    return name + ",".join(bounds)

"""Asking a server what it has, before anything is sent there."""

from __future__ import annotations

import urllib.error
import urllib.request
from urllib.parse import urlsplit

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

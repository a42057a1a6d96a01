"""C++ names as people write them, by the C++ library that nearly every Linux has."""

from __future__ import annotations

import ctypes
from functools import cache


@cache
def _library() -> ctypes.CDLL | None:
    try:
        library = ctypes.CDLL("libstdc++.so.6")
        # The result has to be freed, so it must not become bytes on the way.
        library.__cxa_demangle.restype = ctypes.c_void_p
        library.free.argtypes = [ctypes.c_void_p]
    except (OSError, AttributeError):
        return None
    return library


def demangled(symbol: str) -> str:
    """`_ZN3c105Error…` -> `c10::Error…`; empty for a C name, or where there is no C++ library."""
    library = _library() if symbol.startswith("_Z") else None
    if library is None:
        return ""
    status = ctypes.c_int()
    found = library.__cxa_demangle(symbol.encode(), None, None, ctypes.byref(status))
    if not found:
        return ""
    text = ctypes.string_at(found).decode("utf-8", "replace")
    library.free(found)
    return text

"""Output as lines, where it comes piece by piece: from an engine, or from a log that grows."""

from __future__ import annotations

from collections.abc import Iterator


class LineCutter:
    """Cuts the pieces of one task's output into lines; `taken` is how many bytes it was fed."""

    def __init__(self, name: str = "") -> None:
        self.taken = 0
        self._head = f"{name} | " if name else ""
        self._rest = b""

    def feed(self, piece: bytes) -> Iterator[str]:
        """The lines a piece completes."""
        self.taken += len(piece)
        *lines, self._rest = (self._rest + piece).split(b"\n")
        yield from map(self._line, lines)

    def finish(self) -> Iterator[str]:
        """What is left at the end."""
        if self._rest:
            yield self._line(self._rest)
        self._rest = b""

    def _line(self, line: bytes) -> str:
        # A progress bar writes over itself: what it said last is what is seen.
        seen = line.rstrip(b"\r").rpartition(b"\r")[2]
        return self._head + seen.decode(errors="replace")

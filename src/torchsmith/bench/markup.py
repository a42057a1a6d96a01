"""What the pages of this room have in common."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from html import escape


def table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """A table of plain texts."""
    words = "".join(f"<th>{escape(word)}</th>" for word in head)
    lines = "".join(
        f"<tr>{''.join(f'<td>{escape(cell)}</td>' for cell in row)}</tr>" for row in rows
    )
    return wide(f"<table><tr>{words}</tr>{lines}</table>\n")


# A phone scrolls what is wider than it, instead of shrinking it beyond reading.
WIDE = ".wide { overflow-x: auto; } .wide svg { min-width: 760px; }\n"
VIEWPORT = '<meta name="viewport" content="width=device-width, initial-scale=1">'


def wide(content: str) -> str:
    """Something that may be wider than the page."""
    return f'<div class="wide">{content}</div>\n'

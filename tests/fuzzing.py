"""Honest content that is changed: by bytes, by values, by words.

The number of tries is fixed, so that a run takes seconds; `TRIES` in the environment asks for more.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from hypothesis import HealthCheck, Phase, settings
from hypothesis import strategies as st

TRIES = int(os.environ.get("TRIES", "60"))
QUICK = settings(
    max_examples=TRIES,
    deadline=None,
    derandomize="TRIES" not in os.environ,
    database=None,
    # A failure is told as it is found: to look for a smaller one takes minutes.
    phases=(Phase.explicit, Phase.generate),
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.function_scoped_fixture],
)

# How a file is changed: where (as a share of its length), and what comes there instead of how much.
Edit = tuple[float, int, bytes]
edits = st.lists(
    st.tuples(
        st.floats(0, 1, exclude_max=True),
        st.sampled_from([0, 0, 1, 2, 4, 64, 1 << 20]),
        st.one_of(
            st.binary(max_size=8),
            st.sampled_from([b"\0" * 4, b"\xff" * 8, b"[" * 3000, b"-1", b"1e999", b'"', b"{}"]),
        ),
    ),
    min_size=1,
    max_size=6,
)


def changed(content: bytes, how: list[Edit]) -> bytes:
    made = bytearray(content)
    for share, length, instead in how:
        at = int(share * len(made))
        made[at : at + length] = instead
    return bytes(made)


values: st.SearchStrategy[Any] = st.recursive(
    st.one_of(
        st.none(),
        st.booleans(),
        st.integers(),
        st.integers(-(1 << 70), 1 << 70),
        st.floats(),
        st.text(max_size=12),
        st.sampled_from(["../../x", "\x1b]52;c;x\x07", "$(id)", "a\nb", "\ud800", "0" * 5000, ""]),
    ),
    lambda inner: st.one_of(
        st.lists(inner, max_size=3), st.dictionaries(st.text(max_size=6), inner, max_size=3)
    ),
    max_leaves=4,
)


def places(document: Any, at: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    yield at
    if isinstance(document, dict):
        for key, value in document.items():
            yield from places(value, (*at, key))
    elif isinstance(document, list):
        for number, value in enumerate(document):
            yield from places(value, (*at, number))


def put(document: Any, at: tuple[Any, ...], value: Any) -> Any:
    if not at:
        return value
    copy = dict(document) if isinstance(document, dict) else list(document)
    copy[at[0]] = put(copy[at[0]], at[1:], value)
    return copy


Put = tuple[tuple[Any, ...], Any]


def puts(document: Any) -> st.SearchStrategy[list[Put]]:
    """Other values for some places of a document."""
    every = list(places(document))
    return st.lists(st.tuples(st.sampled_from(every), values), min_size=1, max_size=3)


def put_all(document: Any, wanted: list[Put]) -> Any:
    for at, value in wanted:
        if at in set(places(document)):
            document = put(document, at, value)
    return document


ODD_WORDS = (
    *("", "²", "-1", "9" * 5000, "1-99999999999", "[1-99999999999]", "nan", "inf", "[" * 3000),
    *("0001-01-01T00:00:00", "9999-12-31T23:59:59", "\x1b]52;c;x\x07"),
)
# What a word of a text is changed to, and which one.
words = st.lists(
    st.tuples(
        st.floats(0, 1, exclude_max=True),
        st.one_of(
            st.sampled_from(ODD_WORDS),
            st.text(max_size=6),
        ),
    ),
    min_size=1,
    max_size=4,
)
_WORDS = re.compile(r"([^\s=|,:;\[\]()\"-]+)")


def respelled(text: str, others: list[tuple[float, str]]) -> str:
    """A text with other words in some places."""
    parts = _WORDS.split(text)
    for share, word in others:
        parts[int(share * (len(parts) // 2)) * 2 + 1] = word
    return "".join(parts)


def toml(value: Any) -> str:
    """A value as TOML, tables inline."""
    if isinstance(value, dict):
        pairs = (f"{json.dumps(str(key))} = {toml(item)}" for key, item in value.items())
        return "{" + ", ".join(pairs) + "}"
    if isinstance(value, list):
        return "[" + ", ".join(map(toml, value)) + "]"
    if isinstance(value, float):
        return repr(value)
    return json.dumps("none" if value is None else value)


def write(path: Path, document: Any, form: str) -> Path:
    if form == "toml":
        table = document if isinstance(document, dict) else {"a": document}
        text = "".join(f"{json.dumps(str(key))} = {toml(item)}\n" for key, item in table.items())
    else:
        text = json.dumps(document)
    path.write_text(text, encoding="utf-8", errors="replace")
    return path

"""Every regular expression takes time that grows with its text and no faster.

Texts of strangers go through them: logs, names, answers of servers. Each expression is given the
texts that make its own repetitions overlap, in the way the code uses it.
"""

from __future__ import annotations

import importlib
import pkgutil
import re
import re._constants as op  # type: ignore[import-not-found]
import re._parser as parser  # type: ignore[import-not-found]
import signal
import time
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

import pytest

import torchsmith

pytestmark = pytest.mark.unit

# A square of this takes seconds, what is linear a few milliseconds.
LENGTH = 24_000
MOST_CPU_S = 0.5
LIKELY = "a1 -/.:\"'x\t_\n"
# Given short texts only: what bounds them.
BOUNDED: dict[str, str] = {}


class TooSlowError(Exception):
    """An expression that does not come to an end."""


def _inside(value: object, depth: int = 0) -> Iterator[re.Pattern[Any]]:
    if isinstance(value, re.Pattern):
        yield value
    elif isinstance(value, dict) and depth < 4:
        yield from _inside(tuple(value.values()), depth + 1)
    elif isinstance(value, tuple | list | set | frozenset) and depth < 4:
        for item in value:
            yield from _inside(item, depth + 1)


@cache
def expressions() -> dict[str, tuple[re.Pattern[Any], str]]:
    """Every expression of a module, by its name, with the method it is used with."""
    found: dict[str, tuple[re.Pattern[Any], str]] = {}
    seen: set[re.Pattern[Any]] = set()
    for module in pkgutil.walk_packages(torchsmith.__path__, "torchsmith."):
        if module.name.endswith("__main__"):
            continue
        loaded = importlib.import_module(module.name)
        text = Path(str(loaded.__file__)).read_text()
        for name, value in vars(loaded).items():
            if name.startswith("__"):
                continue
            used = set(re.findall(rf"\b{name}\.(\w+)\(", text))
            method = "search" if used & {"search", "sub", "findall", "finditer", "split"} else ""
            method = method or ("match" if "match" in used or not used else "fullmatch")
            for number, item in enumerate(_inside(value)):
                if item not in seen:
                    seen.add(item)
                    found[f"{module.name.removeprefix('torchsmith.')}.{name}[{number}]"] = (
                        item,
                        method,
                    )
    return found


def _one(item: tuple[Any, Any]) -> str:
    """A character that a node takes."""
    kind, value = item
    if kind is op.LITERAL:
        return chr(value)
    for letter in LIKELY:
        if kind is op.ANY or (kind is op.NOT_LITERAL and ord(letter) != value):
            return letter
        if kind is op.IN and _takes(value, letter):
            return letter
    return next(
        (chr(code) for code in range(128) if kind is op.IN and _takes(value, chr(code))), ""
    )


def _takes(members: Any, letter: str) -> bool:
    kinds = {
        op.CATEGORY_SPACE: letter.isspace(),
        op.CATEGORY_DIGIT: letter.isdigit(),
        op.CATEGORY_WORD: letter.isalnum() or letter == "_",
        op.CATEGORY_NOT_SPACE: not letter.isspace(),
        op.CATEGORY_NOT_DIGIT: not letter.isdigit(),
        op.CATEGORY_NOT_WORD: not (letter.isalnum() or letter == "_"),
    }
    taken = any(
        (kind is op.LITERAL and chr(value) == letter)
        or (kind is op.RANGE and value[0] <= ord(letter) <= value[1])
        or (kind is op.CATEGORY and kinds.get(value, False))
        for kind, value in members
        if kind is not op.NEGATE
    )
    return taken != (members[0][0] is op.NEGATE)


REPEATS = (op.MAX_REPEAT, op.MIN_REPEAT, op.POSSESSIVE_REPEAT)


def _shortest(tree: Any) -> str:
    parts = []
    for kind, value in tree:
        if kind in REPEATS:
            parts.append(_shortest(value[2]) * value[0])
        elif kind is op.SUBPATTERN:
            parts.append(_shortest(value[3]))
        elif kind is op.BRANCH:
            parts.append(_shortest(value[1][0]))
        elif kind in (op.LITERAL, op.NOT_LITERAL, op.ANY, op.IN):
            parts.append(_one((kind, value)))
    return "".join(parts)


def _pumps(tree: Any, before: str = "") -> Iterator[tuple[str, str]]:
    """For each repetition: a text that leads to it, and what it repeats."""
    for kind, value in tree:
        if kind in REPEATS:
            least, most, inner = value
            unit = _shortest(inner)
            if most is op.MAXREPEAT or most >= 100:
                yield before, unit or "a"
            yield from _pumps(inner, before)
            before += unit * least
        elif kind is op.SUBPATTERN:
            yield from _pumps(value[3], before)
            before += _shortest(value[3])
        elif kind is op.BRANCH:
            for branch in value[1]:
                yield from _pumps(branch, before)
            before += _shortest(value[1][0])
        elif kind in (op.LITERAL, op.NOT_LITERAL, op.ANY, op.IN):
            before += _one((kind, value))


def texts(expression: re.Pattern[Any], length: int = LENGTH) -> Iterator[str]:
    """Texts that make the repetitions of an expression overlap, and end in a disappointment."""
    pattern = expression.pattern
    known = pattern if isinstance(pattern, str) else pattern.decode("latin1")
    tree = parser.parse(known, expression.flags & (re.I | re.M | re.S | re.X))
    shapes = dict.fromkeys(
        shape
        for before, unit in _pumps(tree)
        for shape in ((before, unit), ("", before + unit))
        if shape[1]
    )
    for head, unit in shapes:
        yield head + unit * (length // len(unit)) + "\0"


def cpu_seconds(expression: re.Pattern[Any], method: str, text: str) -> float:
    """The processor's time, which other work on the machine does not change."""

    def stop(*_: object) -> None:
        raise TooSlowError

    given = text if isinstance(expression.pattern, str) else text.encode("latin1", "replace")
    before = signal.signal(signal.SIGPROF, stop)
    signal.setitimer(signal.ITIMER_PROF, MOST_CPU_S)
    began = time.process_time()
    try:
        if method == "search":
            for _ in expression.finditer(given):
                pass
        else:
            getattr(expression, method)(given)
        # Here, so that one which fires at the last moment is caught, too.
        signal.setitimer(signal.ITIMER_PROF, 0)
    except TooSlowError:
        return float("inf")
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)
        signal.signal(signal.SIGPROF, before)
    return time.process_time() - began


def test_the_texts_find_out_an_expression_that_is_not_linear() -> None:
    for pattern in (r"(a+)+b", r"\s+x", r"a.*b.*c", r"x\d+[\d.]*-y"):
        expression = re.compile(pattern)
        # Twice as long: a quick machine does the square of the other in less.
        longer = texts(expression, 2 * LENGTH)
        slow = max(cpu_seconds(expression, "search", text) for text in longer)
        assert slow > MOST_CPU_S, pattern


def test_every_expression_takes_linear_time() -> None:
    slow = [
        f"{name} ({method}): {expression.pattern!r:.200} on {text[:60]!r}"
        for name, (expression, method) in expressions().items()
        for text in texts(expression)
        if name not in BOUNDED and cpu_seconds(expression, method, text) > MOST_CPU_S
    ]
    assert len(expressions()) > 200
    assert slow == []

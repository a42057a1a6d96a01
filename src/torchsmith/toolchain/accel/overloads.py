"""Functions that a file would call in a batch and would not call by itself.

A file has a function of its own, clean(const Graph&) in an unnamed namespace, and a header that
only another file of the batch reads declares clean(Graph&): that one fits a call better, so the
file calls it, and nothing is said. What could go that way is found by names: in the text of files
before they are compiled, and in the object afterwards.
"""

from __future__ import annotations

import re
import subprocess
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from itertools import combinations
from pathlib import Path

from torchsmith.toolchain.accel.files import read_source
from torchsmith.toolchain.accel.unit import included_sources

# Comments, strings, characters and lines of the preprocessor: no code, and they may hold braces.
_NO_CODE = re.compile(
    r"//[^\n]*|/\*.*?(?:\*/|\Z)"
    r'|R"(?P<end>[^(\s]{0,16})\(.*?(?:\)(?P=end)"|\Z)'
    r"|\"(?:\\.|[^\"\\\n])*\"|(?<![0-9a-fA-F])'(?:\\.|[^'\\\n])*'"
    r"|^[ \t]*#(?:[^\n\\]|\\.|\\\n)*",
    re.DOTALL | re.MULTILINE,
)
_BREAK = re.compile(r"[{};]")
_NAMESPACE = re.compile(r"\bnamespace\b(?:\s*\[\[[^\[\]]*\]\])?(?:\s*([\w:]+))?\s*$")
_LINKAGE = re.compile(r"\bextern\s*$")
_CALLED = re.compile(r"\b([A-Za-z_]\w*)\s*\(")
_NO_FUNCTION = re.compile(r"\s*(?:using|typedef|struct|class|enum|union|friend|return)\b")
_TEMPLATE = re.compile(r"\s*template\s*<")
_NOT_A_NAME = frozenset(
    ["__attribute__", "alignas", "decltype", "noexcept", "operator", "requires"]
)
_PART = re.compile(r"(\d+)")


@dataclass(frozen=True, slots=True)
class Function:
    """A function by its namespace and name; `local` to its file, or for every file to call."""

    namespace: tuple[str, ...]
    name: str
    local: bool = False

    def is_seen_from(self, other: Function) -> bool:
        """Whether a call that means the other finds this one, too.

        By its namespace, or by that of an argument: those are mostly of the outermost ones.
        """
        if self.name != other.name:
            return False
        enclosing = other.namespace[: len(self.namespace)] == self.namespace
        return enclosing or len(self.namespace) == 1


def functions(text: str) -> frozenset[Function]:
    """The functions that a C++ text declares or defines in namespaces, as far as words tell."""
    return frozenset(_functions(_NO_CODE.sub(" ", text)))


def _functions(code: str) -> Iterator[Function]:
    # None stands for a body: of a function, a class, a list of values.
    inside: list[str | None] = []
    bodies = start = 0
    for found in _BREAK.finditer(code):
        end = found.start()
        match found[0]:
            case "{":
                head = code[start:end] if not bodies else ""
                named = _NAMESPACE.search(head) if not bodies else None
                if named is not None:
                    inside.append(named[1] or "")
                elif not bodies and _LINKAGE.search(head):
                    inside.append("::")
                else:
                    yield from _declared(head, inside)
                    inside.append(None)
                    bodies += 1
            case "}":
                if inside and inside.pop() is None:
                    bodies -= 1
            case _ if not bodies:
                yield from _declared(code[start:end], inside)
        start = found.end()


def _declared(head: str, inside: Iterable[str | None]) -> Iterator[Function]:
    if "(" not in head:
        return
    head = _without_parameters(head)
    if _NO_FUNCTION.match(head):
        return
    for found in _CALLED.finditer(head):
        before = head[: found.start()].strip()
        if found[1] in _NOT_A_NAME:
            continue
        # A name without a type before it is a macro; of another scope, no function of this one.
        if before and "=" not in _without_angles(before) and not before.endswith("::"):
            names = [name for name in inside if name != "::"]
            path = tuple(part for name in names if name for part in name.split("::"))
            local = "" in names or re.search(r"\bstatic\b", before) is not None
            yield Function(path, found[1], local)
        return


def _without_parameters(head: str) -> str:
    """A declaration without the parameters of the template that it is."""
    while opened := _TEMPLATE.match(head):
        depth = parentheses = 0
        for place in range(opened.end() - 1, len(head)):
            letter = head[place]
            parentheses += (letter == "(") - (letter == ")")
            if not parentheses:
                depth += (letter == "<") - (letter == ">")
                if not depth:
                    break
        head = head[place + 1 :]
    return head


def _without_angles(text: str) -> str:
    """A declaration's beginning without the arguments of templates."""
    while (shorter := re.sub(r"<[^<>]*>", " ", text)) != text:
        text = shorter
    return text


def written_functions(path: Path) -> frozenset[Function]:
    """The functions in a file's own text, also where it only includes another C++ file."""
    found: set[Function] = set()
    for file in (path, *map(Path, included_sources(path))):
        found |= functions(read_source(file))
    return frozenset(found)


def rivals(files: Mapping[str, frozenset[Function]]) -> frozenset[frozenset[str]]:
    """The pairs of files of which one has a function that calls of the other could find."""
    by_name: dict[str, dict[str, list[Function]]] = {}
    for file, written in files.items():
        for function in (item for item in written if item.local):
            by_name.setdefault(function.name, {}).setdefault(file, []).append(function)
    return frozenset(
        frozenset((one, other))
        for owners in by_name.values()
        for one, other in combinations(owners, 2)
        if any(
            mine.is_seen_from(theirs) or theirs.is_seen_from(mine)
            for mine in owners[one]
            for theirs in owners[other]
        )
    )


def called_functions(made: Path) -> frozenset[Function]:
    """The functions an object defines for others, or calls of others."""
    listed = subprocess.run(
        ["nm", "--format=posix", str(made)], check=True, capture_output=True, text=True
    )
    found: set[Function] = set()
    for line in listed.stdout.splitlines():
        symbol, kind = line.split(" ")[:2]
        if kind in "UTW" and (function := _demangled(symbol)):
            found.add(function)
    return frozenset(found)


def _demangled(symbol: str) -> Function | None:
    """The function of a symbol, if its name is made of plain names."""
    nested = symbol.startswith("_ZN")
    rest = symbol[3:] if nested else symbol[2:]
    if not symbol.startswith("_Z"):
        return None
    names: list[str] = []
    while length := _PART.match(rest):
        end = length.end() + int(length[1])
        names.append(rest[length.end() : end])
        rest = rest[end:]
    # What follows a function's name: its tags, its arguments' types; a variable's has nothing.
    whole = rest[:1] in ("E", "I", "B") and rest != "E" if nested else bool(rest)
    if not names or not whole or any(name.startswith("_GLOBAL__N") for name in names):
        return None
    return Function(tuple(names[:-1]), names[-1])


def strangers(
    written: frozenset[Function], called: frozenset[Function], declared: frozenset[Function]
) -> frozenset[Function]:
    """The functions that calls of a file may find, and that it does not declare by itself.

    `written` are those in its own text, `called` those of the object it is in, `declared` those in
    all that it reads when it is compiled alone, as far as that is known.
    """
    own = [item for item in written if item.local]
    known = {(item.namespace, item.name) for item in written | declared if not item.local}
    names = {item.name for item in own}
    return frozenset(
        function
        for function in called
        if function.name in names
        and (function.namespace, function.name) not in known
        and any(function.is_seen_from(mine) for mine in own)
    )

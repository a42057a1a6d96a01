"""Headers that gcc precompiles once for many compiles: which are worth it, and making them.

All of this lies in a folder of one build, and is made by whoever needs it first.
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Protocol, TypeVar

from torchsmith.toolchain.accel.files import read_dependencies, read_source, write_text
from torchsmith.toolchain.accel.gcc_command import ONCE, SOURCES, Compile, run

# With fewer compiles of one kind to come nothing is gained.
FEWEST = 6
# Compiling headers costs about this many readings of them.
_MAKING = 3
# Each further set takes as much room on disk as the first, and serves fewer files.
_MOST = 3


def choose(units: Sequence[Iterable[str]], sizes: Mapping[str, int]) -> tuple[frozenset[str], ...]:
    """Sets of headers, the largest first; each is read whole by several of the units.

    A unit is what one compile reads. It will be given the largest set of which it reads
    everything, so that it sees no header it does not see by itself.
    """
    readers: dict[str, int] = {}
    for place, unit in enumerate(units):
        for header in unit:
            readers[header] = readers.get(header, 0) | 1 << place
    weights: dict[int, int] = {}
    for header, who in readers.items():
        weights[who] = weights.get(who, 0) + sizes.get(header, 0)
    candidates = {
        who: sum(weight for other, weight in weights.items() if other & who == who)
        for who in weights
        if who.bit_count() >= FEWEST
    }
    spared = [0] * len(units)
    chosen: list[int] = []
    while candidates and len(chosen) < _MOST:
        gains = {who: _gain(who, weight, spared) for who, weight in candidates.items()}
        # Of those that gain as much, always the same.
        best = max(sorted(gains), key=gains.__getitem__)
        if gains[best] <= 0:
            break
        chosen.append(best)
        for place in _places(best):
            spared[place] = max(spared[place], candidates[best])
    chosen.sort(key=candidates.__getitem__, reverse=True)
    return tuple(
        frozenset(header for header, other in readers.items() if other & who == who)
        for who in chosen
    )


def _gain(who: int, weight: int, spared: Sequence[int]) -> int:
    return sum(max(0, weight - spared[place]) for place in _places(who)) - _MAKING * weight


def _places(who: int) -> list[int]:
    return [place for place in range(who.bit_length()) if who >> place & 1]


def tops(
    headers: AbstractSet[str], includes: Mapping[str, Sequence[str]], order: Iterable[str]
) -> tuple[str, ...]:
    """As few of the headers as it takes to read all of them, in the order in which a unit reads."""
    below = {name for header in headers for name in includes.get(header, ()) if name != header}
    ordered = [name for name in order if name in headers]
    chosen: set[str] = set()
    covered: set[str] = set()
    # Headers that include one another in a circle are below each other, and one of them is needed.
    for name in (*(name for name in ordered if name not in below), *ordered):
        if name not in covered:
            chosen.add(name)
            covered |= _reached(name, includes, covered)
    return tuple(name for name in ordered if name in chosen)


def _reached(
    start: str, includes: Mapping[str, Sequence[str]], already: AbstractSet[str]
) -> set[str]:
    seen: set[str] = set()
    queue = [start]
    while queue:
        name = queue.pop()
        if name not in seen and name not in already:
            seen.add(name)
            queue += includes.get(name, ())
    return seen


_COMMENT = re.compile(r"/\*.*?(?:\*/|\Z)", re.DOTALL)
_DIRECTIVE = re.compile(
    r"^[ \t]*#[ \t]*(include|ifdef|ifndef|if|elif|else|endif|define|undef)\b[ \t]*(.*)",
    re.MULTILINE,
)
_INCLUDED = re.compile(r'(["<])([^">]+)[">]')
_DEFINED = re.compile(r"(!?)[ \t]*defined[ \t]*(?:\([ \t]*)?(\w+)[ \t]*(?:\)[ \t]*)?(?://.*)?$")
# What every C++ compiler on Linux defines that headers ask for, and what none is asked to.
_USUAL = frozenset(["__cplusplus", "__linux__"])
_NEVER = frozenset(["_WIN32", "_MSC_VER", "__APPLE__", "__CUDACC__", "__HIPCC__", "__CUDA_ARCH__"])


class Includes:
    """The includes of files, read once each, as far as they can be told without a compiler.

    Only what is certain counts: an include under a condition nobody here can decide is left out.

    `folders` are where headers are looked for, absolute and in order, `defined` the macros of the
    command. A header that lies in none of them is the compiler's own, and known by its name alone.
    """

    def __init__(
        self,
        folders: Sequence[str],
        defined: Iterable[str],
        known: Mapping[str, Sequence[str]] | None = None,
    ) -> None:
        self._folders = tuple(dict.fromkeys(folders))
        self._defined = _USUAL | frozenset(defined)
        self.known = dict(known or {})
        self._found: dict[str, str] = {}

    def closure(self, path: str) -> dict[str, None]:
        """All that a file reads, itself first, in the order in which it does."""
        seen: dict[str, None] = {}
        queue = [path]
        while queue:
            name = queue.pop()
            if name not in seen:
                seen[name] = None
                queue += reversed(self.of(name))
        return seen

    def of(self, path: str) -> Sequence[str]:
        """What a file includes itself."""
        if path not in self.known:
            self.known[path] = () if path.startswith("<") else self._read(path)
        return self.known[path]

    def spelling(self, path: str) -> str | None:
        """How a header is included from anywhere; None where it cannot be."""
        if path.startswith("<"):
            return path
        for folder in self._folders:
            if path.startswith(f"{folder}/"):
                name = path.removeprefix(f"{folder}/")
                return f"<{name}>" if self._find(name) == path else None
        return None

    def _read(self, path: str) -> tuple[str, ...]:
        try:
            with open(path, encoding="utf-8", errors="replace") as file:  # noqa: PTH123
                text = file.read()
        except OSError:
            return ()
        if "/*" in text:
            text = _COMMENT.sub("", text)
        matches = list(_DIRECTIVE.finditer(text))
        guard = _guard([(match[1], match[2]) for match in matches])
        here = os.path.dirname(path)  # noqa: PTH120
        found: list[str] = []
        # For each open condition whether this branch is taken, and whether one before it was.
        open_: list[tuple[bool | None, bool | None]] = []
        depth = at = 0
        for match in matches:
            word, rest = match[1], match[2]
            depth += text.count("{", at, match.start()) - text.count("}", at, match.start())
            at = match.end()
            if word in ("if", "ifdef", "ifndef"):
                taken = self._holds(word, rest, guard)
                open_.append((taken, taken))
            elif word in ("else", "elif") and open_:
                before = open_.pop()[1]
                taken = not before if word == "else" and before is not None else None
                open_.append((False if before else taken, before or taken))
            elif word == "endif" and open_:
                open_.pop()
            # Within braces, of a namespace or of C's functions, a header means something else.
            elif word == "include" and depth == 0 and all(taken for taken, _ in open_):
                name = _INCLUDED.match(rest)
                if name:
                    found.append(self._resolve(name[2], here if name[1] == '"' else ""))
        return tuple(found)

    def _holds(self, word: str, rest: str, guard: str) -> bool | None:
        """Whether a condition holds; None where that is not known."""
        rest = rest.strip()
        if word == "if":
            if rest in ("0", "1"):
                return rest == "1"
            match = _DEFINED.fullmatch(rest)
            if match is None:
                return None
            negated, name = bool(match[1]), match[2]
        else:
            negated, name = word == "ifndef", re.split(r"\W", rest, maxsplit=1)[0]
        if negated and name == guard:
            return True
        if name in self._defined:
            return not negated
        return negated if name in _NEVER else None

    def _resolve(self, name: str, here: str) -> str:
        if here:
            beside = os.path.normpath(f"{here}/{name}")
            if os.path.isfile(beside):  # noqa: PTH113
                return os.path.realpath(beside)
        return self._find(name)

    def _find(self, name: str) -> str:
        if name not in self._found:
            places = (f"{folder}/{name}" for folder in self._folders)
            at = next((place for place in places if os.path.isfile(place)), None)  # noqa: PTH113
            self._found[name] = os.path.realpath(at) if at else f"<{name}>"
        return self._found[name]


def _guard(directives: Sequence[tuple[str, str]]) -> str:
    """The macro by which a header sees to it that it is read once."""
    if len(directives) < 2 or directives[0][0] not in ("ifndef", "if"):
        return ""
    asked = re.search(r"(\w+)\)?\s*$", directives[0][1])
    set_ = re.match(r"\w+", directives[1][1]) if directives[1][0] == "define" else None
    return asked[1] if asked and set_ and asked[1] == set_[0] else ""


_ATTEMPTS = 6
_MACRO = re.compile(r"^[ \t]*#[ \t]*(?:define|undef)[ \t]+(\w+)", re.MULTILINE)
_INCLUDE = re.compile(r"^[ \t]*#[ \t]*include\b", re.MULTILINE)
# What only another compiler reads, with no condition inside.
_FOR_WINDOWS = re.compile(
    r"^[ \t]*#[ \t]*if(?:def[ \t]+|[ \t]+defined[ \t]*(?:\([ \t]*)?)(?:_MSC_VER|_WIN32)\)?[ \t]*(?://[^\n]*)?\n"
    r"(?:(?![ \t]*#[ \t]*(?:if|el|endif))[^\n]*\n)*[ \t]*#[ \t]*endif\b",
    re.MULTILINE,
)
# Options that a file sets for what follows hold for its headers, too.
_OPTIONS = re.compile(
    r"^[ \t]*#[ \t]*pragma[ \t]+(?:GCC[ \t]+(?:target|optimize|visibility)|pack)\b", re.M
)
# A header that refuses to be read after a macro is not read by a file that sets it.
_REFUSAL = re.compile(
    r"^[ \t]*#[ \t]*if[^\n]*\n\s*#[ \t]*error(?:[^\n]*\\\n)*[^\n]*\n\s*#[ \t]*endif", re.MULTILINE
)


@dataclass(frozen=True, slots=True)
class Start:
    """The header a file begins with, and what the file is known to read in all."""

    header: Path
    closure: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Choice:
    """What is worth compiling for one kind of compile: sets of headers, the largest first.

    `includes` is what is known of the files, `macros` are those that any of them sets first.
    """

    sets: tuple[tuple[str, ...], ...]
    includes: Mapping[str, Sequence[str]]
    macros: frozenset[str]

    @classmethod
    def read(cls, path: Path) -> Choice | None:
        """What was written down, if it was."""
        data = _read_json(path)
        if data is None:
            return None
        return cls(tuple(map(tuple, data["sets"])), data["includes"], frozenset(data["macros"]))

    def write(self, path: Path) -> None:
        """Write it down, whole or not at all."""
        data = {"sets": self.sets, "includes": self.includes, "macros": sorted(self.macros)}
        write_text(path, json.dumps(data))


@dataclass(frozen=True, slots=True)
class Ready:
    """A set of headers that is compiled: what was read, and which macros mean something to it.

    Where it did not compile nothing was read.
    """

    read_files: Mapping[str, Sequence[int]]
    macros: frozenset[str]

    @classmethod
    def read(cls, path: Path) -> Ready | None:
        """What was written down, if it was."""
        data = _read_json(path)
        return cls(data["read"], frozenset(data["macros"])) if data else None

    def write(self, path: Path) -> None:
        """Write it down, whole or not at all."""
        data = {"read": dict(self.read_files), "macros": sorted(self.macros)}
        write_text(path, json.dumps(data))

    def suits(self, macros: AbstractSet[str]) -> bool:
        """Whether a file that sets these macros first may begin with it."""
        current = all(_mark(name) == tuple(mark) for name, mark in self.read_files.items())
        return bool(self.read_files) and not self.macros & macros and current


def place_of(folder: Path, kind: str) -> Path:
    """Where everything of one kind of compile lies; several builds may share the folder."""
    return folder / hashlib.sha256(f"{Path.cwd()}\0{kind}".encode()).hexdigest()[:16]


def find_start(place: Path, compile_: Compile, units: Sequence[Sequence[str]]) -> Start | None:
    """What a file may begin with, which is made now if it is the first to ask.

    `units` are all the compiles of its kind that the build has, each a list of files.
    """
    choice = _chosen(place, compile_, units)
    includes = _includes(compile_, choice.includes)
    closure = includes.closure(os.path.realpath(compile_.source))
    sources = _sources(closure)
    macros = early_macros(sources)
    if not macros <= choice.macros or any(_OPTIONS.search(early_text(name)) for name in sources):
        return None
    for number, first in enumerate(choice.sets):
        if closure.keys() >= set(first):
            header = place / f"{number}.hpp"
            # While another makes this one, the next file's may be made here.
            others = partial(_prepare_others, place, compile_, choice)
            ready = _prepared(header, compile_, first, choice, others)
            if ready is not None and ready.suits(macros):
                return Start(header, tuple(closure))
    return None


def prepare_all(place: Path, compile_: Compile, units: Sequence[Sequence[str]]) -> None:
    """Make all that any of the units may begin with."""
    choice = _chosen(place, compile_, units)
    for number, first in enumerate(choice.sets):
        _prepared(place / f"{number}.hpp", compile_, first, choice)


def _prepare_others(place: Path, compile_: Compile, choice: Choice) -> bool:
    """Make what is not made, and that nobody is at; whether there is time to wait then."""
    for number, first in enumerate(choice.sets):
        _prepared(place / f"{number}.hpp", compile_, first, choice, lambda: False)
    return True


def _chosen(place: Path, compile_: Compile, units: Sequence[Sequence[str]]) -> Choice:
    place.mkdir(parents=True, exist_ok=True)
    made = _made_once(place / "choice.json", Choice.read, lambda: choose_sets(compile_, units))
    assert made is not None
    return made


def _prepared(
    header: Path,
    compile_: Compile,
    first: Sequence[str],
    choice: Choice,
    meanwhile: Callable[[], bool] = lambda: True,
) -> Ready | None:
    def prepare() -> Ready:
        read = _compile(header, compile_, first, _includes(compile_, choice.includes)) or []
        marks = {name: mark for name in read if (mark := _mark(name))}
        return Ready(marks, _mentioned(read, choice.macros))

    return _made_once(header.with_suffix(".json"), Ready.read, prepare, meanwhile)


class _Kept(Protocol):
    def write(self, path: Path) -> None: ...


_T = TypeVar("_T", bound=_Kept)


def _made_once(
    path: Path,
    read: Callable[[Path], _T | None],
    make: Callable[[], _T],
    meanwhile: Callable[[], bool] = lambda: True,
) -> _T | None:
    """What a file says, which the first to ask writes.

    The others do something else `meanwhile`, which says whether to wait for it; None if not.
    """
    found = read(path)
    if found is None:
        with path.with_suffix(".lock").open("w") as lock:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                if not meanwhile():
                    return None
                fcntl.flock(lock, fcntl.LOCK_EX)
            found = read(path)
            if found is None:
                found = make()
                found.write(path)
    return found


def choose_sets(compile_: Compile, units: Sequence[Sequence[str]]) -> Choice:
    """Choose what headers to compile for a build's units, each a list of files."""
    includes = _includes(compile_)
    closures = [
        {name: None for path in unit for name in includes.closure(os.path.realpath(path))}
        for unit in units
    ]
    sources = {name for closure in closures for name in _sources(closure)}
    usable = _usable(includes, {name for closure in closures for name in closure} - sources)
    read = [[name for name in closure if name in usable] for closure in closures]
    sets = [
        tops(headers, includes.known, next(item for item in closures if headers <= item.keys()))
        for headers in choose(read, {name: _size(name) for name in usable})
    ]
    return Choice(tuple(sets), includes.known, early_macros(sources))


def _usable(includes: Includes, headers: AbstractSet[str]) -> frozenset[str]:
    """Headers that can be included by name, and read none that is read once by our doing."""
    once = {
        os.path.relpath(Path(folder, name), ONCE)
        for folder, _, names in os.walk(ONCE)
        for name in names
    }

    def fine(name: str) -> bool:
        spelled = includes.spelling(name)
        return spelled is not None and spelled.strip("<>") not in once

    # What includes a header that cannot be used cannot be used, either.
    includers: dict[str, list[str]] = {}
    for name in headers:
        for below in includes.of(name):
            includers.setdefault(below, []).append(name)
    queue = [name for name in headers if not fine(name)]
    bad: set[str] = set()
    while queue:
        name = queue.pop()
        if name not in bad:
            bad.add(name)
            queue += includers.get(name, ())
    return frozenset(headers) - bad


def dependencies_of(header: Path) -> Path:
    """The list of what a header that was compiled has read."""
    return header.with_suffix(".d")


def _compile(
    path: Path, compile_: Compile, first: Sequence[str], includes: Includes
) -> list[str] | None:
    """Compile headers; the files that were read, or None if they do not compile together."""
    lines = [f"#include {includes.spelling(name)}" for name in first]
    listed = dependencies_of(path)
    made = ("-x", "c++-header", str(path), "-o", f"{path}.gch", "-MD", "-MF", str(listed))
    for _ in range(min(_ATTEMPTS, len(lines))):
        write_text(path, "\n".join(lines) + "\n")
        status, words = run([*compile_.words, *made])
        if status == 0:
            return [os.path.realpath(name) for name in read_dependencies(listed)]
        # One that cannot stand where it stands: the others may.
        fault = re.search(rf"{re.escape(path.name)}:(\d+)".encode(), words)
        if not fault or int(fault[1]) > len(lines):
            return None
        del lines[int(fault[1]) - 1]
    return None


def _includes(compile_: Compile, known: Mapping[str, Sequence[str]] | None = None) -> Includes:
    return Includes(compile_.folders, compile_.defined, known)


def _sources(closure: Iterable[str]) -> list[str]:
    return [name for name in closure if name.endswith(SOURCES)]


def early_macros(sources: Iterable[str]) -> frozenset[str]:
    """The macros that files define, or undefine, before the last of their includes."""
    texts = (_FOR_WINDOWS.sub("", early_text(path)) for path in sources)
    return frozenset(name for text in texts for name in _MACRO.findall(text))


def early_text(path: str) -> str:
    """What a file says before the last of its includes."""
    text = read_source(path)
    return text[: max((match.start() for match in _INCLUDE.finditer(text)), default=0)]


def _mentioned(files: Iterable[str], macros: frozenset[str]) -> frozenset[str]:
    """Those of the macros that files say anything of, other than that they refuse them."""
    found: set[str] = set()
    for path in files:
        text = read_source(path)
        if any(name in text for name in macros):
            found |= macros & set(re.findall(r"\w+", _REFUSAL.sub("", text)))
    return frozenset(found)


def _read_json(path: Path) -> dict[str, Any] | None:
    try:
        data: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None
    return data


def _size(path: str) -> int:
    try:
        return Path(path).stat().st_size
    except OSError:
        # The compiler's own: a few words that include the rest.
        return 10_000


def _mark(path: str) -> tuple[int, int] | None:
    try:
        status = os.stat(path)  # noqa: PTH116
    except OSError:
        return None
    return status.st_mtime_ns, status.st_size

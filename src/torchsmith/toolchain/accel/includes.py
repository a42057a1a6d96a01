"""Which headers a C++ file reads, as far as that can be told without a compiler.

Only what is certain counts: an include that stands under a condition nobody here can decide is
left out. So a file reads at least what is found here, and nothing that is not read is taken for it.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Mapping, Sequence

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
    """The includes of files, read once each.

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
        waiting = [path]
        while waiting:
            name = waiting.pop()
            if name not in seen:
                seen[name] = None
                waiting += reversed(self.of(name))
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

"""What a compiler command compiles, and whether its end was the kernel's doing."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import PurePath
from typing import Literal

Language = Literal["c", "c++", "cuda", "link", "other"]

_LANGUAGES: dict[str, Language] = {
    ".c": "c",
    ".m": "c",
    ".s": "c",
    ".S": "c",
    ".cc": "c++",
    ".cpp": "c++",
    ".cxx": "c++",
    ".c++": "c++",
    ".C": "c++",
    ".mm": "c++",
    ".hip": "cuda",
    ".cu": "cuda",
}
# Options followed by a file or folder of their own: where things lie says nothing of memory,
# and differs between two checkouts of the same source.
_PLACES = frozenset(
    ["-o", "-MF", "-MT", "-MQ", "-I", "-isystem", "-iquote", "-idirafter", "-L", "-include"]
)
_PLACE_PREFIXES = ("-I", "-L", "-isystem", "-Wl,", "-ffile-prefix-map", "-fdebug-prefix-map")
_CACHES = frozenset(["ccache", "sccache", "buildcache", "distcc"])
# What stands in a cache's place where there is none.
_NO_CACHE = "compile_miss.sh"

# How each tool tells that the kernel ended one of its processes, or that it got no memory.
_KILLED = re.compile(
    rb"Killed signal terminated program"  # the gcc driver
    rb"|internal compiler error: Killed"  # the gcc driver before 11
    rb"|terminated with signal 9"  # collect2, for the linker
    rb"|unable to execute command: Killed"  # the clang driver
    rb"|died due to signal 9"  # nvcc
    rb"|out of memory allocating"  # cc1plus, refused by malloc
    rb"|virtual memory exhausted"
    rb"|LLVM ERROR: out of memory"
    rb"|Cannot allocate memory"
    rb"|memory exhausted"  # ld
)
_SIGKILL_STATUS = 128 + 9
# What pip and uv put into the names of folders that they make anew for each build.
_RANDOM = re.compile(r"(?<=/)(pip-[a-z-]+-\w{8}|\.?tmp\w{6,8})(?=/)|(?<=_)[0-9a-f]{32}(?=/)")


@dataclass(frozen=True, slots=True)
class Compile:
    """One command of a build, named so that the next build knows it again.

    `file` is what is compiled, or what is linked; relative to the source or build folder it
    lies in. `flags` is a digest of the options that can change how much memory it takes. `cwd` is
    the folder the command runs in, `source` the file as it is named there.
    """

    file: str
    output: str
    language: Language
    flags: str
    cached: bool = False
    compiler: str = ""
    cwd: str = ""
    source: str = ""

    @property
    def folder(self) -> str:
        """The folder of the file, whose other files are its best likeness."""
        return str(PurePath(self.file).parent)


def read_compile(cwd: str, argv: Sequence[str], roots: Sequence[str] = ()) -> Compile:
    """Return what a command compiles; `roots` are the folders names are made relative to."""
    output = source = ""
    kept: list[str] = []
    cached = PurePath(argv[0]).name in _CACHES
    words = iter(argv[1:] if cached or PurePath(argv[0]).name == _NO_CACHE else argv)
    compiler = next(words, "")
    kept.append(PurePath(compiler).name)
    for word in words:
        if word in _PLACES:
            value = next(words, "")
            output = value if word == "-o" else output
        elif not word.startswith("-"):
            if PurePath(word).suffix in _LANGUAGES:
                source = word
            elif kept[-1].startswith("-"):
                kept.append(word if "/" not in word else "")
        elif not word.startswith(_PLACE_PREFIXES):
            kept.append(word)
    compiling = bool(source) and ("-c" in kept or "-dc" in kept or "-S" in kept)
    otherwise: Language = "link" if output else "other"
    language = _LANGUAGES[PurePath(source).suffix] if compiling else otherwise
    name = source if compiling else output or source or argv[0]
    return Compile(
        file=_relative(cwd, name, roots),
        output=str(PurePath(cwd, output)) if output else "",
        language=language,
        flags=hashlib.sha256("\0".join(sorted(kept)).encode(errors="replace")).hexdigest()[:16],
        cached=cached,
        compiler=compiler,
        cwd=cwd,
        source=source,
    )


def _relative(cwd: str, name: str, roots: Sequence[str]) -> str:
    path = PurePath(cwd, name)
    # The innermost of them: a build folder often lies inside the source folder.
    for root in sorted(roots, key=len, reverse=True):
        if path.is_relative_to(root):
            return str(path.relative_to(root))
    return _RANDOM.sub("*", str(path))


def killed_for_memory(status: int, last_words: bytes) -> bool:
    """Whether a command that failed did so for want of memory, and may succeed alone."""
    return status == _SIGKILL_STATUS or (status != 0 and bool(_KILLED.search(last_words)))

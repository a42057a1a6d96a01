"""A command that compiles a C++ file with gcc, and running it."""

from __future__ import annotations

import hashlib
import os
import re
import signal
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path, PurePath
from types import FrameType

from torchsmith.toolchain.accel.files import IN

SOURCES = (".cpp", ".cc", ".cxx")
# Headers that are read once by our doing are found here first, by batches.
ONCE = Path("torchsmith-batches/once")
_GCC = re.compile(r"(?:.*-)?[gc]\+\+(?:-[\d.]+)?")
_WITH_VALUE = frozenset(["-isystem", "-iquote", "-idirafter", "-D", "-U", "-I", "--param", "-arch"])
_SEARCHED = ("-I", "-isystem")
_SIGNALS = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)
# These say nothing of what headers mean, or differ from file to file.
_ASIDE = ("-ffile-prefix-map=", "--param=ggc-", "-fdiagnostics-", "-W")


@dataclass(frozen=True, slots=True)
class Compile:
    """A command that compiles one C++ file: its options, and what is its alone.

    `dependencies` is the file it lists what it read in, `target` what it calls its object there.
    """

    compiler: str
    options: tuple[str, ...]
    source: str
    target: str
    dependencies: str

    @property
    def words(self) -> list[str]:
        """The compiler and the options, as on a command line."""
        return [self.compiler, *(part for word in self.options for part in _parts(word))]

    @property
    def kind(self) -> str:
        """The same for files that are compiled with the same options, however they are named."""
        folders = {f"-I{folder}" for folder in self.folders}
        others = {word for word in self.options if not word.startswith((*_ASIDE, *_SEARCHED))}
        return hashlib.sha256("\0".join(sorted(folders | others)).encode()).hexdigest()[:16]

    @property
    def folders(self) -> tuple[str, ...]:
        """Where headers are looked for, absolute, in order."""
        once = os.path.realpath(ONCE)
        found = (
            os.path.realpath(word.removeprefix(option).strip())
            for option in _SEARCHED
            for word in self.options
            if word.startswith(option)
        )
        return tuple(dict.fromkeys(name for name in found if name != once))

    @property
    def defined(self) -> frozenset[str]:
        """The macros the command defines."""
        names = (word[2:].strip() for word in self.options if word.startswith("-D"))
        return frozenset(name.split("=")[0] for name in names)


def read_compile(command: Sequence[str]) -> Compile | None:
    """A compile of one file by gcc; None for anything else."""
    if not _GCC.fullmatch(PurePath(command[0]).name):
        return None
    options: list[str] = []
    sources: list[str] = []
    values: dict[str, str] = {}
    compiles = False
    words = iter(command[1:])
    for word in words:
        if word in ("-o", "-MF", "-MT", "-MQ"):
            values[word] = next(words, "")
        elif word in _WITH_VALUE:
            options.append(f"{word} {next(words, '')}")
        elif word.startswith(("-include", "-imacros", "-x", "@")):
            return None
        elif word == "-c":
            compiles = True
        elif word.endswith(SOURCES) and not word.startswith("-"):
            sources.append(word)
        elif not word.startswith("-M"):
            options.append(word)
    if not compiles or len(sources) != 1:
        return None
    target = values.get("-MT") or values.get("-MQ") or values.get("-o", "")
    return Compile(command[0], tuple(options), sources[0], target, values.get("-MF", ""))


def find_compile(command: Sequence[str]) -> Compile | None:
    """A compile of one file by gcc in a build file's command, which may begin with launchers."""
    for place, word in enumerate(command):
        if _GCC.fullmatch(PurePath(word).name):
            return read_compile(command[place:])
    return None


def kind_of(command: Sequence[str]) -> str | None:
    """The kind of a batch's command."""
    found = find_compile(["a.cpp" if word == IN else word for word in command])
    return found.kind if found else None


def _parts(option: str) -> list[str]:
    name, _, value = option.partition(" ")
    return [name, value] if name in _WITH_VALUE else [option]


def run(command: Sequence[str]) -> tuple[int, bytes]:
    """Run a compiler to its end; a signal that ends this program ends it first."""
    received: list[int] = []
    # Under nohup a hang-up is to be ignored, and in the background of a shell Ctrl-C.
    heeded = [number for number in _SIGNALS if signal.getsignal(number) != signal.SIG_IGN]
    with subprocess.Popen(command, stderr=subprocess.PIPE) as child:

        def stop(number: int, frame: FrameType | None) -> None:
            received.append(number)
            child.send_signal(number)

        for number in heeded:
            signal.signal(number, stop)
        words = child.communicate()[1]
    for number in heeded:
        signal.signal(number, signal.SIG_DFL)
    if received:
        os.kill(os.getpid(), received[0])
    return child.returncode, words

"""Finding the file of a batch that the compiler complains about."""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

from torchsmith.toolchain.accel.files import read_source

# PyTorch asks for colours, terminal or not.
_COLOUR = re.compile(r"\x1b\[[0-9;]*[mK]")
_INCLUDED = re.compile(r"^(?:In file included from|\s+from) (?P<path>.+?):\d+")
_MESSAGE = re.compile(
    r"^(?P<path>[^\s:][^:]*):(?P<line>\d+)(?::\d+)?: (?P<kind>fatal error|error|note): (?P<what>.*)"
)
# Where a template was used that does not compile as it is used there.
_USED = re.compile(r"^(?P<path>[^\s:][^:]*):\d+(?::\d+)?:\s+required from here")
_ELSEWHERE = re.compile(r"^In file included from|^[^\s:][^:]*: (?:In|At) \w")
# Said of a second definition: files of which the same is said have one each.
_TWICE = re.compile(r"redefinition|redeclaration|conflicting declaration|already been d")
# nvcc's front ends: file(line): error: what (previous definition at line 3 of other)
_NVCC = re.compile(
    r"^(?P<path>[^\s(][^(]*)\(\d+\): (?:catastrophic )?error(?: #[\w-]+)?: (?P<what>.*)"
)
_NVCC_PLACE = re.compile(r'\bat line \d+ of "?(?P<path>[^"()]+?)"?(?:\)|$)')
_INCLUDE = re.compile(r'^[ \t]*#[ \t]*include[ \t]*["<]([^">\n]+)[">]', re.MULTILINE)
_NVCC_DEFINED = re.compile(
    r" \((?:previous definition|declared) at line \d+(?P<other> of [^)]*)?\)"
)


def absolute(path: str, folder: str) -> str:
    """The one name of a file: without links, and without steps up and down."""
    return str(Path(folder, path).resolve())


@dataclass(frozen=True, slots=True)
class Clash:
    """A file that does not compile after the others, and the one it collides with if named.

    `header` is a header that collides with itself: both of them read it, and it does not see to it
    that it is read once.
    """

    file: str
    other: str | None
    what: str = ""
    header: str = ""


def find_clashes(words: str, members: Mapping[str, str], folder: str) -> tuple[Clash, ...]:
    """The files at fault; `members` maps every path the compiler may mean to a batch's file.

    `folder` is where the compiler ran, which the paths it says are relative to.
    """
    plain = _COLOUR.sub("", words)
    return _by_gcc(plain, members, folder) + _by_nvcc(plain, members, folder)


def _by_nvcc(words: str, members: Mapping[str, str], folder: str) -> tuple[Clash, ...]:
    """The files at fault by nvcc's own front ends.

    They name the file of an earlier definition in the message, and no chain of includes: a header
    is the fault of the members that include it themselves. Of a template it is the member that it
    was instantiated for.
    """

    def owners(path: str) -> list[str]:
        path = absolute(path, folder)
        if path in members:
            return [members[path]]
        return sorted({name for file, name in members.items() if _includes(file, path)})

    found: dict[Clash, None] = {}
    faulty: list[str] | None = None
    what = ""
    for line in words.splitlines():
        message = _NVCC.match(line)
        place = _NVCC_PLACE.search(message["what"] if message else line)
        if message is None:
            if place and faulty == [] and absolute(place["path"], folder) in members:
                faulty = owners(place["path"])
                found[Clash(faulty[0], None, what)] = None
            continue
        faulty = owners(message["path"])
        what = _NVCC_DEFINED.sub("", message["what"])
        defined = _NVCC_DEFINED.search(message["what"])
        if defined and not defined["other"] and absolute(message["path"], folder) not in members:
            # It collides with itself, whoever includes it.
            header = absolute(message["path"], folder)
            found.update((Clash(name, None, what, header), None) for name in faulty or [""])
            continue
        others = owners(place["path"]) if place else []
        for name in faulty:
            pairs = [Clash(name, other, what) for other in others if other != name]
            found.update(dict.fromkeys(pairs or [Clash(name, None, what)]))
    with_other = {clash.file for clash in found if clash.other}
    return tuple(clash for clash in found if clash.other or clash.file not in with_other)


def _includes(file: str, header: str) -> bool:
    """Whether a file includes a header by its own text."""
    names = _INCLUDE.findall(read_source(file))
    return any(header.endswith("/" + name.rpartition("./")[2]) for name in names)


def _by_gcc(words: str, members: Mapping[str, str], folder: str) -> tuple[Clash, ...]:
    """The files at fault by gcc.

    The place of an error is in a member, or in a header whose chain of includes ends in one, or
    in a template that a member uses. A note below it, of an earlier definition, names the other
    file.
    """

    def member(path: str) -> str | None:
        return members.get(absolute(path, folder))

    found: dict[Clash, None] = {}
    links: list[str] = []
    owners: dict[str, str] = {}
    chain: str | None = None
    user: str | None = None
    culprit: str | None = None
    what = header = ""
    where = ("", "")
    named = False
    for line in words.splitlines():
        if _ELSEWHERE.match(line):
            user = None
        if included := _INCLUDED.match(line):
            path = included["path"]
            links = [path] if line[0] == "I" else [*links, path]
            # The last member of a chain is the outermost: what the batch itself includes. What it
            # has said of a chain before, gcc does not say again.
            chain = member(path) or (owners.get(path) if len(links) == 1 else chain)
            if chain is not None:
                owners.update(dict.fromkeys(links, chain))
            continue
        if used := _USED.match(line):
            user = member(used["path"])
            continue
        message = _MESSAGE.match(line)
        if message is None:
            continue
        here = member(message["path"])
        place = (message["path"], message["line"])
        if message["kind"] != "note":
            if culprit is not None and not named:
                found[Clash(culprit, None, what, header)] = None
            # The chain of a template's header is of the first file that included it.
            culprit, what, named = here or user or chain, message["what"], False
            where, header = place, ""
        elif here is None and place == where and "previous" in message["what"]:
            header = absolute(message["path"], folder)
        elif culprit is not None and here is not None and here != culprit:
            found[Clash(culprit, here, what)] = None
            named = True
    if culprit is not None and not named:
        found[Clash(culprit, None, what, header)] = None
    with_other = {clash.file for clash in found if clash.other}
    return tuple(clash for clash in found if clash.other or clash.file not in with_other)


def alike(clashes: Iterable[Clash]) -> tuple[Clash, ...]:
    """The clashes among files at fault: those that define the same thing clash with each other.

    The compiler holds each of them against the first alone, and would tell of the rest one by
    one, a compile each.
    """
    by_what: dict[str, dict[str, None]] = {}
    for clash in clashes:
        if _TWICE.search(clash.what):
            by_what.setdefault(clash.what, {})[clash.file] = None
    return tuple(
        Clash(later, earlier, what)
        for what, files in by_what.items()
        for earlier, later in itertools.combinations(files, 2)
    )

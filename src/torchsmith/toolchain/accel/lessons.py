"""Lessons of earlier builds: files that cannot share a batch.

A lesson is a line of JSON, {"apart": [one, other]}, {"alone": file} or {"once": header}, appended
in one write: several batches and several builds learn at once. Names are relative to the build
folder, so that they mean the same in every checkout. What is known of a release from the start is
a profile among the facts, of the same lessons.
"""

from __future__ import annotations

import json
import os
import re
import tomllib
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property
from importlib import resources
from pathlib import Path

_KERNEL = re.compile(r"(.+\.cpp)\.[A-Z][A-Z0-9_]*\.cpp")


def subject(name: str) -> str:
    """The file a lesson is about.

    PyTorch compiles a kernel once for each kind of CPU, Activation.cpp.AVX2.cpp and
    Activation.cpp.DEFAULT.cpp: what one of them clashes with, the others do.
    """
    found = _KERNEL.fullmatch(name)
    return found[1] if found else name


@dataclass(frozen=True)
class Lessons:
    """Files that clash with another one, and files that go with no other.

    `once` are headers that must not be read a second time, and do not see to it themselves.
    """

    apart: frozenset[frozenset[str]] = frozenset()
    alone: frozenset[str] = frozenset()
    once: frozenset[str] = frozenset()

    def __post_init__(self) -> None:
        apart = frozenset(frozenset(map(subject, pair)) for pair in self.apart)
        object.__setattr__(self, "apart", frozenset(pair for pair in apart if len(pair) == 2))
        object.__setattr__(self, "alone", frozenset(map(subject, self.alone)))

    @cached_property
    def _partners(self) -> dict[str, set[str]]:
        partners: dict[str, set[str]] = {}
        for pair in self.apart:
            for name in pair:
                partners.setdefault(name, set()).update(pair - {name})
        return partners

    def clash(self, one: str, other: str) -> bool:
        """Whether two files cannot be compiled together."""
        return subject(other) in self._partners.get(subject(one), ())

    def is_alone(self, name: str) -> bool:
        """Whether a file cannot be compiled together with any other."""
        return subject(name) in self.alone

    def divide(self, names: Iterable[str]) -> list[list[str]]:
        """Files in as few groups as it takes for none to clash, those alone by themselves."""
        groups: list[list[str]] = []
        singles: list[list[str]] = []
        for name in names:
            if self.is_alone(name):
                singles.append([name])
                continue
            for group in groups:
                if not any(self.clash(name, other) for other in group):
                    group.append(name)
                    break
            else:
                groups.append([name])
        return groups + singles

    def __or__(self, other: Lessons) -> Lessons:
        return Lessons(self.apart | other.apart, self.alone | other.alone, self.once | other.once)


def read_lessons(path: Path) -> Lessons:
    """The lessons of a file; a line that makes no sense, cut off say, teaches nothing."""
    try:
        # A pipe would be waited for.
        text = path.read_text(encoding="utf-8", errors="replace") if path.is_file() else ""
    except OSError:
        return Lessons()
    apart: set[frozenset[str]] = set()
    alone: set[str] = set()
    once: set[str] = set()
    for line in text.splitlines():
        try:
            lesson = json.loads(line)
        except (ValueError, RecursionError):
            continue
        match lesson:
            case {"apart": [str(one), str(other)]} if one != other:
                apart.add(frozenset((one, other)))
            case {"alone": str(name)}:
                alone.add(name)
            case {"once": str(name)}:
                once.add(name)
    return Lessons(frozenset(apart), frozenset(alone), frozenset(once))


def keep_lessons(path: Path, lessons: Lessons) -> None:
    """Add lessons to a file."""
    lines = [json.dumps({"apart": sorted(pair)}) for pair in sorted(map(sorted, lessons.apart))]
    lines += [json.dumps({"alone": name}) for name in sorted(lessons.alone)]
    lines += [json.dumps({"once": name}) for name in sorted(lessons.once)]
    if not lines:
        return
    path.parent.mkdir(parents=True, exist_ok=True)
    handle = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)
    try:
        os.write(handle, "".join(f"{line}\n" for line in lines).encode())
    finally:
        os.close(handle)


def profile_name(project: str, version: str) -> str:
    """The name of what is known of a release: torch-2.6; empty where no version is."""
    series = ".".join(version.split("+")[0].split(".")[:2])
    return f"{project}-{series}" if series else ""


def shipped_lessons(project: str, version: str) -> Lessons:
    """What is known of a release from the start: nothing, for most."""
    name = profile_name(project, version)
    profile = resources.files("torchsmith.facts") / "data" / "batches" / f"{name}.toml"
    try:
        return parse_profile(profile.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return Lessons()


def parse_profile(text: str) -> Lessons:
    """A profile's text as lessons: `apart` is a list of groups of files, the others of files."""
    data = tomllib.loads(text)
    groups: Iterable[list[str]] = data.get("apart", [])
    pairs = (
        frozenset((one, other))
        for group in groups
        for place, one in enumerate(group)
        for other in group[place + 1 :]
    )
    alone, once = (frozenset(data.get(name, [])) for name in ("alone", "once"))
    return Lessons(frozenset(pairs), alone, once)

"""A build.ninja with batches in place of single compiles, written beside it."""

from __future__ import annotations

import json
import os
import shlex
import sys
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path, PurePath

import msgspec
from msgspec import Struct

from torchsmith.foreign import MalformedError, decode
from torchsmith.toolchain.accel.batches import (
    LANGUAGES,
    File,
    Language,
    Limits,
    batch_name,
    form_batches,
    limits_for,
)
from torchsmith.toolchain.accel.files import (
    DEPS,
    IN,
    OUT,
    Batch,
    Member,
    write_if_changed,
    write_text,
)
from torchsmith.toolchain.accel.gcc_command import kind_of
from torchsmith.toolchain.accel.lessons import Lessons
from torchsmith.toolchain.accel.ninja_file import (
    Command,
    Statement,
    escaped,
    plain,
    read_commands,
    read_statements,
)
from torchsmith.toolchain.accel.precompiled import FEWEST
from torchsmith.toolchain.accel.unit import INCLUDED_SOURCE, included_sources
from torchsmith.toolchain.accel.with_headers import LIST

FILE = "torchsmith.ninja"
FOLDER = "torchsmith-batches"
_CUDA = ".cu"
_CPP = frozenset([".cpp", ".cc", ".cxx"])
# What a byte of a CUDA file weighs against one of a C++ file: which batches begin first.
_CUDA_WEIGHT = 20
_OPERATORS = frozenset(["&&", "||", ";", "|", ">", "<", "&"])
# Fewer files than this are compiled as soon as they would be sorted.
_FEWEST = 6


@dataclass(frozen=True, slots=True)
class _Compile:
    statement: Statement
    words: tuple[str, ...]
    path: str
    output: str

    @property
    def kind(self) -> tuple[str, ...]:
        """What files of one batch have in common."""
        return (self.statement.rule, *self.statement.order_only, *self.words)

    @property
    def language(self) -> Language:
        """Which of the two compilers compiles it."""
        return "cuda" if PurePath(self.path).suffix == _CUDA else "c++"


class Formed(Struct):
    """What a build folder's batches were formed by: a later run forms the same ones.

    A lesson learned meanwhile, a file that has grown or is new, or another number of cores or of
    bytes, is for the next build folder: here it would have whole batches compiled again.
    """

    lessons: Lessons
    sizes: dict[str, tuple[int, int]] = {}
    limits: dict[Language, Limits] = {}

    @classmethod
    def read(cls, path: Path, lessons: Lessons) -> Formed:
        """What was written down, or a beginning with these lessons."""
        try:
            return decode(path.read_bytes(), cls)
        except (OSError, MalformedError):
            return cls(lessons)

    def write(self, path: Path) -> None:
        """Write it down, whole or not at all."""
        write_if_changed(path, msgspec.json.encode(self, order="deterministic").decode() + "\n")


def accelerate(
    folder: Path,
    ninja: str,
    lessons: Lessons,
    *,
    cores: int,
    memory: int | None = None,
    lessons_file: str,
    anew: bool = False,
    cuda: bool = False,
) -> Path | None:
    """Write the file to build from; None if there is nothing to put together.

    `memory` is what all compiles together may take. With `anew`, as if nothing were compiled yet;
    with `cuda`, what nvcc compiles as well.
    """
    lines = (folder / "build.ninja").read_text(encoding="utf-8").splitlines()
    suffixes = _CPP | {_CUDA} if cuda else _CPP
    candidates = [
        statement
        for statement in read_statements(lines)
        if len(statement.outputs) == len(statement.inputs) == 1
        and PurePath(plain(statement.inputs[0])).suffix in suffixes
    ]
    if len(candidates) < _FEWEST:
        return None
    include_relatively((folder / plain(item.inputs[0]) for item in candidates), folder)
    formed = Formed.read(folder / FOLDER / "formed.json", lessons)
    commands = read_commands(ninja, folder)
    groups: dict[tuple[str, ...], list[_Compile]] = {}
    for statement in candidates:
        command = commands.get(plain(statement.outputs[0]))
        compile_ = _compile(folder, statement, command) if command else None
        if compile_ is not None:
            groups.setdefault(compile_.kind, []).append(compile_)
    compiles = [item for group in groups.values() for item in group]
    files = {item.output: _file(folder, item, formed.sizes) for item in compiles}
    for language in LANGUAGES:
        mine = [files[item.output] for item in compiles if item.language == language]
        formed.limits.setdefault(language, limits_for(mine, cores, memory, language))
    once = tuple(sorted(formed.lessons.once))
    taken: list[Statement] = []
    added: list[tuple[int, list[str]]] = []
    units: dict[str, list[list[str]]] = {}
    for group in groups.values():
        batched: set[str] = set()
        together: list[list[str]] = []
        by_output = {item.output: item for item in group}
        grouped = [files[item.output] for item in group]
        is_cuda = group[0].language == "cuda"
        for batch in form_batches(grouped, formed.lessons, formed.limits[group[0].language]):
            chosen = [by_output[file.output] for file in batch]
            members = tuple(
                Member(file.name, item.path, item.output)
                for file, item in zip(batch, chosen, strict=True)
            )
            name = batch_name(os.path.relpath(folder / file.output, folder) for file in batch)
            place = folder / FOLDER / f"{name}.json"
            write_if_changed(place, Batch(group[0].words, members, lessons_file, once).text())
            taken += [item.statement for item in chosen]
            edge = _edge(place, [item.statement for item in chosen], members)
            weight = sum(file.weight for file in batch)
            added.append((weight * _CUDA_WEIGHT if is_cuda else weight, edge))
            together.append([item.path for item in chosen])
            batched.update(item.output for item in chosen)
        alone = [[item.path] for item in group if item.output not in batched]
        if not is_cuda and (kind := kind_of(group[0].words)):
            units.setdefault(kind, []).extend(together + alone)
    if not added:
        return None
    there = [(folder / plain(item.outputs[0])).exists() for item in candidates]
    if not anew and _is_done(folder, there):
        units = {}
    # What is compiled with the same options, for headers to be read once.
    enough = {kind: sorted(group) for kind, group in units.items() if len(group) >= FEWEST}
    write_if_changed(folder / LIST, json.dumps(enough) + "\n")
    formed.write(folder / FOLDER / "formed.json")
    made = folder / FILE
    # What stands first ninja begins first: the heaviest, or it is what everything waits for.
    added.sort(key=lambda item: -item[0])
    edges = [line for _, edge in added for line in edge]
    start = min(item.first for item in candidates)
    rest = _without(lines, taken)
    write_if_changed(made, "\n".join([*rest[:start], *_rule(), *edges, *rest[start:]]) + "\n")
    return made


def _is_done(folder: Path, there: list[bool]) -> bool:
    """Whether what is compiled now is no more than what somebody changed, and waits for.

    A build that began with headers goes on with them, after a kill, to its last file: what it
    compiles does not depend on where it was stopped.
    """
    try:
        began = bool(json.loads((folder / LIST).read_text(encoding="utf-8")))
    except (OSError, ValueError):
        began = False
    return all(there) if began else sum(there) * 10 > len(there) * 9


def _compile(folder: Path, statement: Statement, command: Command) -> _Compile | None:
    """The command of a statement as words, if it is a compile and nothing else."""
    try:
        words = shlex.split(command.command)
    except ValueError:
        return None
    source, output = plain(statement.inputs[0]), plain(statement.outputs[0])
    if "-c" not in words or "-o" not in words or _OPERATORS & set(words):
        return None
    if words.count(source) != 1 or words[words.index("-o") + 1] != output:
        return None
    kept: list[str] = []
    before = ""
    for word in words:
        if word == source:
            kept.append(IN)
        elif before == "-MF":
            kept.append(DEPS)
        else:
            kept.append(OUT if word == output else word)
        before = word
    # Without a list of headers nobody would know when to compile it again.
    if DEPS not in kept or any(source in word or output in word for word in kept):
        return None
    path = str(folder / source)
    return _Compile(statement, tuple(kept), os.path.normpath(path), output)


def _file(folder: Path, item: _Compile, sizes: dict[str, tuple[int, int]]) -> File:
    name = os.path.relpath(item.path, folder)
    if name not in sizes:
        path = Path(item.path)
        try:
            included = sum(Path(other).stat().st_size for other in included_sources(path))
            sizes[name] = path.stat().st_size, included
        except OSError:
            # Generated, and not yet there: generated files are the large ones.
            sizes[name] = sys.maxsize, 0
    size, included = sizes[name]
    return File(name, size, item.output, included)


def _rule() -> list[str]:
    program = shlex.join([sys.executable, "-P", "-m", "torchsmith.toolchain.accel.compile_batch"])
    return [
        "rule torchsmith_batch",
        f"  command = {program.replace('$', '$$')} $batch",
        "  description = Compiling $count files as one, from $first",
        "  depfile = $headers",
        "  deps = gcc",
        # An object that is current is left as it is, and then nothing is linked again.
        "  restat = 1",
        "",
    ]


def _edge(place: Path, statements: list[Statement], members: tuple[Member, ...]) -> list[str]:
    def names(kind: Iterable[tuple[str, ...]]) -> str:
        return " ".join(dict.fromkeys(name for group in kind for name in group))

    implicit = " ".join(
        part for part in (escaped(str(place)), names(item.implicit for item in statements)) if part
    )
    order = names(item.order_only for item in statements)
    first = PurePath(members[0].path).name.replace("$", "$$")
    return [
        f"build {names(item.outputs for item in statements)}: torchsmith_batch"
        f" {names(item.inputs for item in statements)} | {implicit}"
        + (f" || {order}" if order else ""),
        f"  batch = {shlex.quote(str(place)).replace('$', '$$')}",
        f"  headers = {str(place.with_suffix('.d')).replace('$', '$$')}",
        f"  count = {len(members)}",
        f"  first = {first}",
        "",
    ]


def _without(lines: list[str], statements: Iterable[Statement]) -> list[str]:
    gone = {number for item in statements for number in range(item.first, item.last + 1)}
    return [line for number, line in enumerate(lines) if number not in gone]


def include_relatively(files: Iterable[Path], folder: Path) -> None:
    """Have those of the files that lie in a build folder include others by relative names.

    Of each of its kernels PyTorch has CMake write a file for each kind of CPU, which includes the
    kernel by its absolute name: a compiler cache would know none of them in another folder.
    """
    for path in files:
        if path.is_relative_to(folder) and path.is_file():
            _include_relatively(path, folder.parent)


def _include_relatively(path: Path, source: Path) -> None:
    text = path.read_text(encoding="utf-8", errors="surrogateescape")
    absolute = [
        name
        for name in INCLUDED_SOURCE.findall(text)
        if Path(name).is_absolute() and Path(name).is_relative_to(source) and Path(name).is_file()
    ]
    if not absolute:
        return
    for name in absolute:
        text = text.replace(name, os.path.relpath(name, path.parent))
    write_text(path, text)
    # When CMake runs again it writes them again. With a date of now, ninja would have all of them
    # compiled again; that of what they include does not change, and if it does they are.
    newest = max(Path(name).stat().st_mtime_ns for name in absolute)
    os.utime(path, ns=(newest, newest))

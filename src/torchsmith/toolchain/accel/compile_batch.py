"""What ninja runs for a batch: compile its files as one, or as few as they can be.

    python -m torchsmith.toolchain.accel.compile_batch BATCH.json

A batch that clashes is split by the compiler's own words: the files it names leave, the rest is
compiled without them, and those that left are compiled together in turn. What is done is kept
beside the batch, so that a second run, after a kill or an edit, compiles only what changed. A file
that is edited leaves too: the rest is compiled once without it, and from then on it stands alone.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path

from torchsmith.toolchain.accel.batches import batch_name
from torchsmith.toolchain.accel.clash import Clash, absolute, alike, find_clashes
from torchsmith.toolchain.accel.files import (
    DEPS,
    IN,
    OUT,
    Batch,
    read_dependencies,
    write_dependencies,
    write_if_changed,
    write_text,
)
from torchsmith.toolchain.accel.lessons import Lessons, keep_lessons, read_lessons
from torchsmith.toolchain.accel.overloads import (
    Function,
    called_functions,
    functions,
    rivals,
    strangers,
    written_functions,
)
from torchsmith.toolchain.accel.unit import included_sources, unit_text
from torchsmith.toolchain.compiles import killed_for_memory


@dataclass(slots=True)
class Part:
    """Files that compile together, and the digest of each file that went into their object.

    One that has read nothing is still to be compiled.
    """

    names: tuple[str, ...]
    read: dict[str, str] = field(default_factory=dict)


class Objects:
    """Puts code where ninja looks for it.

    A part's code lies beside the batch under a name of its own. Ninja removes the objects of a
    batch that is stopped, and whoever compiles a file by itself writes over them: they are put
    back from there. `empty` gives the object of a file with nothing in it.
    """

    def __init__(
        self, place: Path, outputs: Mapping[str, Path], empty: Callable[[], bytes]
    ) -> None:
        self._place = place
        self._outputs = outputs
        self._empty = empty

    def code(self, part: Part) -> Path:
        """Where a part's code lies; other files make another name."""
        made_of = json.dumps([part.names, sorted(part.read.items())])
        label = hashlib.sha256(made_of.encode()).hexdigest()[:16]
        return self._place.with_name(f"{self._place.stem}-{label}.o")

    def put(self, part: Part) -> None:
        """Give each file of a part its object; one that is right already is left alone."""
        first, *others = (self._outputs[name] for name in part.names)
        code = self.code(part)
        if _mark(first) != _mark(code):
            new = first.with_name(first.name + ".part")
            new.unlink(missing_ok=True)
            try:
                os.link(code, new)
            except OSError:
                shutil.copy2(code, new)
            new.replace(first)
        nothing = self._empty() if others else b""
        for output in others:
            if not output.exists() or output.read_bytes() != nothing:
                new = output.with_name(output.name + ".part")
                new.write_bytes(nothing)
                new.replace(output)

    def are_there(self, part: Part) -> bool:
        """Whether a part's objects are there, or could be put back."""
        if self.code(part).exists():
            self.put(part)
            return True
        return all(self._outputs[name].exists() for name in part.names)

    def clear_up(self, parts: Iterable[Part]) -> None:
        """Remove the code of parts other than these."""
        wanted = {self.code(part) for part in parts}
        for path in self._place.parent.glob(f"{self._place.stem}-*"):
            if path not in wanted:
                path.unlink()


def _mark(path: Path) -> tuple[int, int] | None:
    """What two names of one file, or a file and its copy, have in common."""
    try:
        status = path.stat()
    except OSError:
        return None
    return status.st_size, status.st_mtime_ns


_FOLDERS = ("-isystem", "-iquote")


def guard(headers: Iterable[str], command: Sequence[str], folder: str, place: Path) -> list[str]:
    """A compiler's command with which these headers, absolute names, are read once.

    For each there is a file in `place` under the name it is included by. It is found first, and
    includes the header where it was not. `folder` is where the compiler runs.
    """
    searched = [absolute(name, folder) for name in _searched(command)]
    for header in headers:
        for name in _included_as(header, searched):
            write_if_changed(place / name, f"#pragma once\n#include_next <{name}>\n")
    # A launcher before the compiler may have an option -I of its own, a word by itself.
    first = next((at for at, word in enumerate(command) if _names_folder(word)), len(command))
    return [*command[:first], f"-I{os.path.relpath(place, folder)}", *command[first:]]


def _included_as(header: str, searched: Iterable[str]) -> Iterator[str]:
    for name in dict.fromkeys(searched):
        if header.startswith(f"{name}/"):
            yield header.removeprefix(f"{name}/")


def _names_folder(word: str) -> bool:
    return word in _FOLDERS or (word.startswith("-I") and word != "-I")


def _searched(command: Sequence[str]) -> Iterator[str]:
    """The folders a command names, of those that are searched for headers."""
    before = ""
    for word in command:
        if before in _FOLDERS:
            yield word
        elif word.startswith("-I") and word != "-I":
            yield word.removeprefix("-I")
        before = word


_SIGNALLED = 128
# The times of files are of a clock that stands still for this long.
_CLOCK_TICK_NS = 20_000_000
# More files than this that changed at once are no one's work in progress: a pull, a new branch.
_EDITED_AT_ONCE = 2


class _StoppedError(Exception):
    def __init__(self, status: int) -> None:
        self.status = status


class Compilation:
    """One run of a batch."""

    def __init__(self, place: Path) -> None:
        self.place = place
        self.batch = Batch.read(place)
        self.members = {member.name: member for member in self.batch.members}
        # Where ninja runs compilers.
        self.folder = str(Path.cwd())
        self.paths = {
            absolute(path, self.folder): member.name
            for member in self.batch.members
            for path in (member.path, *included_sources(Path(member.path)))
        }
        self.is_cuda = Path(self.batch.members[0].path).suffix == ".cu"
        command = "\0".join(self.batch.command)
        self.command_digest = hashlib.sha256(command.encode()).hexdigest()
        outputs = {member.name: Path(member.output) for member in self.batch.members}
        self.objects = Objects(place, outputs, self._empty)
        self.done: list[Part] = []
        self.left: list[tuple[str, ...]] = []
        self.clashes: list[Clash] = []
        self._without_first: set[tuple[str, ...]] = set()
        # Headers that are read once, by their names in lessons.
        self._once = set(self.batch.once)
        self._learned_once: set[str] = set()
        self._digests: dict[str, str] = {}
        self._functions: dict[str, frozenset[Function]] = {}

    def run(self) -> None:
        """Bring every object of the batch up to date."""
        known = self._read_state()
        self.done = [part for part in known if self._current(part)]
        stale = [part for part in known if part not in self.done]
        self.left = self._groups(stale)
        self._keep_ninja_coming(stale)
        while self.left:
            self._compile_next()
        self._write_dependencies()
        self.objects.clear_up(self.done)

    def _groups(self, stale: Sequence[Part]) -> list[tuple[str, ...]]:
        """What has to be compiled: as it was split before, a file that was edited by itself."""
        # First what somebody works on, and waits to see the errors of.
        edited = [(name,) for part in stale for name in self._edited(part)]
        leaving = {name for group in edited for name in group}
        groups = [tuple(name for name in part.names if name not in leaving) for part in stale]
        seen = {name for part in (*self.done, *stale) for name in part.names}
        unseen = [name for name in self.members if name not in seen]
        # Other batches may have learned something since this one was formed.
        lessons = read_lessons(Path(self.batch.lessons)) if self.batch.lessons else Lessons()
        self._once |= lessons.once
        groups += [
            tuple(divided)
            for group in lessons.divide(unseen)
            for divided in self._without_rivals(group)
        ]
        return [group for group in (*edited, *groups) if group]

    def _without_rivals(self, group: Sequence[str]) -> list[list[str]]:
        """Files in groups in which none could call a function that another has for itself."""
        apart = rivals({name: self._written(name) for name in group})
        self.clashes += [Clash(*sorted(pair)) for pair in apart]
        return Lessons(apart).divide(group)

    def _written(self, name: str) -> frozenset[Function]:
        if name not in self._functions:
            self._functions[name] = written_functions(Path(self.members[name].path))
        return self._functions[name]

    def _changed(self, part: Part) -> list[str]:
        return [path for path, digest in part.read.items() if self._digest(path) != digest]

    def _edited(self, part: Part) -> list[str]:
        """The files of a part that somebody works on: they changed, and no header did."""
        owners = {self.paths.get(path, "") for path in self._changed(part)}
        few = len(owners) <= _EDITED_AT_ONCE and owners <= set(part.names)
        return [name for name in part.names if name in owners] if few else []

    def _keep_ninja_coming(self, stale: Sequence[Part]) -> None:
        """Make the batch's own file as new as what changed.

        Ninja then runs this batch again until it has ended well, also where a file is put back
        with its old date when some objects are made and others are not.
        """
        times = [self.place.stat().st_mtime_ns]
        for path in (path for part in stale for path in self._changed(part)):
            with contextlib.suppress(OSError):
                times.append(Path(path).stat().st_mtime_ns)
        os.utime(self.place, ns=(max(times), max(times)))

    def _compile_next(self) -> None:
        """Compile the files that are next, or divide them if they do not go together."""
        group = self.left.pop(0)
        words, astray = self._compile(group)
        if astray:
            self.clashes += [Clash(name, None) for name in astray]
            rest = tuple(name for name in group if name not in astray)
            self.left[:0] = [rest] if rest else []
            self.left += [(name,) for name in astray]
            return
        if words is None:
            return
        found = find_clashes(words, self.paths, self.folder)
        if self._guard_more(found):
            self.left.insert(0, group)
            return
        clashes = self._at_fault(group, found)
        culprits = {clash.file for clash in clashes}
        if culprits:
            self.clashes += [
                clash if clash.other in group else Clash(clash.file, None) for clash in clashes
            ]
            self.clashes += alike(clashes)
            leaving = [name for name in group if name in culprits]
            rest = tuple(name for name in group if name not in culprits)
            if culprits == {group[0]}:
                self._without_first.add(rest)
            self.left.insert(0, rest)
            self.left += [tuple(part) for part in self._lessons().divide(leaving)]
        else:
            half = len(group) // 2
            self.left[:0] = [group[:half], group[half:]]

    def _guard_more(self, found: Sequence[Clash]) -> bool:
        """Have headers read once that collide with themselves; whether there are new ones."""
        searched = [absolute(name, self.folder) for name in _searched(self.batch.command)]
        # Others are in no folder that the compiler was told to search.
        headers = {
            os.path.relpath(clash.header, self.folder)
            for clash in found
            if any(_included_as(clash.header, searched))
        }
        new = headers - self._once
        self._once |= new
        self._learned_once |= new
        return bool(new)

    def _at_fault(self, group: tuple[str, ...], found: Sequence[Clash]) -> list[Clash]:
        """What can be said of who is at fault in a group that does not compile."""
        found = [clash for clash in found if clash.file in group]
        later = [clash for clash in found if clash.file != group[0]]
        # The first is held responsible for headers that others cannot bear, too: what stays
        # after it has left is not divided in that way again.
        return later or ([] if group in self._without_first else found)

    def _compile(self, group: tuple[str, ...]) -> tuple[str | None, list[str]]:
        """Compile a group; what the compiler said if it cannot be compiled together.

        Also the files that were compiled, but may mean something else than by themselves.
        """
        members = [self.members[name] for name in group]
        command: Sequence[str] = self.batch.command
        if len(members) == 1:
            source = members[0].path
        else:
            if self._once:
                once = [absolute(name, self.folder) for name in sorted(self._once)]
                command = guard(once, command, self.folder, self.place.with_name("once"))
            # Named by its objects: the same unit of another batch, in another folder, is known.
            outputs = (os.path.relpath(member.output, self.folder) for member in members)
            suffix = ".cu" if self.is_cuda else ".cpp"
            unit = self.place.with_name(f"{batch_name(outputs)}{suffix}")
            write_text(unit, unit_text((Path(member.path) for member in members), unit.parent))
            source = os.path.relpath(unit, self.folder)
        label = hashlib.sha256("\0".join(group).encode()).hexdigest()[:8]
        made, headers = (f"{self.place.with_suffix('')}-{label}.{end}.part" for end in ("o", "d"))
        together = len(members) > 1
        if together and self.is_cuda:
            # No list of symbols says what the GPU's code calls: anything that is declared may be.
            declared = self._declared(source, made, command)
            shared = frozenset(function for function in declared if not function.local)
            astray = self._astray(group, made, shared)
            if astray:
                return None, astray
        began = time.time_ns()
        status, words = self._run(source, made, headers, command)
        if status == 0:
            called = together and not self.is_cuda
            astray = self._astray(group, made, called_functions(Path(made))) if called else []
            if astray:
                return None, astray
            sys.stderr.write(words)
            self._keep(Part(group, self._read(Path(headers), began)), made)
            return None, []
        if len(members) == 1 or (
            status >= _SIGNALLED and not killed_for_memory(status, words.encode())
        ):
            sys.stderr.write(words)
            raise _StoppedError(status)
        return words, []

    def _astray(self, group: tuple[str, ...], made: str, called: frozenset[Function]) -> list[str]:
        """The files that may call one of these functions, which they do not know by themselves."""

        def alone(name: str) -> frozenset[Function]:
            return self._declared(self.members[name].path, made, self.batch.command)

        return [
            name
            for name in group
            if strangers(self._written(name), called, frozenset())
            and strangers(self._written(name), called, alone(name))
        ]

    def _declared(self, source: str, made: str, command: Sequence[str]) -> frozenset[Function]:
        """The functions that a file declares, with all that it reads."""
        text, headers = f"{made}.i", f"{made}.i.d"
        command = ["-E" if word == "-c" else word for word in command]
        if self.is_cuda:
            # nvcc lists no dependencies of what it only preprocesses.
            command = _without_dependencies(command)
        status, words = self._run(source, text, headers, command)
        if status != 0:
            sys.stderr.write(words)
            raise _StoppedError(status)
        found = functions(Path(text).read_text(encoding="utf-8", errors="replace"))
        for path in (text, headers):
            Path(path).unlink(missing_ok=True)
        return found

    def _run(
        self, source: str, made: str, headers: str, command: Sequence[str] | None = None
    ) -> tuple[int, str]:
        values = {IN: source, OUT: made, DEPS: headers}
        ended = subprocess.run(
            [values.get(word, word) for word in command or self.batch.command],
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
        )
        status = ended.returncode
        return (_SIGNALLED - status if status < 0 else status), ended.stdout

    def _read(self, headers: Path, began: int) -> dict[str, str]:
        """The digest of each file a compiler read that began at this time.

        The unit is none of them: it is written anew from files that are.
        """
        read: dict[str, str] = {}
        for path in (absolute(path, self.folder) for path in read_dependencies(headers)):
            if path in self._digests or not _written_since(path, began):
                read[path] = self._digest(path)
            else:
                # Saved while it was compiled: nobody knows which of the two was read.
                read[path] = "unknown"
        headers.unlink()
        ours = self._own_folder()
        return {path: digest for path, digest in read.items() if not path.startswith(ours)}

    def _own_folder(self) -> str:
        return absolute(str(self.place.parent), self.folder) + "/"

    def _keep(self, part: Part, made: str) -> None:
        # Each is true when the next is made: a kill in between leaves nothing that misleads.
        Path(made).replace(self.objects.code(part))
        self.done.append(part)
        self._write_state()
        self.objects.put(part)

    def _empty(self) -> bytes:
        """The object of a file with nothing in it."""
        empty = self.place.with_name(f"empty-{self.command_digest[:16]}.o")
        if not empty.exists():
            # Objects keep their source's name, and the digest is of a command that names folders.
            source = self.place.with_name("empty.cpp")
            write_text(source, "")
            made = empty.with_name(f"{empty.name}.{os.getpid()}")
            headers = made.with_name(f"{made.name}.d")
            # nvcc has the host's compiler compile it: no object needs a place on the GPU.
            command = _as_cpp(self.batch.command) if self.is_cuda else self.batch.command
            status, words = self._run(str(source), str(made), str(headers), command)
            if status != 0:
                sys.stderr.write(words)
                raise _StoppedError(status)
            headers.unlink()
            made.replace(empty)
        return empty.read_bytes()

    def _current(self, part: Part) -> bool:
        return bool(part.read) and not self._changed(part) and self.objects.are_there(part)

    def _digest(self, path: str) -> str:
        if path not in self._digests:
            try:
                digest = hashlib.blake2b(Path(path).read_bytes(), digest_size=12).hexdigest()
            except OSError:
                digest = ""
            self._digests[path] = digest
        return self._digests[path]

    @property
    def _state(self) -> Path:
        return self.place.with_suffix(".state")

    def _read_state(self) -> list[Part]:
        try:
            data = json.loads(self._state.read_text(encoding="utf-8"))
        except (OSError, ValueError):
            return []
        if data["command"] != self.command_digest:
            return []
        parts = [Part(tuple(item["names"]), item["read"]) for item in data["parts"]]
        return [part for part in parts if set(part.names) <= set(self.members)]

    def _write_state(self) -> None:
        """What is done, and how the rest is divided: a kill must not bring old parts back."""
        parts = [asdict(part) for part in (*self.done, *map(Part, self.left))]
        write_text(self._state, json.dumps({"command": self.command_digest, "parts": parts}))

    def _write_dependencies(self) -> None:
        """The list ninja reads, of every file any part was made of."""
        paths = {path: None for part in self.done for path in part.read}
        ours = self._own_folder()
        names = (path for path in paths if not path.startswith(ours))
        output = self.batch.members[0].output
        write_dependencies(self.place.with_suffix(".d"), output, names)

    def _lessons(self) -> Lessons:
        """Which files were seen to clash with one another."""
        pairs = ((clash.file, clash.other) for clash in self.clashes if clash.other)
        return Lessons(frozenset(frozenset(pair) for pair in pairs))

    def learn(self) -> None:
        """Keep what clashed, for the next time these files are put into batches."""
        settled = {name for part in self.done for name in part.names}
        if not self.batch.lessons or not (self.clashes or self._learned_once):
            return
        apart = frozenset(
            frozenset((clash.file, clash.other))
            for clash in self.clashes
            if clash.other and {clash.file, clash.other} <= settled
        )
        alone = frozenset(
            clash.file for clash in self.clashes if not clash.other and clash.file in settled
        )
        once = frozenset(self._learned_once)
        keep_lessons(Path(self.batch.lessons), Lessons(apart, alone, once))


def _without_dependencies(command: Sequence[str]) -> list[str]:
    """A command that lists nothing of what it reads."""
    pairs = zip(("", *command), command, strict=False)
    return [
        word
        for before, word in pairs
        if word not in ("-MD", "-MT", "-MF") and before not in ("-MT", "-MF")
    ]


def _as_cpp(command: Sequence[str]) -> list[str]:
    """nvcc's command for a file that is C++ by its name."""
    pairs = zip((*command[1:], ""), command, ("", *command), strict=False)
    return [
        word for after, word, before in pairs if (word, after) != ("-x", "cu") and before != "-x"
    ]


def _written_since(path: str, moment: int) -> bool:
    try:
        return Path(path).stat().st_mtime_ns > moment - _CLOCK_TICK_NS
    except OSError:
        return True


def main(argv: Sequence[str]) -> int:
    """Compile one batch; the compiler's status if a file of it cannot be compiled at all."""
    compilation = Compilation(Path(argv[0]))
    try:
        compilation.run()
    except _StoppedError as stopped:
        return stopped.status
    except KeyboardInterrupt:
        return 130
    finally:
        compilation.learn()
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

"""nvcc step by step, each step's result kept: a GPU architecture is compiled once for all sets.

    python -I -S nvcc_parts.py nvcc -gencode ... -c file.cu -o file.o

ccache knows a compile only as a whole: for sm_80 and sm_90 it has nothing of what was made for
sm_80 before. nvcc is a driver, though. It says what it would run (`--dryrun`), and does for each
architecture by itself what takes its time: `cicc` makes PTX of what the preprocessor made,
`ptxas` machine code of that. Here those steps are run as nvcc would, and a result is taken from a
folder where the same program was given the same input before. ccache starts this where it has
nothing, so that every compiler stays a child of the one that was given memory for it.

Names of temporary files are the same each time, and of files below the work folder they are as
seen from where the compiler runs: another folder finds the results, and objects are the same.

nvcc itself does anything but an ordinary compile. Only what Python brings is imported: it
runs once for every CUDA file that is compiled.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
import zlib
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from types import FrameType

# Where results are kept, where they are counted, and the folder names are written relative to.
PARTS = "TORCHSMITH_CUDA_PARTS"
LOG = "TORCHSMITH_CUDA_PARTS_LOG"
ROOT = "CCACHE_BASEDIR"
FOUND, COMPILED = "found", "compiled"

_FORMAT = "1"
_KEPT = frozenset(["cicc", "ptxas", "cudafe++"])
# Variables of nvcc's profile that the programs it starts read.
_FOR_STEPS = frozenset(["PATH", "LD_LIBRARY_PATH", "NVVMIR_LIBRARY_DIR", "CICC_PATH"])
# Followed by a file that a step writes.
_WRITES = frozenset(["-o", "--gen_c_file_name", "--stub_file_name", "--gen_device_file_name"])
# Followed by the name of what is compiled.
_SOURCES = frozenset(["--orig_src_file_name", "--orig_src_path_name"])
# Another kind of result, one that is linked with others by names of nvcc's making, temporary
# files that somebody wants to see, or dependencies written in another way.
_NOT_OURS = re.compile(
    r"-{1,2}(dc|rdc|relocatable-device-code|device-c|dw|device-w|dlink|device-link|dlto|lto|E"
    r"|preprocess|M|MM|MMD|MP|generate-(nonsystem-)?dependenc(ies|y-targets)"
    r"|generate-nonsystem-dependencies-with-compile|ptx|cubin|fatbin|optix-ir|ltoir|cuda|lib|link"
    r"|run|keep|keep-dir|save-temps|dryrun|verbose|v|time|clean-targets|version|help|V|h"
    r"|objdir-as-tempdir|ewp|extensible-whole-program|device-debug|G"
    r"|split-compile(-extended)?|fdevice-time-trace)(=.*)?"
)
_FOR_OTHERS = re.compile(r"-X\w+|--(compiler|cudafe|nvlink|ptxas|fatbin|linker|archive)-options")
_THREADS = re.compile(r"-t\d*|-t=\d+|--threads(=\d+)?")
_ASSIGNMENT = re.compile(r"([A-Za-z_]\w*)=(.*)", re.DOTALL)
_DEPENDENCIES = "-- Filter Dependencies -- > "
_LINE = re.compile(rb'^# \d+ "((?:[^"\\\n]|\\.)*)"', re.MULTILINE)
_TARGETS = ("-MT", "--dependency-target-name")


class _NotUnderstoodError(Exception):
    """nvcc is to do this compile itself."""


class _StoppedError(Exception):
    """A signal came, and the step that ran was ended."""


_signals: list[int] = []
_running: list[subprocess.Popen[bytes]] = []


@dataclass(slots=True)
class DryRun:
    """What nvcc would do: commands in their order, and the variables they run under."""

    steps: list[list[str]] = field(default_factory=list)
    variables: dict[str, str] = field(default_factory=dict)
    dependencies: str = ""
    warnings: str = ""


def read_dry_run(text: str) -> DryRun:
    """Return the steps in what `nvcc --dryrun` says."""
    run = DryRun()
    for line in text.splitlines():
        if not line.startswith("#$ "):
            run.warnings += f"{line}\n"
        elif (words := line[3:].strip()).startswith(_DEPENDENCIES):
            run.dependencies = words.removeprefix(_DEPENDENCIES)
        elif assignment := _ASSIGNMENT.fullmatch(words):
            if assignment[1] in _FOR_STEPS:
                run.variables[assignment[1]] = assignment[2]
        elif words:
            run.steps.append(_words(words, run.variables))
    if not any(_tool(step) == "fatbinary" for step in run.steps):
        raise _NotUnderstoodError
    return run


def _words(line: str, variables: dict[str, str]) -> list[str]:
    for name, value in variables.items():
        line = line.replace(f'"${name}/', f'"{value}/')
    # nvcc has a shell run it, which would put something else in the place of these.
    if "$" in line or "`" in line:
        raise _NotUnderstoodError
    try:
        words = shlex.split(line)
    except ValueError:
        raise _NotUnderstoodError from None
    # Something new, or output that goes elsewhere.
    if not words or words[0].startswith("-") or any(">" in word[:2] for word in words):
        raise _NotUnderstoodError
    return words


def _tool(step: Sequence[str]) -> str:
    return Path(step[0]).name


def after(words: Sequence[str], option: str) -> str:
    """The word after an option, or what it is set equal to; empty where there is none."""
    for number, word in enumerate(words):
        if word == option:
            return "".join(words[number + 1 : number + 2])
        if word.startswith(f"{option}="):
            return word.partition("=")[2]
    return ""


def output_of(command: Sequence[str]) -> str:
    """The object an ordinary compile makes; empty if the command is anything else."""
    # A word for another program is none for nvcc: -Xptxas -v.
    words = [word for before, word in pairwise(command) if not _FOR_OTHERS.fullmatch(before)]
    if not any(word in ("-c", "--compile") for word in words):
        return ""
    if any(_NOT_OURS.fullmatch(word) for word in words):
        return ""
    return after(words, "-o") or after(words, "--output-file")


def one_by_one(command: Sequence[str]) -> list[str]:
    """The command without what has nvcc run several steps at once, each into files of its own."""
    return [
        word
        for before, word in pairwise(["", *command])
        if not (_THREADS.fullmatch(word) or before in ("-t", "--threads"))
    ]


@dataclass(frozen=True, slots=True)
class Spelling:
    """The list of architectures as it is in names: 800_900.

    Thrust and CUB have all they define in a namespace called after it, which would make every
    file that has one of their types another one for each set. What is kept has a mark in its
    place. Where the name is part of a mangled one, its length stands before it.
    """

    list: bytes

    def taken_out(self, text: bytes) -> bytes | None:
        """The text with marks; None if that cannot be undone."""
        if not self.list:
            return text
        if _LIST in text or _AS_NUMBERS.search(text):
            return None
        pieces: list[bytes] = []
        done = 0
        for found in _names(self.list).finditer(text):
            # Digits are looked for from here: an expression with them takes ten times as long.
            start = begin = found.start()
            while start > done and text[start - 1 : start].isdigit():
                start -= 1
            length, before = text[start:begin], text[start - 1 : start]
            if not length and (before.isalnum() or before == b"_"):
                continue
            if length and int(length) != len(found[0]):
                return None
            kind = b"mangled" if length else b"plain"
            pieces += [text[done:start], b"%s%s %s %s@" % (_LIST, kind, found[1], found[2])]
            done = found.end()
        return b"".join((*pieces, text[done:]))

    def put_in(self, text: bytes) -> bytes:
        """The text with this list where the marks are."""

        def named(found: re.Match[bytes]) -> bytes:
            name = found[2] + self.list + found[3]
            return (b"%d" % len(name) if found[1] == b"mangled" else b"") + name

        return _MARKED.sub(named, text) if self.list else text


def _names(architectures: bytes) -> re.Pattern[bytes]:
    return re.compile(rb"((?:THRUST|CUB)_\d{6}_(?:SM_)?)" + architectures + rb"((?:_NS)?)")


_LIST = b"@torchsmith list "
_MARKED = re.compile(_LIST + rb"(\w+) (\w+) (\w*)@")
# "THRUST_" and "CUB_" in a string, as PTX has it.
_AS_NUMBERS = re.compile(rb"84, ?72, ?82, ?85, ?83, ?84, ?95|67, ?85, ?66, ?95")


@dataclass(slots=True)
class Part:
    """One step whose result is kept: its command, and the temporary files in it."""

    command: list[str]
    temporary: str
    spelling: Spelling

    def names(self) -> list[str]:
        """The temporary names in the command, each once; their places are what matters."""
        found = [word for word in self.command if word.startswith(f"{self.temporary}/")]
        if _tool(self.command) == "cudafe++":
            # Written into what it makes, and called after one of the architectures.
            found.append(after(self.command, "--stub_file_name"))
        return list(dict.fromkeys(filter(None, found)))

    def outputs(self) -> list[str]:
        """The files it writes."""
        made = [name for option, name in pairwise(self.command) if option in _WRITES]
        if "--gen_module_id_file" in self.command:
            made.append(after(self.command, "--module_id_file_name"))
        return [name for name in made if name.startswith(f"{self.temporary}/")]

    def inputs(self) -> list[str]:
        """The files it reads."""
        made = self.outputs()
        return [name for name in self.names() if "/" in name and name not in made]

    def key(self, tools: Iterable[str]) -> str:
        """What its result depends on, as one word; `tools` are the digests of its program."""
        names = self.names()
        # Not a word by itself: nobody knows whether it is read or written.
        if any(f"{self.temporary}/" in word and word not in names for word in self.command):
            raise OSError(self.command)
        words = [mark(names.index(word)) if word in names else word for word in self.command[1:]]
        digest = hashlib.sha256("\0".join((_FORMAT, *tools, *words)).encode(errors="replace"))
        for name in self.inputs():
            content = Path(name).read_bytes()
            content = self.spelling.taken_out(content) or content
            digest.update(b"%d\0" % len(content))
            digest.update(content)
        return digest.hexdigest()


def mark(number: int) -> str:
    """What stands for a temporary name in what is kept."""
    return f"@torchsmith {number}@"


def pack(
    files: Sequence[bytes], messages: tuple[bytes, bytes], names: Sequence[str], spelling: Spelling
) -> bytes | None:
    """A result as it is kept; None if names are in it where they cannot be changed."""
    neutral: list[bytes] = []
    for content in (*files, *messages):
        if b"@torchsmith " in content:
            return None
        changed = content
        for number, name in sorted(enumerate(names), key=lambda pair: -len(pair[1])):
            changed = changed.replace(name.encode(), mark(number).encode())
        marked = spelling.taken_out(changed)
        if marked is None or (marked != content and b"\0" in content):
            return None
        neutral.append(marked)
    head = json.dumps([len(part) for part in neutral]).encode()
    return zlib.compress(head + b"\n" + b"".join(neutral), 1)


def unpack(kept: bytes, names: Sequence[str], spelling: Spelling) -> list[bytes]:
    """The files of a result, with this compile's names, and what was said on both streams."""
    head, _, body = zlib.decompress(kept).partition(b"\n")
    parts: list[bytes] = []
    for size in json.loads(head):
        part, body = spelling.put_in(body[:size]), body[size:]
        for number, name in enumerate(names):
            part = part.replace(mark(number).encode(), name.encode())
        parts.append(part)
    return parts


@dataclass(slots=True)
class Shelf:
    """The folder of results."""

    folder: Path

    def _place(self, key: str) -> Path:
        return self.folder / key[:2] / key[2:]

    def get(self, key: str) -> bytes | None:
        """A result, if it is there."""
        place = self._place(key)
        try:
            kept = place.read_bytes()
            # What was used last is removed last.
            os.utime(place)
        except OSError:
            return None
        return kept

    def put(self, key: str, kept: bytes) -> None:
        """Keep a result, whole or not at all; a full disk does not stop a compile."""
        place = self._place(key)
        with contextlib.suppress(OSError):
            place.parent.mkdir(parents=True, exist_ok=True)
            new = place.with_name(f".new-{os.urandom(8).hex()}")
            try:
                new.write_bytes(kept)
                new.replace(place)
            except BaseException:
                new.unlink(missing_ok=True)
                raise

    def digest(self, file: str) -> str:
        """The digest of a program, read once for as long as the file stays as it is."""
        found = Path(file).stat()
        identity = f"{os.path.realpath(file)}\0{found.st_size}\0{found.st_mtime_ns}\0{found.st_ino}"
        key = hashlib.sha256(f"tool\0{identity}".encode(errors="replace")).hexdigest()
        known = self.get(key)
        if known is not None and len(known) == 64:
            return known.decode()
        with Path(file).open("rb") as content:
            made = hashlib.file_digest(content, "sha256").hexdigest()
        self.put(key, made.encode())
        return made


@dataclass(slots=True)
class Compile:
    """One compile, in steps, its temporary files in a folder of its own."""

    run: DryRun
    shelf: Shelf
    temporary: str
    root: str
    architectures: bytes = b""
    read: dict[str, None] = field(default_factory=dict)
    counted: list[str] = field(default_factory=list)

    def do(self) -> int:
        """Run every step; the status of the first that fails."""
        variables = {**os.environ, **self.run.variables}
        for step in self.run.steps:
            if _tool(step) in _KEPT:
                status = self._kept(from_within(step, self.root), variables)
            else:
                status = _start(step, variables)
            if status != 0:
                return status
            if "-E" in step:
                listed = after(step, "-D__CUDA_ARCH_LIST__")
                self.architectures = listed.replace(",", "_").encode()
                self._preprocessed(Path(after(step, "-o")))
        return 0

    def _kept(self, step: list[str], variables: dict[str, str]) -> int:
        # Machine code has names that cannot be changed: to ptxas every spelling is another.
        spelled = b"" if _tool(step) == "ptxas" else self.architectures
        part = Part(step, self.temporary, Spelling(spelled))
        names = part.names()
        try:
            key = part.key(self._tools(step, variables))
        except OSError:
            return _start(step, variables)
        kept = self.shelf.get(key)
        if kept is not None:
            with contextlib.suppress(ValueError, zlib.error, OSError):
                *files, out, err = unpack(kept, names, part.spelling)
                for name, content in zip(part.outputs(), files, strict=True):
                    Path(name).write_bytes(content)
                _print(out, err)
                self.counted.append(FOUND)
                return 0
        return self._made(part, key, variables)

    def _made(self, part: Part, key: str, variables: dict[str, str]) -> int:
        messages: list[bytes] = []
        status = _start(part.command, variables, messages)
        _print(*messages)
        if status == 0:
            self.counted.append(COMPILED)
            with contextlib.suppress(OSError):
                files = [Path(name).read_bytes() for name in part.outputs()]
                if kept := pack(files, (messages[0], messages[1]), part.names(), part.spelling):
                    self.shelf.put(key, kept)
        return status

    def _tools(self, step: list[str], variables: dict[str, str]) -> Iterator[str]:
        program = shutil.which(step[0], path=variables["PATH"])
        if program is None:
            raise FileNotFoundError(step[0])
        yield _tool(step)
        yield self.shelf.digest(program)
        # cicc links what it compiles with these functions, and no word of its command names them.
        if _tool(step) == "cicc":
            libraries = sorted(Path(variables.get("NVVMIR_LIBRARY_DIR", "")).glob("*.bc"))
            if not libraries:
                raise FileNotFoundError("libdevice")
            yield from (self.shelf.digest(str(file)) for file in libraries)

    def _preprocessed(self, file: Path) -> None:
        """Note which files were read, and name them as seen from here."""
        content = file.read_bytes()
        for name in dict.fromkeys(_LINE.findall(content)):
            plain = re.sub(rb"\\(.)", rb"\1", name).decode(errors="surrogateescape")
            # The compiler's own, and the folder it ran in.
            if not (plain.startswith("<") or plain.endswith("//")):
                self.read[plain] = None
        if self.root:
            here = os.path.relpath(self.root)
            within = re.compile(rb'^(# \d+ ")' + re.escape(f"{self.root}/".encode()), re.MULTILINE)
            changed = within.sub(lambda found: found[1] + f"{here}/".encode(), content)
            if changed != content:
                file.write_bytes(changed)


def from_within(step: list[str], root: str) -> list[str]:
    """The same step, with its source below the work folder named as seen from here.

    What no other file sees is called after that name: by the whole one it would be called
    otherwise in each folder.
    """
    below = f"{root}/"
    return [
        os.path.relpath(word) if root and option in _SOURCES and word.startswith(below) else word
        for option, word in pairwise(["", *step])
    ]


def _start(step: list[str], variables: dict[str, str], messages: list[bytes] | None = None) -> int:
    """Run a step; what it says goes on, or into `messages`."""
    pipe = None if messages is None else subprocess.PIPE
    program = shutil.which(step[0], path=variables.get("PATH")) or step[0]
    with subprocess.Popen([program, *step[1:]], env=variables, stdout=pipe, stderr=pipe) as child:
        _running.append(child)
        # One that came before it was noted here.
        if _signals:
            child.terminate()
        streams = child.communicate()
        _running.clear()
    if _signals:
        raise _StoppedError
    if messages is not None:
        messages.extend(words or b"" for words in streams)
    # As a shell has it, which nvcc starts its steps with.
    return child.returncode if child.returncode >= 0 else 128 - child.returncode


def _print(out: bytes, err: bytes) -> None:
    for stream, words in ((sys.stdout, out), (sys.stderr, err)):
        stream.buffer.write(words)
        stream.flush()


def dependencies(target: str, files: Iterable[str]) -> str:
    """A list of files for make, as nvcc writes it."""
    names = (name.replace("$", "$$").replace("#", "\\#").replace(" ", "\\ ") for name in files)
    return f"{target} : " + " \\\n    ".join(names) + "\n"


def main(command: list[str]) -> int:
    """Compile as an nvcc command says, and return its status."""
    folder, output = os.environ.get(PARTS), output_of(command)
    if folder and output:
        temporary = f"{output}.parts"
        try:
            return _compile(command, output, temporary, Shelf(Path(folder)))
        except (_NotUnderstoodError, OSError):
            pass
        finally:
            shutil.rmtree(temporary, ignore_errors=True)
    # Python ignores these two, and a program would inherit that.
    for kind in (signal.SIGPIPE, signal.SIGXFSZ):
        signal.signal(kind, signal.SIG_DFL)
    try:
        os.execvp(command[0], command)
    except OSError as error:
        print(f"{command[0]}: {error.strerror}", file=sys.stderr)
        return 127


def _compile(command: list[str], output: str, temporary: str, shelf: Shelf) -> int:
    # What a compile that was killed left there.
    shutil.rmtree(temporary, ignore_errors=True)
    Path(temporary).mkdir(parents=True)
    messages: list[bytes] = []
    asked = [*one_by_one(command), "--dryrun", "--keep", "--keep-dir", temporary]
    if _start(asked, dict(os.environ), messages) != 0:
        raise _NotUnderstoodError
    run = read_dry_run(messages[1].decode(errors="surrogateescape"))
    _print(messages[0], run.warnings.encode(errors="surrogateescape"))
    compiled = Compile(run, shelf, temporary, os.environ.get(ROOT, ""))
    status = compiled.do()
    if status == 0:
        if run.dependencies:
            target = next(filter(None, (after(command, option) for option in _TARGETS)), output)
            text = dependencies(target, compiled.read)
            Path(run.dependencies).write_text(text, encoding="utf-8", errors="surrogateescape")
        _count(compiled.counted)
    return status


def _count(words: Sequence[str]) -> None:
    log = os.environ.get(LOG)
    if log and words:
        with contextlib.suppress(OSError), Path(log).open("a", encoding="utf-8") as file:
            file.write("".join(f"{word}\n" for word in words))


def _stop(number: int, frame: FrameType | None) -> None:
    """Hand a signal on. Raised from here, it could leave a step that is just being started."""
    _signals.append(number)
    for child in _running:
        child.terminate()


if __name__ == "__main__":
    for _kind in (signal.SIGHUP, signal.SIGINT, signal.SIGTERM):
        if signal.getsignal(_kind) != signal.SIG_IGN:
            signal.signal(_kind, _stop)
    _status = 1
    with contextlib.suppress(_StoppedError):
        _status = main(sys.argv[1:])
    if _signals:
        signal.signal(_signals[0], signal.SIG_DFL)
        os.kill(os.getpid(), _signals[0])
    sys.exit(_status)

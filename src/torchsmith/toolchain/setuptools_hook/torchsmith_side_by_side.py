"""Makes setuptools' compiler class compile several files at once.

It runs in the Python of the project that is built, from 3.7 on, and so imports nothing of
torchsmith. Each file is compiled in a process forked from this one: a project's own compiler class
(torch has one) may change the compiler object for each file, and the other files do not see that.
The governor decides how many compilers really run.

A file is skipped if its object was made by the same command from files that did not change since.
The notes for that are kept in the store, not beside the object. So the files of all extensions are
compiled before the first is linked: setuptools finds their objects made, and links one extension
after another, as it always did.
"""

from __future__ import annotations

import hashlib
import json
import os
import pickle
import select
import shutil
import signal
import socket
import sys
import threading
import time
import warnings

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from types import ModuleType
    from typing import Any

_OBJECTS = "TORCHSMITH_OBJECTS"
_GOVERNOR = "TORCHSMITH_GOVERNOR"
# These change what a compiler reads or writes, but appear in no command.
_VARIABLES = (
    *("CPATH", "C_INCLUDE_PATH", "CPLUS_INCLUDE_PATH", "SOURCE_DATE_EPOCH"),
    *("NVCC_PREPEND_FLAGS", "NVCC_APPEND_FLAGS", "NVCC_CCBIN"),
)
# Compilers that list the files they read in a known form.
_KNOWN = ("cc", "c++", "gcc", "g++", "clang", "clang++", "nvcc")
_turn = threading.Lock()


# The pipe to which a process that compiles ahead writes each finished file; None in any other.
_ahead: int | None = None
# Whether all files were compiled ahead, and counted.
_counted = False


def teach(module: ModuleType) -> None:
    """Change the compiler class, or the command, of a module of distutils."""
    command = module.__dict__.get("build_ext")
    if command is not None and command.__module__ == module.__name__:
        command._build_extensions_serial = _compiled_ahead(command._build_extensions_serial)
    for name in ("CCompiler", "Compiler"):
        kind = module.__dict__.get(name)
        # Not a class that is only imported there: it was changed in its own module.
        if kind is not None and kind.__module__ == module.__name__:
            kind.compile = _side_by_side(kind.compile)


def _side_by_side(original: Callable[..., Any]) -> Callable[..., Any]:
    def compile_files(self: Any, *args: Any, **kwargs: Any) -> Any:
        if self.compiler_type != "unix" or not os.environ.get(_GOVERNOR):
            return original(self, *args, **kwargs)
        files: list[tuple[Any, ...]] = []
        with _turn:
            # distutils runs its loop; what it would do for each file is only noted.
            one = self._compile
            own = "_compile" in self.__dict__
            self._compile = lambda *file: files.append(file)
            try:
                objects = original(self, *args, **kwargs)
            finally:
                if own:
                    self._compile = one
                else:
                    del self._compile
        _compile_all(self, one, files)
        return objects

    compile_files.__doc__ = original.__doc__
    return compile_files


def _compiled_ahead(original: Callable[..., None]) -> Callable[..., None]:
    def build_extensions(self: Any) -> None:
        if len(self.extensions) > 1 and _is_plain(self):
            _compile_ahead(self)
        original(self)

    return build_extensions


def _is_plain(command: Any) -> bool:
    """Whether setuptools itself builds the extensions: compiles here, and then links."""
    return (
        bool(os.environ.get(_GOVERNOR) and os.environ.get(_OBJECTS))
        and type(command).build_extension.__module__.endswith("command.build_ext")
        and command.compiler.compiler_type == "unix"
        # torch's command puts ninja here.
        and "compile" not in vars(command.compiler)
    )


def _compile_ahead(command: Any) -> None:
    """Compile the files of every extension; a failure appears again when setuptools builds it."""
    global _counted
    total = sum(len(extension.sources) for extension in command.extensions)
    reader, writer = os.pipe()
    children = [_fork_ahead(command, extension, writer) for extension in command.extensions]
    os.close(writer)
    try:
        with os.fdopen(reader) as sources:
            for done, source in enumerate(sources, 1):
                _tell(done, total, source.rstrip("\n"))
    except BaseException:
        for pid in children:
            os.kill(pid, 15)
        raise
    finally:
        for pid in children:
            os.waitpid(pid, 0)
    _counted = True


def _fork_ahead(command: Any, extension: Any, writer: int) -> int:
    global _ahead
    sys.stdout.flush()
    sys.stderr.flush()
    pid = os.fork()
    if pid:
        return pid
    try:
        _ahead = writer
        signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))
        command.compiler.link_shared_object = lambda *_args, **_kwargs: None
        command.build_extension(extension)
    except BaseException:
        # setuptools compiles it again, and prints the error then.
        pass
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(0)


def _compile_all(compiler: Any, one: Callable[..., None], files: Sequence[tuple[Any, ...]]) -> None:
    most = int(os.environ.get("TORCHSMITH_CORES") or os.cpu_count() or 1)
    pending = list(reversed(files))
    running: dict[int, tuple[int, str]] = {}
    failure: BaseException | None = None
    try:
        while running or (pending and failure is None):
            while pending and failure is None and len(running) < most:
                file = pending.pop()
                pid, answer = _forked(compiler, one, file)
                # An object, its source, and more.
                running[answer] = (pid, str(file[1]))
            for answer in select.select(list(running), [], [])[0]:
                pid, source = running.pop(answer)
                with os.fdopen(answer, "rb") as pipe:
                    content = pipe.read()
                if os.waitpid(pid, 0)[1]:
                    failure = failure or _error(content, source)
                if not _counted:
                    _tell(len(files) - len(pending) - len(running), len(files), source)
    finally:
        for answer, (pid, _) in running.items():
            os.close(answer)
            os.kill(pid, 15)
            os.waitpid(pid, 0)
    if failure is not None:
        raise failure


def _forked(compiler: Any, one: Callable[..., None], file: tuple[Any, ...]) -> tuple[int, int]:
    """Compile a file in another process; return its number, and a pipe for its error."""
    sys.stdout.flush()
    sys.stderr.flush()
    answer, errors = os.pipe()
    with warnings.catch_warnings():
        # Python warns of other threads, whose locks a compile does not need.
        warnings.simplefilter("ignore")
        pid = os.fork()
    if pid:
        os.close(errors)
        return pid, answer
    status = 1
    try:
        # What runs a command; it was `spawn` before setuptools 84.
        name = "call" if hasattr(compiler, "call") else "spawn"
        setattr(compiler, name, _unless_made(getattr(compiler, name)))
        one(*file)
        status = 0
    except BaseException as error:
        os.write(errors, _pickled(error))
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(status)


def _pickled(error: BaseException) -> bytes:
    try:
        content = pickle.dumps(error)
        pickle.loads(content)
    except Exception:
        content = pickle.dumps(RuntimeError(f"{type(error).__name__}: {error}"))
    return content


def _error(content: bytes, source: str) -> BaseException:
    # Written by our own child; empty if it was killed.
    found = pickle.loads(content) if content else None
    return found if isinstance(found, BaseException) else RuntimeError(f"{source}: it was ended")


def _tell(done: int, total: int, source: str) -> None:
    """Report the progress to the governor, for its display."""
    if _ahead is not None:
        os.write(_ahead, os.fsencode(f"{source}\n"))
        return
    body = b"\0".join([b"files", b"%d" % done, b"%d" % total, os.fsencode(source)])
    try:
        with socket.socket(socket.AF_UNIX) as link:
            link.connect(os.environ[_GOVERNOR])
            link.sendall(len(body).to_bytes(4, "big") + body)
    except OSError:
        pass


def _unless_made(run: Callable[..., None]) -> Callable[..., None]:
    def unless_made(command: Sequence[str], *args: Any, **kwargs: Any) -> None:
        made = _followed(command)
        if made is None:
            # What cannot be skipped later is compiled only then.
            if _ahead is None:
                run(command, *args, **kwargs)
        elif _ahead is not None:
            made.lay_aside(lambda words: run(words, *args, **kwargs))
        elif not made.is_current() and not made.take():
            run([*command, *made.options], *args, **kwargs)
            made.keep(made.object, made.note)

    return unless_made


def _followed(command: Sequence[str]) -> _Made | None:
    """The object that a command makes; None if too little is known to skip it later."""
    words = [os.fspath(word) for word in command]
    store = os.environ.get(_OBJECTS)
    # The compiler may stand behind a cache.
    names = [os.path.basename(word).rstrip("-.0123456789") for word in words[:2]]
    known = any(name.rpartition("-")[2] in _KNOWN for name in names)
    plain = words.count("-c") == 1 and words.count("-o") == 1 and words[-1] != "-o"
    # It makes such a list already, or reads its options from a file.
    other = any(word.startswith(("-M", "--generate-dep", "@")) for word in words)
    return _Made(store, words) if store and known and plain and not other else None


class _Made:
    """An object and what it was made of.

    Two extensions may have the same file and object but other options: torch_cluster compiles its
    functions with and without CUDA. So objects compiled ahead are laid aside, one for each command.
    """

    def __init__(self, store: str, words: list[str]) -> None:
        self.object = os.path.abspath(words[words.index("-o") + 1])
        self.words = words
        name = hashlib.sha256(os.fsencode(self.object)).hexdigest()
        self.note = os.path.join(store, name[:2], name[2:])
        self.aside = f"{self.note}.{self.command()[:16]}.o"
        self.list = f"{self.note}.{os.getpid()}.d"
        self.options = ["-MD", "-MF", self.list]
        self.began = time.time_ns()
        os.makedirs(os.path.dirname(self.note), exist_ok=True)

    def command(self) -> str:
        """A hash of all that decides the result, except the files."""
        parts = [os.getcwd(), *self.words]
        parts += [f"{name}={os.environ.get(name)}" for name in _VARIABLES]
        return hashlib.sha256("\0".join(parts).encode("utf-8", "surrogateescape")).hexdigest()

    def is_current(self) -> bool:
        """Whether the object is what this command would make."""
        return self._holds(self.note)

    def lay_aside(self, run: Callable[[list[str]], None]) -> None:
        """Make the object for later, apart from other extensions' objects of that name."""
        if self.is_current() or self._holds(f"{self.aside}.json"):
            return
        part = f"{self.aside}.{os.getpid()}.o"
        at = self.words.index("-o") + 1
        run([*self.words[:at], part, *self.words[at + 1 :], *self.options])
        os.replace(part, self.aside)
        self.keep(self.aside, f"{self.aside}.json")

    def take(self) -> bool:
        """Move the object laid aside to its place; return whether there was one."""
        if not self._holds(f"{self.aside}.json"):
            return False
        files = self._known(f"{self.aside}.json")["files"]
        del files[self.aside]
        os.makedirs(os.path.dirname(self.object), exist_ok=True)
        shutil.move(self.aside, self.object)
        self._write(self.note, {**files, self.object: _mark(self.object)})
        os.unlink(f"{self.aside}.json")
        return True

    def keep(self, made: str, note: str) -> None:
        """Note the files that were read; if that fails, the file is compiled again next time."""
        try:
            with open(self.list, encoding="utf-8", errors="surrogateescape") as file:
                read = _prerequisites(file.read())
            os.unlink(self.list)
            compilers = [found for found in map(shutil.which, self.words[:2]) if found]
            marks = {path: _mark(path) for path in (*compilers, *read)}
            if any(changed >= self.began for _, changed in marks.values()):
                # A file changed, perhaps after the compiler had read it.
                return
            self._write(note, {**marks, made: _mark(made)})
        except OSError:
            pass

    def _holds(self, note: str) -> bool:
        try:
            known = self._known(note)
            return known["command"] == self.command() and all(
                _mark(path) == mark for path, mark in known["files"].items()
            )
        except (OSError, ValueError, KeyError, TypeError, AttributeError):
            return False

    def _known(self, note: str) -> Any:
        with open(note, encoding="utf-8", errors="surrogateescape") as file:
            return json.load(file)

    def _write(self, note: str, marks: dict[str, list[int]]) -> None:
        part = f"{note}.{os.getpid()}.part"
        with open(part, "w", encoding="utf-8", errors="surrogateescape") as file:
            json.dump({"command": self.command(), "files": marks}, file)
        os.replace(part, note)


def _mark(path: str) -> list[int]:
    status = os.stat(path)
    return [status.st_size, status.st_mtime_ns]


def _prerequisites(text: str) -> list[str]:
    """The files that a compiler lists, as a rule for make."""
    listed = text.replace("\\\n", " ").partition(": ")[2].partition("\n")[0]
    words = listed.replace("\\ ", "\0").replace("\\#", "#").replace("$$", "$").split()
    return [os.path.abspath(word.replace("\0", " ")) for word in words]

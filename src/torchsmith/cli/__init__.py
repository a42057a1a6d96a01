"""The commands, one subject a file: parse, call, print. No logic lives here.

Start-up is part of the interface: modules of this room import what they need inside the
command that needs it.
"""

from __future__ import annotations

import contextlib
import errno
import gc
import os
import sys


def main() -> None:
    """Run the command line; Ctrl-C ends it without a traceback, however early it comes."""
    try:
        _run()
    except KeyboardInterrupt:
        _complain("interrupted")
        raise SystemExit(130) from None


def _run() -> None:
    """Run it; explained failures end with one sentence and an exit code."""
    # Looking for garbage cycles after every 700 new objects takes a tenth of the start-up time.
    gc.set_threshold(50_000)
    # We use no pydantic plugins, and looking for them opens a file of every installed package.
    os.environ.setdefault("PYDANTIC_DISABLE_PLUGINS", "__all__")
    # A store that everybody may write to could not be trusted the next time.
    os.umask(os.umask(0o022) | 0o002)
    _open_closed_streams()
    from torchsmith.cli.output import (
        begin_output,
        flush_streams,
        guard_streams,
        print_json_error,
    )
    from torchsmith.errors import HostError, StoreError, TorchsmithError

    guard_streams()
    begin_output()

    if sys.argv[1:2] == ["help"]:
        sys.argv[1:] = [*(word for word in sys.argv[2:] if word != "help"), "--help"]
    # What follows `--` is another program's.
    ours = sys.argv[: sys.argv.index("--")] if "--" in sys.argv else sys.argv
    debug = "--debug" in ours
    if debug:
        sys.argv.remove("--debug")
    try:
        from torchsmith.cli.app import command_line
        from torchsmith.settings import apply_settings

        apply_settings(os.environ)
        try:
            command_line(sys.argv[1:])(prog_name="torchsmith")
        finally:
            flush_streams()
    except TorchsmithError as error:
        _end(error, debug, error.message, error.hint)
    except (OSError, MemoryError, RecursionError) as error:
        hint = "With --debug, the traceback is shown."
        _end(error, debug, _system_reason(error), hint, _system_exit_code(error))
    except Exception as error:
        if _is_out_of_memory(error):
            hint = "Free some memory, or raise the limits that `ulimit -a` shows."
            _end(error, debug, f"there is not enough memory: {error}", hint, HostError.exit_code)
        # SQLite is imported by few commands: known by its name.
        if type(error).__module__ != "sqlite3":
            raise
        _end(
            error,
            debug,
            f"a database of the store cannot be used: {error}",
            "Check the room left and the rights on the store; `TORCHSMITH_STORE` names another.",
            StoreError.exit_code,
        )
    except SystemExit as end:
        # What Typer makes of Ctrl-C.
        if end.code == 130:
            _complain("interrupted")
            print_json_error("interrupted", "The same command goes on.", 130)
        elif end.code:
            print_json_error("the command line cannot be read", "`torchsmith help` explains it.", 2)
        raise
    finally:
        # The process ends here: looking through a million objects for garbage helps nobody.
        gc.freeze()


def _open_closed_streams() -> None:
    """Give closed standard streams (`torchsmith ... >&-`) to /dev/null.

    Else the first file that is opened, a database of the store maybe, takes their number, and
    whatever a program prints goes into it.
    """
    while (opened := os.open(os.devnull, os.O_RDWR)) <= 2:
        os.set_inheritable(opened, True)
    os.close(opened)
    for name, number in (("stdin", 0), ("stdout", 1), ("stderr", 2)):
        if getattr(sys, name) is None:
            mode = "r" if name == "stdin" else "w"
            setattr(sys, name, open(number, mode, encoding="utf-8", closefd=False))  # noqa: SIM115


def _complain(message: str, hint: str = "") -> None:
    # The exit code is what counts, where nobody reads the words.
    with contextlib.suppress(OSError):
        print(message, file=sys.stderr)
        if hint:
            print(f"  {hint}", file=sys.stderr)


def _system_reason(error: BaseException) -> str:
    """The reason the system gave: a full disk, a read-only folder, no more memory."""
    if isinstance(error, MemoryError):
        return "there is not enough memory"
    if isinstance(error, RecursionError):
        return "the input is nested too deeply"
    named = getattr(error, "filename", None)
    reason = getattr(error, "strerror", None) or str(error)
    return f"{named}: {reason}" if named else reason


def _system_exit_code(error: OSError | MemoryError | RecursionError) -> int:
    """The exit code of a failure of the system; 1 would call it a bug of ours."""
    from torchsmith.errors import DiskFullError, HostError, UsageError

    number = error.errno if isinstance(error, OSError) else None
    if number in (errno.ENOSPC, errno.EDQUOT):
        return DiskFullError.exit_code
    if isinstance(error, RecursionError) or number == errno.ENAMETOOLONG:
        return UsageError.exit_code
    return HostError.exit_code


def _is_out_of_memory(error: Exception) -> bool:
    """Whether an error is what Python makes of too little memory for a thread or a library."""
    text = str(error)
    thread = isinstance(error, RuntimeError) and "can't start new thread" in text
    loading = ("failed to map segment", "annot allocate memory", "cannot create shared object")
    return thread or (isinstance(error, ImportError) and any(word in text for word in loading))


def _end(error: BaseException, debug: bool, message: str, hint: str, code: int = 1) -> None:
    from pathlib import Path

    from torchsmith.cli.output import json_wanted, print_json_error
    from torchsmith.errors import StepFailed

    problems = [str(item) for item in getattr(error, "problems", ())]
    for problem in problems:
        _complain(f"{getattr(error, 'path', '')}: {problem}")
    if json_wanted():
        # With --json, no display has shown these lines.
        for line in getattr(error, "excerpt", ()):
            _complain(f"  {line}")
    _complain(f"error: {message}", hint)
    if isinstance(error, StepFailed):
        from torchsmith.cli.diagnose import known_of_log

        for line in known_of_log(Path(error.log), error.excerpt):
            _complain(line)
    code = getattr(error, "exit_code", code)
    print_json_error(message, hint, code, problems)
    if debug:
        raise error
    raise SystemExit(code) from None

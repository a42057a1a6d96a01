"""The commands, one file each: parse, call, print. No logic lives here.

Start-up is part of the interface: modules of this room import what they need inside the
command that needs it.
"""

from __future__ import annotations

import errno
import gc
import os
import sys


def main() -> None:
    """Run the command line; explained failures end with one sentence and an exit code."""
    # Looking for garbage cycles after every 700 new objects is a tenth of what starting takes.
    gc.set_threshold(50_000)
    # Nor is any plugin of pydantic ours: looking for them opens a file of every package there is.
    os.environ.setdefault("PYDANTIC_DISABLE_PLUGINS", "__all__")
    # What everybody may write to, a store above all, could not be trusted the next time.
    os.umask(os.umask(0o022) | 0o002)
    _open_closed_streams()
    from torchsmith.cli.output import begin_output, print_json_error
    from torchsmith.cli.terminal import guard_streams
    from torchsmith.errors import HostError, RecipeError, StoreError, TorchsmithError

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
        command_line(sys.argv[1:])(prog_name="torchsmith")
    except RecipeError as error:
        for problem in error.problems:
            _complain(f"{error.path}: {problem}")
        _end(error, debug, error.message, error.hint)
    except TorchsmithError as error:
        _end(error, debug, error.message, error.hint)
    except (OSError, MemoryError, RecursionError) as error:
        hint = "With --debug, the traceback is shown."
        _end(error, debug, _of_the_machine(error), hint, _code_of(error))
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
    except KeyboardInterrupt:
        _complain("interrupted")
        print_json_error("interrupted", "", 130)
        raise SystemExit(130) from None
    except SystemExit as end:
        if end.code:
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
    print(message, file=sys.stderr)
    if hint:
        print(f"  {hint}", file=sys.stderr)


def _of_the_machine(error: BaseException) -> str:
    """What the machine would not do: a full disk, a folder that is read-only, no more memory."""
    if isinstance(error, MemoryError):
        return "there is not enough memory"
    if isinstance(error, RecursionError):
        return "what was given is nested too deep"
    named = getattr(error, "filename", None)
    reason = getattr(error, "strerror", None) or str(error)
    return f"{named}: {reason}" if named else reason


def _code_of(error: OSError | MemoryError | RecursionError) -> int:
    """The exit code of what the machine would not do; 1 would call it a bug of ours."""
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


def _say_what_is_known(error: BaseException) -> None:
    from torchsmith.errors import StepFailed

    if isinstance(error, StepFailed):
        from torchsmith.cli.known import known_of_step

        for line in known_of_step(error):
            _complain(line)


def _end(error: BaseException, debug: bool, message: str, hint: str, code: int = 1) -> None:
    from torchsmith.cli.output import json_wanted, print_json_error

    if json_wanted():
        # Nobody has shown them yet.
        for line in getattr(error, "excerpt", ()):
            _complain(f"  {line}")
    _complain(f"error: {message}", hint)
    _say_what_is_known(error)
    code = getattr(error, "exit_code", code)
    problems = [str(item) for item in getattr(error, "problems", ())]
    print_json_error(message, hint, code, problems)
    if debug:
        raise error
    raise SystemExit(code) from None

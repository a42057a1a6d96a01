"""Every failure a person can meet, with its exit code.

A message is one short sentence of what happened; `hint` says what to do next. A traceback
is for bugs only, never for these.
"""

from __future__ import annotations

from collections.abc import Sequence


class TorchsmithError(Exception):
    """Something went wrong in a way we can explain."""

    exit_code = 1

    def __init__(self, message: str, hint: str = "") -> None:
        super().__init__(message)
        self.message = message
        self.hint = hint


class UsageError(TorchsmithError):
    """The command line asks for something that does not exist or does not fit together."""

    exit_code = 2


class RecipeError(TorchsmithError):
    """Every problem that is in a recipe or a job file, or why it could not be read (`unread`)."""

    exit_code = 2

    def __init__(
        self, path: str, problems: Sequence[RecipeProblem], unread: str = "", *, job: bool = False
    ) -> None:
        self.path = path
        self.problems = tuple(problems)
        if unread:
            # No line of it is to blame.
            super().__init__(
                f"{path} {unread}", "Name a recipe file; `torchsmith init FILE` writes one."
            )
            return
        count = len(self.problems)
        noun = "problem" if count == 1 else "problems"
        super().__init__(
            f"{path}: {count} {noun} in the {'job file' if job else 'recipe'}",
            f"Mend the lines above; `torchsmith schema{' --job' * job}` describes every key.",
        )


class RecipeProblem:
    """One thing wrong with a recipe: where, what, and what was probably meant."""

    __slots__ = ("key", "line", "meant", "message")

    def __init__(self, message: str, *, key: str = "", line: int | None = None, meant: str = ""):
        self.message = message
        self.key = key
        self.line = line
        self.meant = meant

    def __str__(self) -> str:
        where = f"line {self.line}: " if self.line else ""
        key = f"{self.key}: " if self.key else ""
        meant = f" (did you mean {self.meant!r}?)" if self.meant else ""
        return f"{where}{key}{self.message}{meant}"


class ConflictError(TorchsmithError):
    """What was asked for cannot exist; the conflicts were printed."""

    exit_code = 3


class HostError(TorchsmithError):
    """This machine cannot do it as it is."""

    exit_code = 4


class TookTooLongError(HostError):
    """A program did not end in time."""


class OutputError(TorchsmithError):
    """A result could not be written."""

    exit_code = 5


class StoreError(OutputError):
    """The place where results are kept cannot be written, or is something else."""

    def __init__(self, root: object, reason: object) -> None:
        super().__init__(
            f"the store {root} cannot be used: {reason}",
            "Name another place: --store FOLDER, or TORCHSMITH_STORE.",
        )


class WorkFolderError(OutputError):
    """The folder that is built in could be changed by other users of the machine."""

    def __init__(self, work: object, reason: object) -> None:
        super().__init__(
            f"nothing is built in {work}: {reason}",
            "Name another folder: --work FOLDER. If nobody else uses it: chown it to yourself "
            "and chmod -R go-w.",
        )


class StepFailed(TorchsmithError):  # noqa: N818 - named as the event
    """A step of a plan ended badly; the last of its output is in `excerpt`, all of it in `log`."""

    exit_code = 6

    def __init__(
        self, step: str, title: str, reason: str, excerpt: Sequence[str] = (), log: str = ""
    ) -> None:
        self.step = step
        self.title = title
        self.reason = reason
        self.excerpt = tuple(excerpt)
        self.log = log
        # The display has shown the excerpt and named the log.
        super().__init__(
            f"{title}: {reason}",
            "Mend the cause, then run the same command again: it goes on from here.",
        )


class ProofFailed(StepFailed):
    """What a step had to prove does not hold: the wheel is not what was asked for."""

    exit_code = 9

    def __init__(
        self, step: str, title: str, failed: Sequence[str], report: str, log: str = ""
    ) -> None:
        count = len(failed)
        reason = f"{count} check{'' if count == 1 else 's'} failed"
        super().__init__(step, title, reason, failed, log)
        self.report = report
        self.hint = f"The report {report} says what was looked at, and what cures it."


class DiskFullError(TorchsmithError):
    """There was no room left; nothing half-written can be seen."""

    exit_code = 7

    def __init__(
        self,
        where: str,
        needed: int | None = None,
        free: int | None = None,
        inodes: int | None = None,
    ) -> None:
        """`inodes` says how many more files fit, where that is what is scarce."""
        self.where = where
        self.needed = needed
        self.free = free
        amounts = [
            f"{amount / 1e6:,.1f} MB {word}"
            for amount, word in ((needed, "needed"), (free, "free"))
            if amount is not None
        ]
        if inodes is not None:
            amounts.append(f"{inodes} inodes free, one for each file")
        super().__init__(
            f"no room left in {where}" + (f": {', '.join(amounts)}" if amounts else ""),
            "Free some space there (`torchsmith store gc` drops what was not used for a while), "
            "then run the same command again: it goes on from here.",
        )


class InterruptedRunError(TorchsmithError):
    """The run was stopped from outside, in an orderly way."""

    def __init__(self, signal: int) -> None:
        # What a shell reports for a program ended by that signal.
        self.exit_code = 128 + signal
        super().__init__("stopped", "Run the same command again: it goes on from here.")


class SourceError(TorchsmithError):
    """A source could not be fetched, or is not what it should be."""

    exit_code = 8


class UnreachableError(SourceError):
    """No server answered, or none has it; unlike for a wrong file, a mirror may help."""


class NotServedError(UnreachableError):
    """A server answered that it does not have the file."""


class VerificationError(TorchsmithError):
    """A check failed: what was verified is not what it should be."""

    exit_code = 9


class ParityError(TorchsmithError):
    """Results differ by more than rounding explains."""

    exit_code = 9


class UnknownFailureError(TorchsmithError):
    """Nothing known explains the log."""

    exit_code = 10


class NoContainerToolError(HostError):
    """No container tool can be used here: none is installed, or it is not running."""


class ContainerToolError(TorchsmithError):
    """A container tool refused; `output` holds its last lines."""

    exit_code = 6

    def __init__(self, message: str, hint: str = "", output: Sequence[str] = ()) -> None:
        super().__init__(message, hint)
        self.output = tuple(output)


class NoImageError(ContainerToolError):
    """An image is not in the container tool's store."""

    def __init__(self, image: str, tool: str) -> None:
        super().__init__(
            f"{tool} has no image {image}",
            f"`{tool} images` lists those it has; `torchsmith image build` makes a recipe's.",
        )


class RegistryError(OutputError):
    """A registry refuses, or cannot be reached."""


class UnreachableRegistryError(RegistryError):
    """No registry answers there."""

    exit_code = 8


class ClusterError(TorchsmithError):
    """A cluster refused a request, or cannot be reached: nothing was submitted."""

    exit_code = 11


class UnansweredError(ClusterError):
    """A request to a cluster got no answer; the journal keeps it to be looked up."""


class JobFailed(TorchsmithError):  # noqa: N818 - named as the event
    """A job that the command waited for failed."""

    exit_code = 12

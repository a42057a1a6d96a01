"""`torchsmith fits`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from typer import Argument, Option

from torchsmith.cli.output import print_json
from torchsmith.errors import UsageError, VerificationError


def fits(
    wheel: Annotated[Path, Argument(help="A wheel that was built against torch.")],
    torch: Annotated[
        str, Option(help="Only these releases: 2.8, or 2.6:2.9. All have to fit.")
    ] = "",
    env: Annotated[Path | None, Option(help="Hold it against the torch installed there.")] = None,
    json: Annotated[bool, Option("--json", help="All of it, for scripts.")] = False,
) -> None:
    """Say which torch releases a compiled wheel loads with, and why not with others.

    Ends with 0 if it fits: every release named, or at least one if none is; otherwise with 9.
    """
    import os

    from torchsmith.cli.show_fits import as_data, lines
    from torchsmith.facts.files import Facts
    from torchsmith.facts.ranges import version_range
    from torchsmith.host.probe import Programs
    from torchsmith.host.system import read_libc, read_platform
    from torchsmith.host.torch import read_torch
    from torchsmith.verify.fits import fitting, judge_installed, judge_releases, read_subject
    from torchsmith.verify.target import read_environment

    if torch and env is not None:
        raise UsageError("--torch and --env exclude each other", "Give one of them.")
    try:
        asked = version_range(torch or ":")
    except ValueError as error:
        raise UsageError(f"--torch: {error}", "Write 2.8, 2.6:2.9 or 2.6: (and newer).") from None
    subject = read_subject(wheel)
    if env is not None:
        programs = Programs(os.environ)
        installed = read_torch(programs, read_environment(env).python)
        if installed is None:
            raise UsageError(f"there is no torch in {env}", "Name an environment that has one.")
        libc = read_libc(programs)
        glibc = libc.version if libc is not None and libc.kind == "glibc" else ""
        machine = read_platform().partition("-")[2]
        verdicts = judge_installed(subject, installed, machine, glibc)
    else:
        verdicts = judge_releases(subject, Facts(), asked)
    if json:
        print_json(as_data(subject, verdicts))
    else:
        print("\n".join(lines(subject, verdicts)))
    good = fitting(verdicts)
    if not good or ((torch or env) and len(good) < len(verdicts)):
        where = f"torch {verdicts[0].torch}" if len(verdicts) == 1 else "these releases"
        raise VerificationError(
            f"{wheel.name} does not fit {where if torch or env else 'any known release'}",
            "Install the torch it was built against, or build it for this one.",
        )

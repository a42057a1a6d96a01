"""`torchsmith verify`."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from typer import Argument, Option

from torchsmith.cli import options, planning
from torchsmith.cli.diagnose import known_of_lines
from torchsmith.cli.output import print_checks, print_json, tell
from torchsmith.errors import VerificationError

if TYPE_CHECKING:
    from torchsmith.plan.expects import Expects
    from torchsmith.verify.report import Report


def verify(
    target: Annotated[list[Path], Argument(help="Wheels to install together, or one environment.")],
    recipe: Annotated[
        Path | None, Option(help="Compare it with what this recipe asks for.")
    ] = None,
    preset: Annotated[str | None, Option(help="Compare it with a shipped recipe.")] = None,
    python: Annotated[str, Option(help="The Python to install wheels into: 3.11, or a path.")] = "",
    no_deps: Annotated[
        bool, Option("--no-deps", help="Install no dependencies: needs no index.")
    ] = False,
    find_links: Annotated[str, Option(help="Take dependencies from this folder only.")] = "",
    no_run: Annotated[
        bool, Option("--no-run", help="Look at the files; install and run nothing.")
    ] = False,
    timeout: Annotated[float, Option(help="Seconds one check may take.", min=1)] = 120.0,
    keep: Annotated[
        bool, Option("--keep", help="Leave the environment of the wheels in place.")
    ] = False,
    json: Annotated[bool, Option("--json", help="The whole report, for scripts.")] = False,
    report: Annotated[
        Path | None, Option(help="Also write the report as JSON to this file.")
    ] = None,
    save: Annotated[
        bool, Option("--save", help="Also keep it beside each wheel, as JSON and as text.")
    ] = False,
    signature: Annotated[
        bool, Option("--signature", help="Only check that a trusted key signed these very files.")
    ] = False,
    key: Annotated[
        Path | None, Option(help="With --signature: trust this public key alone.")
    ] = None,
    policy: Annotated[
        Path | None, Option(help="Only check signatures: this file says who may sign what.")
    ] = None,
) -> None:
    """Prove that a wheel or an environment holds the torch asked for.

    Ends with 0 if every check passed, 9 if one failed.
    """
    if signature or key is not None or policy is not None:
        more = ("recipe", "preset", "python", "keep", "report", "save", "timeout")
        options.unused("where only signatures are checked", *more)
        _signatures(target, key, policy, json=json)
        return
    if no_run:
        options.unused("with --no-run", "python", "keep", "timeout")
    if all(path.suffix != ".whl" for path in target):
        options.unused("without a wheel", "python", "keep", "save")
    from torchsmith.package.envelope import sign_report
    from torchsmith.plan.expects import expected
    from torchsmith.verify.report import keep as keep_report
    from torchsmith.verify.report import keep_beside
    from torchsmith.verify.target import Options
    from torchsmith.verify.verify import verify as prove

    expectations: list[Expects] = []
    if recipe or preset:
        loaded = planning.read_recipe(recipe, preset)
        here = planning.machine_for(loaded)
        found = planning.resolutions(loaded, here)
        expectations = [expected(item) for item in found]
    made = prove(
        target,
        options=Options(
            python=python,
            deps=not no_deps,
            find_links=find_links,
            keep=keep,
            run=not no_run,
            timeout=timeout,
        ),
        asked=expectations,
        say=tell,
    )
    if report is not None:
        keep_report(made, report)
    for path in target if save else ():
        if path.suffix == ".whl":
            keep_beside(made, path)
            sign_report(made, path)
    show_report(made, json=json)


def show_report(made: Report, *, json: bool) -> None:
    """Print what was found; end the command with what is known of it where a check failed."""
    from json import loads

    from torchsmith.verify.report import as_json, head, summary

    if json:
        print_json(loads(as_json(made)))
    else:
        print("\n".join(head(made)))
        print_checks(made.checks, everything=False)
        print(f"\n{summary(made)}")
    if made.rating == "fail":
        names = ", ".join(dict.fromkeys(check.name for check in made.failed))
        texts = (text for check in made.failed for text in (check.found, check.detail))
        for line in known_of_lines(line for text in texts for line in text.splitlines()):
            print(line, file=sys.stderr)
        raise VerificationError(f"not what it should be: {names}", "The lines marked x say why.")


def _signatures(files: list[Path], key: Path | None, policy: Path | None, *, json: bool) -> None:
    from torchsmith.package.envelope import check
    from torchsmith.package.keys import read_public, trusted_keys
    from torchsmith.package.policy import check_policy, read_policy

    keys = (read_public(key),) if key is not None else trusted_keys()
    rules = read_policy(policy) if policy is not None else None
    # All are checked before anything is printed: a refused one must not hide behind others.
    found = {
        path: check(path, keys) if rules is None else check_policy(path, rules, keys)
        for path in files
    }
    if json:
        signers = [{"file": str(path), "key": item.signer.id} for path, item in found.items()]
        print_json({"signatures": signers})
        return
    for path, signed in found.items():
        whose = "this machine's key" if signed.signer.own else "the trusted key"
        print(f"ok {path.name}: signed by {whose} {signed.signer.id[:16]}")

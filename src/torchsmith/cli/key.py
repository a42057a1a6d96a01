"""`torchsmith key`: what this machine signs with, and whose signatures it trusts."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

from typer import Argument, Option

from torchsmith.cli import options
from torchsmith.cli.app import App
from torchsmith.cli.output import answer, print_json
from torchsmith.errors import UsageError

app = App("Keys that sign artifacts, and keys that are trusted.")


@app.command()
def show(json: options.Json = False) -> None:
    """Show this machine's own key by its id, never its private half."""
    from torchsmith.package.keys import own_key

    key = own_key()
    if key is None:
        raise UsageError(
            "this machine has no key yet",
            "The first build makes one, and so does `torchsmith key export`.",
        )
    if json:
        print_json({"id": key.id, "public": key.pem, "file": str(key.path)})
        return
    print(f"key      {key.id}")
    print(f"private  {key.path}")


@app.command()
def export(
    output: Annotated[Path | None, Option("--output", "-o", help="Write it to this file.")] = None,
    json: options.Json = False,
) -> None:
    """Write the public half of this machine's key, for those who are to trust it."""
    from torchsmith.files import write_result
    from torchsmith.package.keys import own_key

    key = own_key(make=True)
    assert key is not None
    if output is not None:
        write_result(output, key.pem.encode())
    if json:
        print_json({"id": key.id, "public": key.pem, "file": str(output or "")})
    elif output is None:
        sys.stdout.write(key.pem)
    else:
        print(f"{key.id} -> {output}", file=sys.stderr)


@app.command()
def trust(
    file: Annotated[Path, Argument(help="A public key.")],
    until: Annotated[str, Option(metavar="DAY", help="The last day, such as 2027-12-31.")] = "",
    json: options.Json = False,
) -> None:
    """Trust what this key signs."""
    from torchsmith.package.keys import trust as trusted

    key = trusted(file, until)
    until = f", until {key.until}" if key.until else ""
    text = f"{key.id} is trusted now{until}"
    if key.problem:
        text = f"{key.id} is {key.problem}: nothing it signed is believed after {key.until}"
    answer({"id": key.id, "until": key.until}, text, json=json)


@app.command()
def revoke(
    keys: Annotated[
        list[str], Argument(metavar="KEY", help="An id, a public key, or a list of ids.")
    ],
    json: options.Json = False,
) -> None:
    """Trust keys no longer, whenever they signed."""
    from torchsmith.package.keys import own_key
    from torchsmith.package.keys import revoke as revoked

    gone = revoked(keys)
    lines = [f"{key} is revoked" for key in gone]
    own = own_key()
    if own is not None and own.id in gone:
        lines.append("this machine signed with it: `torchsmith key rotate` makes a new one")
    answer({"revoked": gone}, "\n".join(lines), json=json)


@app.command()
def rotate(json: options.Json = False) -> None:
    """Sign with a new key from now on; signatures of the old one stay trusted here."""
    from torchsmith.package.keys import rotate as renewed

    old, new = renewed()
    text = (
        f"{new.id} signs from now on; signatures of {old.id} stay trusted\n"
        "`torchsmith key export` writes the new key for those who are to trust it"
    )
    answer({"id": new.id, "old": old.id}, text, json=json)


@app.command("list")
def list_(json: options.Json = False) -> None:
    """List the keys whose signatures are trusted here."""
    from torchsmith.package.keys import trusted_keys

    keys = trusted_keys()
    if json:
        shown = [
            {
                "id": key.id,
                "own": key.own,
                "file": str(key.path),
                "until": key.until,
                "problem": key.problem,
            }
            for key in keys
        ]
        print_json({"keys": shown})
        return
    for key in keys:
        state = key.problem or ("own" if key.own else "trusted")
        until = f"  until {key.until}" if key.until else ""
        print(f"{key.id}  {state}  {key.path}{until}")
    if not keys:
        print("no key is trusted: `torchsmith key trust FILE` adds one")

"""`torchsmith key`: what this machine signs with, and whose signatures it believes."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer

from torchsmith.cli.help import App

app = App("Keys that sign artifacts, and keys that are trusted.")
Json = Annotated[bool, typer.Option("--json", help="For scripts.")]


@app.command()
def show(json: Json = False) -> None:
    """This machine's own key, by its number; the private half is never shown."""
    from torchsmith.cli.output import print_json
    from torchsmith.errors import UsageError
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
    output: Annotated[
        Path | None, typer.Option("--output", "-o", help="Write it to this file.")
    ] = None,
) -> None:
    """The public half of this machine's key, for those who are to trust it."""
    from torchsmith.files import write_result
    from torchsmith.package.keys import own_key

    key = own_key(make=True)
    assert key is not None
    if output is None:
        sys.stdout.write(key.pem)
    else:
        write_result(output, key.pem.encode())
        print(f"{key.id} -> {output}", file=sys.stderr)


@app.command()
def trust(
    file: Annotated[Path, typer.Argument(help="A public key.")],
    until: Annotated[
        str, typer.Option("--until", metavar="DAY", help="The last day, such as 2027-12-31.")
    ] = "",
) -> None:
    """Believe what this key signs."""
    from torchsmith.package.keys import trust as believe

    key = believe(file, until)
    print(f"{key.id} is trusted now" + (f", until {key.until}" if key.until else ""))


@app.command()
def revoke(
    keys: Annotated[
        list[str], typer.Argument(metavar="KEY...", help="An id, a public key, or a list of ids.")
    ],
) -> None:
    """Believe keys no more, whenever they signed."""
    from torchsmith.package.keys import revoke as disbelieve

    for key in disbelieve(keys):
        print(f"{key} is revoked")


@app.command()
def rotate() -> None:
    """Sign with a new key from now on; what the old one signed is still believed here."""
    from torchsmith.package.keys import rotate as renewed

    old, new = renewed()
    print(f"{new.id} signs from now on; {old.id} is only believed")
    print("`torchsmith key export` writes the new one for those who are to trust it")


@app.command("list")
def list_(json: Json = False) -> None:
    """The keys whose signatures are believed here."""
    from torchsmith.cli.output import print_json
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

"""`torchsmith serve`."""

from __future__ import annotations

import sys
from typing import Annotated

import typer

from torchsmith.cli import places


def serve(
    index: places.Index = None,
    channel: places.Channel = None,
    port: Annotated[
        int, typer.Option("--port", min=0, max=65535, help="0 takes one that is free.")
    ] = 8080,
    host: Annotated[str, typer.Option("--host", help="Address to listen on.")] = "127.0.0.1",
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="No line per request.")] = False,
) -> None:
    """Serve an index and a channel over HTTP; by default only to this machine."""
    from torchsmith.ship.publish import Places
    from torchsmith.ship.serve import Server, is_loopback, usage

    where = Places(index, channel)

    def say(text: str) -> None:
        if not quiet:
            print(text, file=sys.stderr, flush=True)

    with Server(where, host, port, say) as server:
        if not is_loopback(host):
            print(
                f"!  anybody who reaches {host} can read what is served; there is no password",
                file=sys.stderr,
            )
        print(f"serving at {server.address}", flush=True)
        for line in usage(where, server.address):
            print(f"  {line}", flush=True)
        try:
            server.serve_forever()
        except KeyboardInterrupt:
            print("stopped", file=sys.stderr)

"""`torchsmith serve`."""

from __future__ import annotations

import sys
from typing import Annotated

from typer import Option

from torchsmith.cli import publish

Port = Annotated[int, Option("--port", min=0, max=65535, help="0 takes one that is free.")]
Host = Annotated[str, Option("--host", help="Address to listen on.")]
Quiet = Annotated[bool, Option("--quiet", "-q", help="No line per request.")]


def serve(
    index: publish.Index = None,
    channel: publish.Channel = None,
    port: Port = 8080,
    host: Host = "127.0.0.1",
    quiet: Quiet = False,
) -> None:
    """Serve an index and a channel over HTTP; by default only to this machine."""
    from torchsmith.ship.addresses import is_loopback, usage
    from torchsmith.ship.publish import Places
    from torchsmith.web.access import Access
    from torchsmith.web.app import make_app
    from torchsmith.web.portal import Portal
    from torchsmith.web.server import Server

    where = Places(index, channel)
    where.check()
    portal = Portal(Access(names=None), where)
    server = Server(make_app(portal, log_to_stderr(quiet=quiet)), host, port)
    if not is_loopback(host):
        print(
            f"!  anybody who can reach {host} can read what is served; there is no password",
            file=sys.stderr,
        )
    print(f"serving at {server.address}", flush=True)
    for line in usage(where, server.address):
        print(f"  {line}", flush=True)
    server.run()
    print("stopped", file=sys.stderr)


def log_to_stderr(*, quiet: bool) -> publish.Say:
    """Where the lines about requests go."""

    def say(text: str) -> None:
        if not quiet:
            print(text, file=sys.stderr, flush=True)

    return say

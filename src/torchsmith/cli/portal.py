"""`torchsmith portal`."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

from typer import Option

from torchsmith.cli import options, publish
from torchsmith.cli.serve import Host, Port, Quiet, log_to_stderr


def portal(
    index: publish.Index = None,
    channel: publish.Channel = None,
    recipes: Annotated[
        Path | None, Option(help="Folder whose jobs can be launched; default: .")
    ] = None,
    port: Port = 8080,
    host: Host = "127.0.0.1",
    name: Annotated[
        list[str] | None,
        Option(help="Another name of this server, as readers write it; repeatable."),
    ] = None,
    token_file: Annotated[
        Path | None, Option(help="Readers need the token in it; made if it is missing.")
    ] = None,
    token: Annotated[str, Option(envvar="TORCHSMITH_PORTAL_TOKEN", hidden=True)] = "",
    allow_actions: Annotated[
        bool, Option("--allow-actions", help="Let readers stop builds and launch jobs.")
    ] = False,
    open_: Annotated[bool, Option("--open", help="Open it in a browser.")] = False,
    store: options.StoreFolder = None,
    quiet: Quiet = False,
) -> None:
    """Show builds, packages, recipes, jobs and this machine in a browser.

    Only this machine reaches it, and it only shows. For others (--host) and for actions
    (--allow-actions) a token is needed.
    """
    import platform

    from torchsmith.engine.store import default_root
    from torchsmith.ship.addresses import is_loopback, usage
    from torchsmith.ship.publish import Places
    from torchsmith.web.access import Access, check_token, token_in
    from torchsmith.web.app import make_app
    from torchsmith.web.portal import Portal
    from torchsmith.web.server import Server

    root = (store or default_root()).absolute()
    where = Places(index, channel) if index is not None or channel is not None else None
    if where is not None:
        where.check()
    file = token_file
    if not token and (allow_actions or not is_loopback(host)):
        file = token_file or root / "portal.token"
    secret = check_token(token) if token else token_in(file) if file is not None else ""
    # Whoever else is on this machine reaches its loopback, too.
    names = frozenset(item.lower() for item in [*(name or ()), platform.node()] if item)
    access = Access(names, secret, allow_actions)
    shown = Portal(access, where, root, (recipes or Path()).absolute())
    server = Server(make_app(shown, log_to_stderr(quiet=quiet)), host, port)
    print(f"portal at {server.address}", flush=True)
    if secret:
        print(f"  token: {file or 'TORCHSMITH_PORTAL_TOKEN'}", flush=True)
    for line in usage(where, server.address) if where else ():
        print(f"  {line}", flush=True)
    if open_:
        import webbrowser

        webbrowser.open(server.address)
    server.run()
    print("stopped", file=sys.stderr)

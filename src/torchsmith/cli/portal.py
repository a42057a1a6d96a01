"""`torchsmith serve` and `portal`: over HTTP, the published files alone or everything."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from typer import Option

from torchsmith.cli import options, publish
from torchsmith.cli.output import tell

if TYPE_CHECKING:
    from torchsmith.ship.publish import Places
    from torchsmith.web.app import Server
    from torchsmith.web.portal import Portal

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
    from torchsmith.ship.addresses import is_loopback
    from torchsmith.ship.publish import Places
    from torchsmith.web.access import Access
    from torchsmith.web.portal import Portal

    places = Places(index, channel)
    places.check()
    server = _server(Portal(Access(names=None), places), host, port, quiet=quiet)
    if not is_loopback(host):
        tell(f"!  anybody who can reach {host} can read what is served; there is no password")
    _run(server, "serving", places)


def _server(portal: Portal, host: str, port: int, *, quiet: bool) -> Server:
    from torchsmith.web.app import Server, make_app

    return Server(make_app(portal, (lambda _: None) if quiet else tell), host, port)


def _run(server: Server, what: str, places: Places | None, *lines: str) -> None:
    """Say where it is and how clients are pointed at it, then serve until it is stopped."""
    from torchsmith.ship.addresses import usage

    print(f"{what} at {server.address}", flush=True)
    for line in (*lines, *(usage(places, server.address) if places else ())):
        print(f"  {line}", flush=True)
    server.run()
    tell("stopped")


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
    from torchsmith.ship.addresses import is_loopback
    from torchsmith.ship.publish import Places
    from torchsmith.web.access import Access, check_token, token_in
    from torchsmith.web.portal import Portal

    root = (store or default_root()).absolute()
    places = Places(index, channel) if index is not None or channel is not None else None
    if places is not None:
        places.check()
    file = token_file
    if not token and (allow_actions or not is_loopback(host)):
        file = token_file or root / "portal.token"
    secret = check_token(token) if token else token_in(file) if file is not None else ""
    # Other users of this machine reach its loopback, too.
    names = frozenset(item.lower() for item in [*(name or ()), platform.node()] if item)
    access = Access(names, secret, allow_actions)
    shown = Portal(access, places, root, (recipes or Path()).absolute())
    server = _server(shown, host, port, quiet=quiet)
    if open_:
        import webbrowser

        # It listens already: the browser waits until it answers.
        webbrowser.open(server.address)
    token_line = [f"token: {file or 'TORCHSMITH_PORTAL_TOKEN'}"] if secret else []
    _run(server, "portal", places, *token_line)

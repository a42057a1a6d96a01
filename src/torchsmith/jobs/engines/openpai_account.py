"""Which OpenPAI, and who we are there."""

from __future__ import annotations

import base64
import json
import math
import os
import re
import urllib.parse
from collections.abc import Iterable

from torchsmith.engine.secrets import Redactor
from torchsmith.errors import UsageError
from torchsmith.jobs.kept_secrets import folder, kept_value
from torchsmith.jobs.rest import Server
from torchsmith.ship.client import stored_password

SERVER = "OPENPAI_SERVER"
TOKEN = "OPENPAI_TOKEN"
USER = "OPENPAI_USER"
TIMEOUT = "OPENPAI_TIMEOUT"
_TOKEN_FILE = "openpai/token"


def address_of(place: str) -> str:
    """The server's address: `place`, or the one in the environment, up to its REST server."""
    named = (place or os.environ.get(SERVER, "")).strip()
    if not named:
        raise UsageError(
            "no OpenPAI server is named",
            f"Set {SERVER} in the environment: https://pai.example.org",
        )
    # Quoted without what may hold a secret: a login, a query.
    wrong = UsageError(
        f"{re.sub('[?#].*|[^/]*@', '', named)!r} is not the address of a server",
        f"{SERVER}=https://pai.example.org",
    )
    try:
        parts = urllib.parse.urlsplit(named if "://" in named else f"https://{named}")
        host, _ = parts.hostname, parts.port
    except ValueError:
        raise wrong from None
    if parts.username or parts.password:
        raise UsageError(
            f"the address of the OpenPAI server {host} holds a login",
            f"Take it out, and set {TOKEN}: addresses are shown and written down.",
        )
    if parts.scheme not in ("http", "https") or not host or parts.query or parts.fragment:
        raise wrong
    path = re.sub(r"/+(?:rest-server(?:/.*)?)?$", "", parts.path)
    return f"{parts.scheme}://{parts.netloc}{path}/rest-server"


def token_for(address: str) -> str:
    """The token, from the environment, its file, or the keyring; never from a command line."""
    token = kept_value(TOKEN, _TOKEN_FILE) or stored_password(address, "token")
    if not token:
        raise UsageError(
            f"there is no token for {address}",
            f"Set {TOKEN}, write it into {folder() / _TOKEN_FILE} (chmod 600), or keep it with: "
            f"keyring set {address} token",
        )
    if not re.fullmatch(r"[!-~]+", token):
        raise UsageError(
            "the token of OpenPAI holds characters no token has", "Copy it again: one line."
        )
    return token


def user_of(token: str) -> str:
    """Whose token it is: its own second part says so, as OpenPAI signs it."""
    if user := os.environ.get(USER, ""):
        return user
    try:
        middle = token.split(".")[1]
        claims = json.loads(base64.urlsafe_b64decode(middle + "=" * (-len(middle) % 4)))
        return str(claims["username"])
    except (IndexError, ValueError, KeyError, TypeError):
        raise UsageError("the token of OpenPAI does not say whose it is", f"Set {USER}.") from None


def server_at(address: str, token: str, secrets: Iterable[str] = ()) -> Server:
    """The server, asked with the token; no secret is in what it is quoted with."""
    return Server(
        "OpenPAI",
        address,
        {"Authorization": f"Bearer {token}"},
        Redactor((token, *secrets)),
        _timeout(),
    )


def _timeout() -> float:
    text = os.environ.get(TIMEOUT, "60")
    try:
        seconds = float(text)
    except ValueError:
        seconds = math.nan
    if not 0 < seconds < 86400:
        raise UsageError(f"{TIMEOUT}={text} is not a number of seconds")
    return seconds

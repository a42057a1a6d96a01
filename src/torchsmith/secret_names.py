"""What is a secret: variables by their names, values by their form.

A secret in a recipe would stand in plans, scripts, Dockerfiles and signed provenance; one in the
environment would be handed to the setup code of every package that is built.
"""

from __future__ import annotations

import re
import urllib.parse

# These mean a secret anywhere in a name, also as the end of a longer word: APIKEY, DBPASSWORD.
_SECRET_WORD = re.compile(
    r"(?:TOKEN|PASSWORD|PASSWD|PASSPHRASE|SECRET|KEY|CREDENTIAL|WEBHOOK)S?[0-9]*\Z"
    r"|\A(?:PASSWORD|PASSPHRASE|SECRET)"
)
# These are short or have other meanings: only as the last word of several.
_LAST_WORD = re.compile(
    r"(?:PAT|PASS|PW|PWD|AUTH|BASICAUTH|CREDS?|COOKIES?|JWT|BEARER|SAS|DSN|PSK|NETRC)[0-9]*\Z"
)
_LAST_WORDS = (("CONNECTION", "STRING"), ("CONN", "STR"), ("ACCESS", "SIGNATURE"))
# MY_KEY_FILE holds where a key lies, not the key.
_POINTS = frozenset(("FILE", "PATH", "DIR", "FOLDER", "NAME", "URL", "ENV", "SOCK", "SOCKET"))
# What is secret although its name ends as a place does.
_ALWAYS = frozenset(("SLACK_WEBHOOK_URL", "DISCORD_WEBHOOK_URL"))


def is_secret_name(name: str) -> bool:
    """Whether a variable's name says that its value is nobody else's business."""
    upper = name.upper()
    words = [word for word in re.split(r"[_.-]+", upper) if word]
    # GH_PAT_2 is the second of its kind.
    while len(words) > 1 and words[-1].isdigit():
        words.pop()
    if not words or (words[-1] in _POINTS and upper not in _ALWAYS):
        return False
    if any(_SECRET_WORD.search(word) for word in words):
        return True
    several = len(words) > 1
    # OLDPWD is one word, and PWD alone is where the shell stands.
    return several and (
        _LAST_WORD.fullmatch(words[-1]) is not None or tuple(words[-2:]) in _LAST_WORDS
    )


# user:password@ in any address; any name at all before @ where only a token is ever put there.
_CREDENTIALS = re.compile(r"://[^\s/?#@:]*:[^\s/?#@$]+@|https?://[^\s/?#@$]+@", re.IGNORECASE)
# How services begin what they issue, as in the rules of gitleaks:
# https://github.com/gitleaks/gitleaks/blob/master/config/gitleaks.toml
_ISSUED = re.compile(
    r"(?<![A-Za-z0-9])(?:gh[pousr]_[A-Za-z0-9]{20,255}|github_pat_\w{20,255}|glpat-[\w-]{15,255}"
    r"|hf_[A-Za-z]{20,255}|pypi-[\w-]{40,1000}|xox[abeoprs]-[\w-]{10,255}|npm_[A-Za-z0-9]{30,255}"
    r"|(?:AKIA|ASIA)[0-9A-Z]{16}(?![0-9A-Z])|eyJ[\w-]{10,4000}\.eyJ[\w-]{10,4000}\.[\w-]*)"
    r"|-----BEGIN [A-Z ]{0,40}PRIVATE KEY"
)


def holds_secret(text: str) -> bool:
    """Whether a text holds a password in an address, or what a service issued as a secret."""
    if _CREDENTIALS.search(text) or _ISSUED.search(text):
        return True
    return "://" in text and any(_signed(word) for word in text.split() if "://" in word)


def _signed(address: str) -> bool:
    """Whether an address has a token among its parameters, or in its path as conda's have."""
    try:
        parts = urllib.parse.urlsplit(address)
    except ValueError:
        return False
    if re.search(r"/t/[\w-]{10,}(?:/|\Z)", parts.path):
        return True
    query = urllib.parse.parse_qsl(parts.query)
    return any(
        is_secret_name(name) or name.lower() in ("sig", "signature", "x-amz-signature")
        for name, value in query
        if not value.startswith("$")
    )

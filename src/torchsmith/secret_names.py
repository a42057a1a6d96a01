"""What is a secret: variables by their names, values by their form.

A secret in a recipe would stand in plans, scripts, Dockerfiles and signed provenance; one in the
environment would be handed to the setup code of every package that is built.
"""

from __future__ import annotations

import re
import urllib.parse
from collections.abc import Iterator

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
# Whole names: GitLab's jobs find logins of registries in the first.
_WHOLE = frozenset(
    ("DOCKER_AUTH_CONFIG", "AUTHORIZATION", "PGPASS", "SSHPASS", "BEARER", "COOKIE", "JWT")
)


def is_secret_name(name: str) -> bool:
    """Whether a variable's name says that its value is nobody else's business."""
    upper = name.upper()
    words = [word for word in re.split(r"[_.-]+", upper) if word]
    # GH_PAT_2 is the second of its kind.
    while len(words) > 1 and words[-1].isdigit():
        words.pop()
    if not words or (words[-1] in _POINTS and upper not in _ALWAYS):
        return False
    if upper in _WHOLE or any(_SECRET_WORD.search(word) for word in words):
        return True
    several = len(words) > 1
    # OLDPWD is one word, and PWD alone is where the shell stands.
    return several and (
        _LAST_WORD.fullmatch(words[-1]) is not None or tuple(words[-2:]) in _LAST_WORDS
    )


# user:password@ in any address; any name at all before @ where only a token is ever put there.
_CREDENTIALS = re.compile(r"://[^\s/?#@:]*:[^\s/?#@$]+@|https?://[^\s/?#@$]+@", re.IGNORECASE)
# How services begin what they issue, as in the rules of gitleaks and a few that it lacks
# (https://github.com/gitleaks/gitleaks/blob/master/config/gitleaks.toml); so many characters
# follow these at least.
_BEGINNINGS = {
    10: "xoxa- xoxb- xoxe- xoxo- xoxp- xoxr- xoxs- xapp-",
    15: "glpat- gldt- glft- glrt- glptt- glagent- gloas- glcbt- glffct- glimt- glsoat- GR1348941",
    16: "AKIA ASIA ABIA ACCA LTAI AIza ya29. tk-us- duffel_ EZAK EZTK xkeysib- sm_aat_ sm_pat_",
    20: (
        "ghp_ gho_ ghu_ ghs_ ghr_ github_pat_ hf_ api_org_ npm_ pypi- dckr_pat_ nvapi- glc_ glsa_ "
        "sk- sk_live_ sk_test_ sk_prod_ rk_live_ rk_test_ rk_prod_ shpat_ shpca_ shppa_ shpss_ "
        "sgp_ sq0atp- sntryu_ sntrys_ sm_sat_ EAAA EAAC EAAM NRAK- NRII- NRJS- sha256~ gsk_ bkua_"
    ),
    24: (
        "hvs. hvb. dp.pt. dt0c01. SG. fio-u- lin_api_ ntn_ pul- PMAK- pnu_ pplx- rdme_ rubygems_ "
        "shippo_ ico- pscale_tkn_ pscale_oauth_ pscale_pw_ CLOJARS_ tfp_ ATATT3 ops_eyJ A3- fo1_ "
        "AGE-SECRET-KEY-1 HRKU-AA FLWSECK fm2_ wandb_v1_ r8_ tskey- dnkey- lsv2_ figd_ xai- "
        "whsec_ eyJhbGciOi eyJ0eXAiOi eyJraWQiOi"
    ),
    30: (
        "dop_v1_ doo_v1_ dor_v1_ dapi ABSK AKCp cmVmd p8e- dp.st.dev. dp.st.stg. dp.st.prd. ATBB "
        "AKID CCIPAT_ pfx_ sb_secret_ sq0csp-"
    ),
    36: "csk- gAAAAAB jina_ pcsk_ sbp_ sqa_ sqp_ squ_",
}
_TOKEN = re.compile(rb"[\w-]{8,8192}(?:\.[\w-]{1,8192}){0,4}")
# A name in a program (hf_hub_download_to_folder) begins like that too: it has neither of these.
_RANDOM = re.compile(rb"[A-Za-z0-9]{16}|[0-9][\w.-]{0,80}[A-Za-z]|[A-Za-z][\w.-]{0,80}[0-9]")
_STARTS = tuple(
    (start.encode(), least) for least, starts in _BEGINNINGS.items() for start in starts.split()
)
_PLAIN = re.compile(rb"[A-Za-z0-9_-]")
# Before a secret these are no part of a longer word: a colour, `\n`, `\u001b`, `%3D`.
_ESCAPE = re.compile(
    rb"(?:\x1b\[[0-9;]{0,12}m|\\(?:[nrt]|x[0-9a-fA-F]{2}|u[0-9a-fA-F]{4}(?:\[[0-9;]{0,8}m)?)"
    rb"|%[0-9A-F]{2})\Z"
)
# What those beginnings do not tell: tokens of letters alone, and a private key.
_ISSUED = re.compile(
    r"(?<![A-Za-z0-9])(?:hf_[A-Za-z]{20,255}|(?:AKIA|ASIA)[0-9A-Z]{16}(?![0-9A-Z])"
    r"|eyJ[\w-]{10,4000}\.eyJ[\w-]{10,4000}\.[\w-]*)"
    r"|-----BEGIN [A-Z ]{0,40}PRIVATE KEY"
)


# A variable or header that gets a value where it stands: not $FROM_ELSEWHERE, no file, no number.
_GIVEN = re.compile(
    r"(?<![\w.$-])([A-Z_][A-Z0-9_]{2,60})=[\"']?(?![$<*{%~./@]|\d+\b)[^\s;&|\"'$(){}]{12,}"
    r"|(?i:authorization:\s{0,3}(?:bearer|basic|token)\s{1,3})([\w.~+/=-]{12,})"
)


def issued_secrets(content: bytes) -> Iterator[tuple[int, int]]:
    """Where what services issued as secrets stands in a text, known by how it begins."""
    for start, least in _STARTS:
        at = content.find(start)
        while at != -1:
            end = at + len(start)
            joined = at and _PLAIN.match(content, at - 1)
            if not joined or _ESCAPE.search(content, max(0, at - 14), at):
                found = _TOKEN.match(content, end)
                if found is not None and len(found[0]) >= least and _RANDOM.search(found[0]):
                    end = found.end()
                    yield at, end
            at = content.find(start, end)


def holds_secret(text: str) -> bool:
    """Whether a text holds a password in an address, or what a service issued as a secret."""
    if _CREDENTIALS.search(text) or _ISSUED.search(text):
        return True
    if any(issued_secrets(text.encode(errors="surrogateescape"))):
        return True
    if any(found[2] or is_secret_name(found[1]) for found in _GIVEN.finditer(text)):
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
    query = urllib.parse.parse_qsl(parts.query) + urllib.parse.parse_qsl(parts.fragment)
    return any(
        is_secret_name(name) or name.lower() in ("sig", "signature", "x-amz-signature")
        for name, value in query
        if not value.startswith("$")
    )

"""Taking secrets out of lines of a log that somebody else will read.

The engine takes out the values it knows. A log from elsewhere holds others: they are known by
the words before them and by their form.
"""

from __future__ import annotations

import re

MASK = "***"
_NAMES = r"[\w-]*(?:TOKEN|PASSWORD|PASSWD|SECRET|API_?KEY|ACCESS_?KEY|PRIVATE_?KEY|CREDENTIALS?)"
_SECRETS = (
    # https://user:token@host/
    (re.compile(r"(?<=://)[^\s/@:]+(?::[^\s/@]*)?@(?=[\w.-])"), f"{MASK}@"),
    # TOKEN=…, --password …, "api_key": "…"
    (
        re.compile(rf"(?i)\b({_NAMES}\"?'?\s*[=:]\s*)(\"[^\"]*\"|'[^']*'|[^\s,;&\"']+)"),
        rf"\1{MASK}",
    ),
    (re.compile(rf"(?i)(--{_NAMES}\s+)(?!-)\S+"), rf"\1{MASK}"),
    (re.compile(r"(?i)\b((?:authorization:\s*)?(?:bearer|basic)\s+)[\w.~+/=-]{8,}"), rf"\1{MASK}"),
    # Signed addresses.
    (re.compile(r"(?i)([?&](?:\w*token|sig|signature|x-amz-[\w-]+|key)=)[^&\s\"']+"), rf"\1{MASK}"),
    # Conda channels carry a token in the path.
    (re.compile(r"(/t/)[\w-]{10,}(?=/)"), rf"\1{MASK}"),
    (
        re.compile(
            r"\b(?:gh[pousr]_\w{20,}|github_pat_\w{20,}|glpat-[\w-]{15,}|hf_\w{20,}|pypi-[\w-]{20,}"
            r"|xox[abprs]-[\w-]{10,}|sk-[\w-]{20,}|(?:AKIA|ASIA)[0-9A-Z]{16}"
            r"|eyJ[\w-]{10,}\.[\w-]{10,}\.[\w-]*)"
        ),
        MASK,
    ),
)


def redacted(text: str) -> str:
    """The same line without what looks like a secret."""
    for expression, replacement in _SECRETS:
        text = expression.sub(replacement, text)
    return text

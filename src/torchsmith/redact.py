"""Taking secrets out of text that is kept or shown: logs, the journal, reports, messages.

A `Redactor` takes out values that are known. `cleaned` knows secrets by their form: by the word
before them (`password=…`), by the command they belong to (`sshpass -p …`), or by how the service
that issues them begins them (`ghp_…`): `secret_names` has those.

The time it takes grows with the length of the text, whatever the text: a rule is tried only where
its key stands, and every expression is bounded or stops where the next key could begin.
"""

from __future__ import annotations

import base64
import json
import re
import urllib.parse
from collections.abc import Iterable, Iterator

from torchsmith.secret_names import issued_secrets

MASK = "***"
_MASK = MASK.encode()
# A key block that does not end is not waited for beyond this.
LONGEST_KEY_BLOCK = 1 << 15

# ------------------------------------------------------------------------ by the word before

# These are secret however short their value is.
_PASSWORDS = (b"password", b"passwd", b"passphrase", b"mysql_pwd", b"_pass", b"secret", b"_auth")
# A value of these has eight characters at least: `token: 5` is no secret.
_TOKENS = (
    *(b"token", b"api_key", b"apikey", b"api-key", b"access_key", b"accesskey", b"access-key"),
    *(b"account_key", b"accountkey", b"private_key", b"private-key", b"privatekey", b"auth_key"),
    *(
        b"secret_key_base",
        b"kaggle_key",
        b"secret_key",
        b"secretkey",
        b"secret-key",
        b"encryption_key",
        b"accesssignature",
    ),
    *(b"credential", b"credentials", b"_pat", b"sharedaccesskey", b"signing_key", b"deploy_key"),
    *(b"connection_string", b"connectionstring", b"webhook_url", b"_authtoken", b"key-data"),
)
# `$TOKEN`, `<token>`, `{{ token }}`: whoever reads it needs these, and they are no secrets.
_VALUE = (
    rb"""(?![\\"']{0,4}(?:\$|\*\*\*|<|\{\{|%))"""
    rb"""(?P<secret>"[^"\n]{0,4096}"|'[^'\n]{0,4096}'|\\{0,3}["']?[^\s,;&"'\\]{1,8192})"""
)
_ASSIGNED = re.compile(rb"""\\{0,3}["']?[ \t]{0,3}(?:=>|:=|[=:])[ \t]{0,3}""" + _VALUE)
_ARGUMENT = re.compile(rb"[ \t]{1,3}(?!-)" + _VALUE)
_FLAG = re.compile(rb"--[\w-]{0,40}\Z")
_HARMLESS = re.compile(
    rb"""[\\"']{0,4}(?:\$|\*\*\*|<|\{\{|%|(?:None|null|true|false|yes|no|unset|env)?[\\"']{0,4}\Z)""",
    re.IGNORECASE,
)

# --------------------------------------------------------------------- by command or by place


def _rule(key: str, expression: str) -> tuple[bytes, re.Pattern[bytes]]:
    return key.encode(), re.compile(expression.encode(), re.IGNORECASE)


_PLACES = (
    # https://user:token@host/
    _rule("://", r"""://(?P<secret>[^\s/"'<>]{1,1024})@(?=[\w.\[])"""),
    _rule("bearer ", r"bearer[ \t]{1,3}(?P<secret>[\w.~+/=-]{8,8192})"),
    _rule("basic ", r"basic[ \t]{1,3}(?P<secret>[\w.~+/=-]{8,8192})"),
    _rule("authorization:", r"authorization:[ \t]{0,3}(?P<secret>[^\s\"']{8,8192})(?![ \t]\w)"),
    _rule("authorization: token", r"authorization: token[ \t]{1,3}(?P<secret>[^\s\"']{8,8192})"),
    _rule("cookie:", r"cookie:[ \t]{0,3}(?P<secret>[^\r\n\"']{4,8192})"),
    _rule("sessionid=", r"sessionid=(?P<secret>[^\s;\"']{8,8192})"),
    _rule("_session=", r"_session=(?P<secret>[^\s;\"']{16,8192})"),
    _rule(
        "curl",
        r"curl\b[^\n]{0,300}?\s(?:-u|--user)[= ]?[\"']?[^\s:\"']{1,200}:"
        r"(?P<secret>[^\s\"']{1,1024})",
    ),
    _rule("sshpass", r"sshpass[ \t]{1,3}-p[ \t]{0,3}(?P<secret>[^\s-]\S{0,1024})"),
    _rule("login", r"login\b[^\n]{0,300}?\s-p[= \t]{0,2}(?P<secret>[^\s-]\S{0,1024})"),
    _rule("twine ", r"twine[ \t][^\n]{0,300}?\s-p[= \t]{0,2}(?P<secret>[^\s-]\S{0,1024})"),
    _rule(
        "wandb login", r"wandb login[ \t]{1,3}(?:--\S{1,80}[ \t]{1,3}){0,4}(?P<secret>\w{20,200})"
    ),
    _rule("-stdin", r"-stdin\b[ \t]{0,3}<<<[ \t]{0,3}(?P<secret>\S{1,1024})"),
    _rule(
        "echo ",
        r"echo (?:-n )?(?P<secret>[^\s|$]{4,1024})[ \t]{0,3}\|[^|\n]{0,200}?"
        r"(?:\blogin\b|\bsudo\b[^|\n]{0,40}?\s-S\b|\bchpasswd\b)",
    ),
    _rule(
        "htpasswd",
        r"htpasswd\b[^\n]{0,60}?\s-\w{0,4}b\w{0,4}(?:\s+[^\s-]\S{0,200}){2}\s+(?P<secret>\S{1,1024})",
    ),
    _rule("ssh-keygen", r"ssh-keygen\b[^\n]{0,200}?\s-[NP][ \t]{1,3}(?P<secret>[^\s-]\S{0,1024})"),
    _rule(
        '"username"',
        r"\"username\"[ \t]{0,3}:[ \t]{0,3}\"[^\"\n]{1,200}\"[ \t]{0,3},[ \t]{0,3}"
        r"\"key\"[ \t]{0,3}:[ \t]{0,3}\"(?P<secret>[^\"\n]{8,1024})",
    ),
    _rule("creds", r"--(?:src-|dest-)?creds[= ](?P<secret>\S{3,1024})"),
    _rule("creds", r"creds[= ](?P<secret>[^\s:]{1,200}:\S{1,1024})"),
    _rule("aws_secret_access_key ", r"aws_secret_access_key[ \t]{1,3}(?P<secret>[^\s=:]{16,200})"),
    _rule("login ", r"login [^\s]{1,100}[ \t]{1,3}password[ \t]{1,3}(?P<secret>\S{1,1024})"),
    _rule("mysql", r"mysql\w{0,10}\b[^\n]{0,300}?\s-p(?P<secret>[^\s-]\S{0,1024})"),
    _rule("sudo ", r"sudo [^\n|]{0,80}?<<<[ \t]{0,3}[\"']?(?P<secret>[^\s\"'$]{1,1024})"),
    _rule("set ", r"set [ \t]{0,3}(?:\w{1,40}[_.])?token[ \t]{1,3}(?P<secret>[^\s$<]{8,1024})"),
    _rule(" pass", r" pass[ \t]{0,3}[=:][ \t]{0,3}(?P<secret>(?!\d+\b)[^\s\"'$]{6,1024})"),
    _rule(
        "password is", r"password is:?[ \t]{1,3}[\"'`]?(?P<secret>(?=\S{0,80}\d)[^\s\"'`]{6,200})"
    ),
    _rule(
        "_api_key ",
        r"_api_key[ \t]{1,3}(?P<secret>(?=\S{0,80}\d)(?=\S{0,80}[A-Za-z])[\w./+=-]{16,1024})",
    ),
    _rule("-api:", r"-api:[ \t]{0,3}(?P<secret>[^\s\"'$]{8,8192})"),
    # Telegram's bots, and Google's tokens to renew others with.
    _rule(":aa", r":(?P<secret>AA[\w-]{30,60})(?![\w-])"),
    _rule("1//0", r"1//0(?P<secret>[\w-]{30,400})"),
    _rule("pass:", r"pass:(?P<secret>[^\s\"']{1,1024})"),
    _rule("pwd=", r"(?<=[;&?])pwd=(?P<secret>[^\s;&\"']{1,1024})"),
    _rule("<pass", r"<pass(?:word|phrase|wd)>(?P<secret>[^<\n]{1,1024})</"),
    _rule("anaconda ", r"anaconda\b[^\n]{0,300}?\s-t[= \t]{0,2}(?P<secret>[^\s-]\S{7,1024})"),
    _rule(
        "vault login ", r"vault login (?:-\S{1,80}[ \t]{1,3}){0,4}(?P<secret>[^\s=-][^\s=]{7,1024})"
    ),
    _rule("-with-token", r"-with-token[ \t]{0,3}<<<[ \t]{0,3}(?P<secret>\S{1,1024})"),
    _rule("chpasswd", r"chpasswd[ \t]{0,3}<<<[ \t]{0,3}[\"']?[^\s:]{1,80}:(?P<secret>\S{1,1024})"),
    _rule("zip ", r"zip\b[^\n]{0,300}?\s(?-i:-P)[ \t]{0,2}(?P<secret>[^\s-]\S{0,1024})"),
    _rule("ldap", r"ldap\w{3,10}\b[^\n]{0,300}?\s-w[ \t]{0,2}(?P<secret>[^\s-]\S{0,1024})"),
    _rule(
        "smbclient ", r"smbclient [^\n]{0,200}?\s?-U[ \t]{0,2}[^\s%]{1,100}%(?P<secret>\S{1,1024})"
    ),
    _rule("sonar.login=", r"sonar\.login=(?P<secret>[^\s\"']{8,1024})"),
    _rule("redis-cli", r"redis-cli\b[^\n]{0,200}?\s-a[ \t]{1,3}(?P<secret>\S{1,1024})"),
    # Signed addresses, and channels of conda that carry a token.
    _rule("sig=", r"(?<=[?&])sig=(?P<secret>[^&\s\"']{4,8192})"),
    _rule("signature=", r"signature=(?P<secret>[^&\s\"']{4,8192})"),
    _rule("x-amz-", r"x-amz-(?:signature|credential|security-token)=(?P<secret>[^&\s\"']{4,8192})"),
    _rule("key=", r"(?<=[?&])key=(?P<secret>[^&\s\"']{8,8192})"),
    _rule("/t/", r"/t/(?P<secret>[\w-]{10,200})(?=/)"),
    _rule("hooks.slack.com/", r"hooks\.slack\.com/(?P<secret>[\w/+-]{8,400})"),
    _rule("/api/webhooks/", r"/api/webhooks/(?P<secret>[\w/-]{8,400})"),
    _rule("webhook.office.com/", r"webhook\.office\.com/(?P<secret>[^\s\"']{8,600})"),
    _rule("/bot", r"/bot(?P<secret>\d{5,16}:[\w-]{30,60})"),
)
_KEYS = (
    # A private key, in lines or with `\n` between them; the second is one cut off.
    _rule(
        "-----begin",
        rf"-----begin[ A-Z0-9]{{0,60}}private key(?: block)?-----"
        rf"(?P<secret>(?:[^-]|-(?!----)){{1,{LONGEST_KEY_BLOCK}}})-----end",
    ),
    _rule(
        "-----begin",
        r"-----begin[ A-Z0-9]{0,60}private key(?: block)?-----"
        r"(?P<secret>(?:(?:\s|\\[nr]){0,4}[A-Za-z0-9+/=]{16,128}){1,600})",
    ),
)

# ------------------------------------------------------------------------ by how they begin

_JWT = re.compile(rb"(?<![\w-])eyJ[\w-]{10,4096}\.[\w-]{10,8192}\.?[\w-]{0,4096}")
# A line of a key in base64, without the line that says so: mixed, so that no hash is one.
_KEY_LINE = re.compile(
    rb"(?m)^[ \t]*(?=[^\n]{0,80}[A-Z])(?=[^\n]{0,80}[a-z])(?=[^\n]{0,80}[0-9])(?=[^\n]{0,80}[+/])"
    rb"(?P<secret>[A-Za-z0-9+/]{64}(?:[A-Za-z0-9+/]{6,12})?={0,2})[ \t]*\r?$"
)
_KEY_BEGIN = re.compile(rb"-----BEGIN[ A-Z0-9]{0,60}PRIVATE KEY(?: BLOCK)?-----")


def _by_word(content: bytes, lower: bytes) -> Iterator[tuple[int, int]]:
    for words, least in ((_PASSWORDS, 1), (_TOKENS, 8)):
        for word in words:
            at = lower.find(word)
            while at != -1:
                end = at + len(word)
                found = _ASSIGNED.match(content, end)
                if found is None and _FLAG.search(content, max(0, at - 44), at):
                    found = _ARGUMENT.match(content, end)
                value = found["secret"] if found is not None else b""
                if (
                    found is not None
                    and len(value.strip(b"\\\"'")) >= least
                    and not _HARMLESS.match(value)
                ):
                    yield found.span("secret")
                    end = found.end("secret")
                at = lower.find(word, end)


def _by_place(
    content: bytes, lower: bytes, rules: Iterable[tuple[bytes, re.Pattern[bytes]]]
) -> Iterator[tuple[int, int]]:
    for key, expression in rules:
        at = lower.find(key)
        while at != -1:
            found = expression.match(content, at)
            if found is not None and not _HARMLESS.match(found["secret"]):
                yield found.span("secret")
            at = lower.find(key, found.end("secret") if found is not None else at + len(key))


def _by_beginning(content: bytes) -> Iterator[tuple[int, int]]:
    yield from issued_secrets(content)
    if b"eyJ" in content:
        yield from (found.span() for found in _JWT.finditer(content))
    yield from (found.span("secret") for found in _KEY_LINE.finditer(content))


def cleaned(content: bytes) -> bytes:
    """The same bytes without what looks like a secret."""
    lower = content.lower()
    places = _by_place(content, lower, (*_PLACES, *_KEYS))
    return _masked(content, {*_by_word(content, lower), *places, *_by_beginning(content)})


def without_keys(content: bytes) -> bytes:
    """The same lines, those of private keys masked: for who looks at each line by itself."""
    if b"PRIVATE KEY" not in content:
        return content
    return _masked(content, _by_place(content, content.lower(), _KEYS), line_by_line=True)


def _masked(
    content: bytes, found: Iterable[tuple[int, int]], *, line_by_line: bool = False
) -> bytes:
    # Two rules may see one secret: the one that sees more of it first.
    spans = sorted(found, key=lambda span: (span[0], -span[1]))
    if not spans:
        return content
    parts: list[bytes] = []
    done = 0
    for start, end in spans:
        if end <= done:
            continue
        if start >= done:
            ends = content.count(b"\n", start, end) if line_by_line else 0
            parts += (content[done:start], _MASK, (b"\n" + _MASK) * ends)
        done = end
    return b"".join([*parts, content[done:]])


def redacted(text: str) -> str:
    """The same text without what looks like a secret."""
    return cleaned(text.encode(errors="surrogateescape")).decode(errors="surrogateescape")


def redacted_lines(lines: Iterable[str]) -> Iterator[str]:
    """Lines as they come, without what looks like a secret; a private key's are left out."""
    in_key = False
    for line in lines:
        if in_key:
            in_key = "-----END" not in line
            continue
        in_key = open_key_block(line.encode(errors="surrogateescape")) != -1
        yield redacted(line)


def open_key_block(content: bytes) -> int:
    """Where a private key begins that has not ended yet; -1 if there is none."""
    at = content.rfind(b"PRIVATE KEY")
    begin = content.rfind(b"-----BEGIN")
    if begin == -1 or at < begin or b"-----END" in content[begin:]:
        return -1
    found = _KEY_BEGIN.match(content, begin)
    return begin if found is not None and len(content) - begin < LONGEST_KEY_BLOCK else -1


_LONGEST_LINE = 1 << 16


def _disguises(value: str) -> Iterator[str]:
    """A value in the forms programs print it in: plain, in a URL, in JSON, in a header."""
    yield value
    # A key with several lines is also printed one line at a time.
    yield from (line for line in value.splitlines() if len(line) >= 8)
    yield urllib.parse.quote(value, safe="")
    yield urllib.parse.quote(value)
    yield urllib.parse.quote_plus(value)
    yield json.dumps(value)[1:-1]
    if len(value) >= 4:
        yield base64.b64encode(value.encode(errors="surrogateescape")).decode()


class Redactor:
    """Takes secret values out of text, wherever in it they stand."""

    def __init__(self, values: Iterable[str]) -> None:
        forms = {form for value in values if value for form in _disguises(value)}
        # Longest first: a secret that contains another must not leave its own rest behind.
        self._forms = sorted(
            (form.encode(errors="surrogateescape") for form in forms), key=len, reverse=True
        )
        self.longest = len(self._forms[0]) if self._forms else 0
        self.several_lines = any(b"\n" in form or b"\r" in form for form in self._forms)

    def clean(self, content: bytes) -> bytes:
        """The same bytes without any secret."""
        for form in self._forms:
            content = content.replace(form, _MASK)
        return cleaned(content)

    def uncut(self, content: bytes, end: int) -> int:
        """The last place not after `end` where no secret is cut in two."""
        moved = True
        while moved:
            moved = False
            for form in self._forms:
                start = content.find(form, max(end - len(form) + 1, 0), end + len(form) - 1)
                if start != -1 and start < end:
                    end, moved = start, True
        return end

    def text(self, content: str) -> str:
        """The same text without any secret."""
        return self.clean(content.encode(errors="surrogateescape")).decode(errors="replace")


class LineReader:
    """Cuts a stream into clean lines; a secret split over two reads is found all the same."""

    def __init__(self, redactor: Redactor) -> None:
        self._redactor = redactor
        self._rest = b""

    def feed(self, chunk: bytes) -> bytes:
        """Take what was read, return what may be kept: whole lines."""
        pending = self._rest + chunk
        # What may be the beginning of a secret that has not come whole stays back.
        whole = max(len(pending) - self._redactor.longest, 0)
        if self._redactor.several_lines:
            end = self._redactor.uncut(pending, pending.rfind(b"\n", 0, whole) + 1)
        else:
            end = max(pending.rfind(b"\n"), pending.rfind(b"\r")) + 1
        if end == 0 and whole > _LONGEST_LINE:
            # Between two words, so that a secret known by its form is not cut either.
            end = self._redactor.uncut(pending, pending.rfind(b" ", 0, whole) + 1 or whole)
        # A private key comes in lines, none of which says what it is.
        if (key := open_key_block(pending[:end])) != -1:
            end = key
        ready, self._rest = pending[:end], pending[end:]
        return self._redactor.clean(ready)

    def finish(self) -> bytes:
        """What is left at the end of the stream."""
        ready, self._rest = self._rest, b""
        return self._redactor.clean(ready)

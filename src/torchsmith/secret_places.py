"""Where in a text a secret stands: after a word, after an option of a command, in an address.

Each rule is tried only where its key stands, and looks at a bounded piece of text from there.
Two rules may see one secret; the order of the tables does not matter.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator

from torchsmith.secret_names import is_secret_name

Spans = Iterator[tuple[int, int]]

# A key block that does not end is not waited for beyond this.
LONGEST_KEY_BLOCK = 1 << 15
# So much of a command is looked at for its options.
_LONGEST_COMMAND = 500

# `$TOKEN`, `<token>`, `{{ token }}`: whoever reads it needs these, and they are no secrets.
_REFERENCE = rb"(?:\$[A-Za-z_{(]|\*\*\*|<%|<[\w .:-]{1,60}>|\{\{|%[\w-]{1,60}%|%[({s])"
_HARMLESS = re.compile(
    rb"[\\\"'`]{0,4}(?:(?-i:[A-Z]+(?:_[A-Z]+)+)|None|null|nil|true|false|yes|no|unset|env"
    rb"|string|str)?[\\\"'`]{0,4}\Z|[\\\"']{0,4}" + _REFERENCE,
    re.IGNORECASE,
)

# ------------------------------------------------------------------------ by the word before

# What people write in sentences, too.
_PASSWORDS = (b"password", b"passwd", b"passphrase", b"passcode", b"passwort")
# These are secret however short their value is.
_SECRETS = (
    *(b"mysql_pwd", b"_pass", b"secret", b"_auth", b"keypass", b"storepass"),
    *(b"pass_phrase", b"mot de passe", b"requirepass"),
)
# A value of these has eight characters at least: `token: 5` is no secret.
_TOKENS = (
    *(b"token", b"api_key", b"apikey", b"api-key", b"api key", b"access_key", b"accesskey"),
    *(b"access-key", b"access key", b"account_key", b"accountkey", b"account-key", b"auth_key"),
    *(b"auth-key", b"authkey", b"private_key", b"private-key", b"privatekey", b"secret_key"),
    *(b"secretkey", b"secret-key", b"secret key", b"secret_key_base", b"encryption_key"),
    *(b"signing_key", b"deploy_key", b"kaggle_key", b"sharedaccesskey", b"presharedkey"),
    *(b"subscription-key", b"functions-key", b"activationkey", b"unseal key 1", b"key-data"),
    *(b"accesssignature", b"credential", b"credentials", b"connection_string"),
    *(b"connectionstring", b"webhook_url", b"_authtoken", b"_pat", b"bw_session", b"jwt"),
    *(b"dockerconfigjson", b"tls.key", b"wandb-key", b"wandb_key"),
)
_COLOUR = rb"(?:\x1b\[[0-9;]{0,12}m)?"
_VALUE = (
    rb"(?![\\\"']{0,4}" + _REFERENCE + rb"|[{\[]\s?[\"'{])(?:Some\()?(?P<secret>"
    rb"\"{3}[^\"]{1,4096}\"{3}|'{3}[^']{1,4096}'{3}"
    rb"|[bru$]?\"(?:[^\"\\\n]|\\[^\n]){0,4096}\"|[bru$]?'(?:[^'\\\n]|\\[^\n]){0,4096}'"
    rb"|\xe2\x80\x9c[^\"\n]{1,120}?\xe2\x80\x9d"
    # A comma is part of a value, unless another name follows it.
    rb"|\\{0,3}[\"'`]?(?:[^\s,;&\"'`\\]|,(?![\w.-]{0,60}[=:])(?=[\w.~!@#%^*+/-])|\\[ $&;!()*])"
    rb"{1,8192})"
)
# Between a name and its value: quotes, brackets, colours, a type; the value may be on a new line.
_ASSIGNED = re.compile(
    _COLOUR
    + rb"\\{0,3}(?:[\"'`]|\*\*){0,2}(?:\[?\])?(?::STRING|:UNINITIALIZED|:? &?[Ss]tr(?:ing)?\b)?"
    rb"[ \t]{0,40}"
    rb"(?:\[None\])?(?:=>|->|:=|\?=|=(?!=)|::|:(?!:)|\xef\xbc\x9a|%3D)(?:\*\*)?"
    rb"(?:[ \t]{1,3}[|>][+-]?\r?\n[ \t]{1,40}|[ \t]{0,3}\r?\n[ \t]{0,40}(?=\")|[ \t]{0,40})"
    + _COLOUR
    + _VALUE
)
# `- name: A_TOKEN`, and its value on the next line or further on in this one.
_NAMED = re.compile(
    rb"(?:[\"'][^\n]{0,60}?|[ \t]{0,3}\r?\n[ \t]{0,40})[ \t\"',{]value"
    rb"[\"']?[ \t]{0,3}[:=][ \t]{0,3}" + _VALUE
)
_ARGUMENT = re.compile(rb"(?:[ \t]{1,8}|[\"'],[ \t]{0,3}(?=[\"']))(?!-)" + _VALUE)
# Options and commands that take a name, and its value as the next word.
_TAKES_VALUE = re.compile(
    rb"(?<![\w-])(?:--?[\w.-]{0,40}|/[\w-]{0,20}"
    rb"|(?:ENV|setenv|setx|set(?: -\w{1,3})?|\#define|config(?: set)?)[ \t]{1,3}[\"']?[\w.-]{0,60}"
    rb"|\w{1,40}\([\"'][A-Z0-9_]{1,40})\Z"
)
# In a sentence only what is mixed as passwords are, or quoted: no file, address or symbol.
_TOLD = (
    rb"(?:[ \t]{1,40}(?:(?:is|was|to|for [^\n:]{1,60}|[^\n:\"']{0,30} is):?[ \t]{1,3})?"
    rb"|[ \t]{0,3}(?:[|:]|\xe2\x94\x82)\**[ \t]{1,3})[\"'`(]{0,2}(?P<secret>(?!_Z|0x|[/.<-]|\w{2,9}://)"
)
_PASSWORD_TOLD = re.compile(
    _TOLD + rb"(?=[^\s\"'`]{0,60}\d)(?=[^\s\"'`]{0,60}[A-Za-z])(?![\w./-]{1,100}\.\w{1,4}\b:\d)"
    rb"[^\s\"'`)]{6,200})|[ \t](?P<quoted>\"[^\"\n ]{3,80}\"|'[^'\n ]{3,80}')"
)
_TOKEN_TOLD = re.compile(
    _TOLD + rb"(?=[\w.~+/=-]{0,80}\d)(?=[\w.~+/=-]{0,80}[A-Z])(?=[\w.~+/=-]{0,80}[a-z])"
    rb"[\w.~+/=-]{20,1024}|[0-9a-f]{40}(?![0-9a-f]))"
)
# Variables, which are secret by their names.
_VARIABLE = re.compile(
    rb"(?<![\w$])(?:[A-Z][A-Z0-9]{1,40}(?:_[A-Z0-9]{1,40}){1,8}|SSHPASS)(?=[\"']?[ \t]{0,3}[=:])"
)
# Short words that mean other things, too: their value is mixed, or both are quoted.
_SHORT = re.compile(
    rb"(?:(?<![\w.-])|(?<=\s-)|(?<=\s--))(?:[\"'](?:pass|pwd|pw|psk)[\"'][ \t]{0,3}[:=][ \t]{0,3}"
    rb"(?P<quoted>[\"'][^\"'\n]{1,200})"
    rb"|(?:(?:pass|pwd|pw|psk)[ \t]{0,3}[:=]|(?<=-)pw |(?<=, )pass |(?<=-)pass )[ \t]{0,3}[\"']?"
    rb"(?P<secret>(?=[^\s\"']{0,60}\d)(?=[^\s\"']{0,60}[A-Za-z])(?![.$<-])[^\s\"',;&/]{6,1024})(?!/))"
)
_SHORT_WORDS = (b"pass", b"pwd", b"pw", b"psk")


def _after(word: bytes, least: int, content: bytes, at: int) -> re.Match[bytes] | None:
    """The value that a word at this place is said to have."""
    end = at + len(word)
    found = _ASSIGNED.match(content, end) or _NAMED.match(content, end)
    if found is None:
        found = _ARGUMENT.match(content, end)
        if found is not None and not _TAKES_VALUE.search(content, max(0, at - 110), at):
            found = None
    if found is not None and len(found["secret"].strip(b"\\\"'")) >= least:
        return found
    if word in _PASSWORDS:
        return _PASSWORD_TOLD.match(content, end)
    return _TOKEN_TOLD.match(content, end) if least > 1 else None


def after_words(content: bytes, lower: bytes) -> Spans:
    """What stands after a word that announces a secret."""
    for words, least in ((_PASSWORDS, 1), (_SECRETS, 1), (_TOKENS, 8)):
        for word in words:
            at = lower.find(word)
            while at != -1:
                found = _after(word, least, content, at)
                at += len(word)
                if found is not None:
                    yield from _span(found)
                    at = max(at, found.end())
                at = lower.find(word, at)
    done = 0
    for variable in _VARIABLE.finditer(content):
        if variable.start() < done or not is_secret_name(variable[0].decode()):
            continue
        found = _ASSIGNED.match(content, variable.end())
        if found is None:
            continue
        done = found.end()
        value = found["secret"].strip(b"\\\"'")
        # A path is where a key lies.
        if len(value) >= 8 and not value.startswith((b"/", b"./", b"~")):
            yield from _span(found)
    for word in _SHORT_WORDS:
        at = lower.find(word)
        while at != -1:
            found = _SHORT.match(content, at - 1 if content[at - 1 : at] in (b'"', b"'") else at)
            if found is not None:
                yield from _span(found)
            at = lower.find(word, at + len(word))


def _span(found: re.Match[bytes]) -> Spans:
    group = "quoted" if found["secret"] is None else "secret"
    if not _HARMLESS.match(found[group]):
        yield found.span(group)


# -------------------------------------------------------------------- by the option of a command

# Between an option and its value; programs also print their arguments as lists.
_TO = r"(?:[ \t=]{1,3}|[\"'],[ \t]?)"
_USER = rf"{_TO}[\"']?[^\s:\"']{{0,200}}:"
# Commands, and what stands before a secret among their arguments.
_OPTIONS = (
    ("openssl", rf"-[kK]{_TO}"),
    ("7z", "-p"),
    ("rar|unrar", "-h?p"),
    ("zip|unzip", rf"-P{_TO}?"),
    ("sshpass|login|twine", rf"-p{_TO}?"),
    ("uv publish|hatch publish", rf"-[pta]{_TO}"),
    ("conan user|conan remote|ncftp|useradd|security", rf"-p{_TO}"),
    ("anaconda|doctl|codecov", rf"-t{_TO}(?=\S{{8}})"),
    ("mysql", "-p"),
    ("sqlcmd|ipmitool|p4|mosquitto_pub|mosquitto_sub", rf"-P{_TO}?"),
    ("ldapsearch|ldapmodify|ldapadd|ldapdelete|ldapwhoami|ldappasswd", rf"-w{_TO}?"),
    ("redis-cli", rf"-a{_TO}"),
    ("smbclient", rf"-U{_TO}?[^\s%]{{1,100}}%"),
    ("net use", r"(?:\\\\\S{1,200}[ \t](?!/)|/user:\S{1,100}[ \t])"),
    ("lftp", rf"-u{_TO}[^\s,]{{1,100}},"),
    ("snmp", rf"-[AX]{_TO}"),
    ("plink|pscp|psftp", rf"-pw{_TO}"),
    ("xfreerdp", "/p:"),
    ("signtool", rf"/p{_TO}"),
    ("curl", rf"(?:-\w{{0,6}}[uU]|--(?:proxy-)?user)(?:{_USER}|[^\s:\"'-][^\s:\"']{{0,200}}:)"),
    ("curl", rf"(?:-b|--cookie){_TO}[\"']?[^\s=\"']{{1,80}}="),
    ("http -a", rf"-a{_USER}"),
    ("etcdctl", rf"--user{_USER}"),
    ("elastic", rf"-u{_USER}"),
    ("java", rf"-auth{_USER}"),
    ("dotnet nuget|nuget push", rf"-k{_TO}"),
    ("gh secret", rf"(?:-b|--body){_TO}"),
    ("gitlab-runner", rf"-r{_TO}"),
    ("ssh-keygen", rf"-[NP]{_TO}"),
    ("htpasswd", r"-\w{0,4}b\w{0,4}(?:\s{1,4}[^\s-]\S{0,200}){2}\s{1,4}"),
    ("snyk auth", r"auth[ \t](?=\S{8})"),
    ("vault login", r"login[ \t](?:-\S{1,80}[ \t]){0,4}(?![^\s=]{0,40}=)(?=\S{8})"),
    ("vault operator", r"unseal[ \t](?=\S{8})"),
    ("wandb login", r"login[ \t](?:--\S{1,80}[ \t](?:https?://\S{1,200}[ \t])?){0,4}(?=\w{20})"),
    ("cargo login", r"login[ \t](?=\S{8})"),
    ("ngrok", r"(?:add-)?authtoken[ \t](?=\S{16})"),
    ("pro attach|cloudflared", r"(?:attach|install)[ \t](?=\S{16})"),
    ("rabbitmqctl", r"(?:add_user|change_password)[ \t]\S{1,100}[ \t]"),
    ("mc alias", r"https?://\S{1,200}[ \t]\S{1,200}[ \t]"),
    ("poetry config", r"(?:http-basic\.\S{1,80}[ \t]\S{1,200}|pypi-token\.\S{1,80})[ \t]"),
    ("modal token", rf"--token-id{_TO}"),
)
_COMMANDS = tuple(
    (
        command.encode(),
        re.compile(
            rf"(?<![\w./-]){options}[\"']?(?P<secret>[^\s\"',-][^\s\"']{{0,1023}})".encode()
        ),
    )
    for commands, options in _OPTIONS
    for command in commands.split("|")
)
_PART_OF_A_NAME = re.compile(rb"[\w-]")


def of_commands(content: bytes, lower: bytes) -> Spans:
    """What commands were given as an option or argument that is a secret."""
    for command, options in _COMMANDS:
        at = lower.find(command)
        while at != -1:
            end = at + len(command)
            # -lmysqlclient is no command.
            if not (at and _PART_OF_A_NAME.match(content, at - 1)):
                line = content.find(b"\n", at, at + _LONGEST_COMMAND)
                end = line if line != -1 else at + _LONGEST_COMMAND
                for found in options.finditer(content, at, end):
                    yield from _span(found)
            at = lower.find(command, end)


# ------------------------------------------------------------------------------- by the place


def _rule(key: str, expression: str) -> tuple[bytes, re.Pattern[bytes]]:
    return key.encode(), re.compile(expression.encode(), re.IGNORECASE)


_MIXED = r"(?=[\w+/]{0,80}[A-Z])(?=[\w+/]{0,80}[a-z])(?=[\w+/]{0,80}[0-9])"
_PLACES = (
    # https://user:token@host/, and a password with a slash in it
    _rule("://", r"://(?P<secret>[^\s/\"'<>]{1,1024})@(?=[\w.\[])"),
    _rule("://", r"://[^\s/:@]{1,80}:(?!\d{1,5}/)(?P<secret>[^\s\"'<>@:]{1,200})@(?=[\w.\[])"),
    _rule("proxy=", r"proxy=[^\s/:@]{1,80}:(?P<secret>[^\s\"'<>@/]{1,200})@"),
    _rule(":pserver:", r":pserver:[^\s:@]{1,80}:(?P<secret>[^\s@]{1,200})@"),
    _rule("jdbc:oracle:", r"jdbc:oracle:\w{1,10}:[^\s/]{1,80}/(?P<secret>[^\s@]{1,200})@"),
    _rule("bearer", r"bearer(?:[ \t]{1,3}|%20)(?P<secret>[\w.~+/=-]{8,8192})"),
    _rule("basic ", r"basic[ \t]{1,3}(?P<secret>[\w.~+/=-]{8,8192})"),
    _rule(
        "authorization",
        r"authorization[\"']?[ \t]{0,3}[:=][ \t]{0,3}[\"']?(?:[a-z][\w-]{1,20}(?:[ \t]{1,3}|%20))?"
        r"(?P<secret>(?=[^\s\"']{0,400}\d)[^\r\n\"']{8,8192})",
    ),
    _rule("authorization: token", r"authorization: token[ \t]{1,3}(?P<secret>[^\s\"']{8,8192})"),
    _rule("digest ", r"digest [^\n]{0,600}?response=\"(?P<secret>[0-9a-f]{8,128})"),
    _rule("cookie:", r"(?<![\"'])cookie:[ \t]{0,3}(?P<secret>[^\r\n]{4,8192})"),
    _rule("cookie:", r"(?<=[\"'])cookie:[ \t]{0,3}(?P<secret>[^\r\n\"']{4,8192})"),
    _rule("_session=", r"_session=(?P<secret>(?=[^\s;\"']{0,80}\d)[^\s;\"'(]{16,8192})"),
    _rule(
        "sessionid", r"sessionid[\"']?[ \t]{0,3}[:=][ \t]{0,3}[\"']?(?P<secret>[^\s;\"']{8,8192})"
    ),
    _rule("sessid=", r"sessid=(?P<secret>[^\s;\"']{8,8192})"),
    _rule("-stdin", r"-stdin\b[ \t]{0,3}<<<[ \t]{0,3}(?P<secret>\S{1,1024})"),
    _rule(
        "-stdin", r"-stdin\b[ \t]{0,3}<<-?[ \t]?[\"']?\w{1,20}[\"']?\r?\n(?P<secret>[^\n]{1,1024})"
    ),
    *(
        _rule(
            start,
            start
            + r"[^|\n$]{0,40}?[\"' \t](?P<secret>[^\s|$\"'%][^\s|$\"']{3,1023})[\"']?[ \t]{0,3}\|"
            r"[^\n]{0,200}?(?:\blogin\b|\bsudo\b[^|\n]{0,40}?\s-S\b|\bchpasswd\b|\bsu\b|\bpasswd\b"
            r"|\bkinit\b|passphrase-fd|\bcryptsetup\b|\bsecret create\b|-stdin\b)",
        )
        for start in ("echo", "printf")
    ),
    _rule(
        '"username"',
        r"\"username\"\s{0,3}:\s{0,3}\"[^\"\n]{1,200}\"\s{0,3},\s{0,8}"
        r"\"key\"\s{0,3}:\s{0,3}\"(?P<secret>[^\"\n]{8,1024})",
    ),
    _rule("creds", r"creds[= ](?P<secret>[^\s:]{1,200}:\S{1,1024})"),
    _rule("-creds", r"-creds[= ](?P<secret>\S{3,1024})"),
    _rule(
        '"auth"',
        r"\"auth\"[ \t]{0,3}:[ \t]{0,3}\"(?P<secret>(?-i:[a-z+/]{0,99}[A-Z0-9=])[\w+/=-]{1,8192})",
    ),
    _rule("auth: ", r"auth: (?P<secret>(?-i:" + _MIXED + r")[\w+/]{12,4096}={0,2})(?:\s|\Z)"),
    # A key in base64; a hash is in small letters, and a symbol has underscores.
    _rule(
        "key",
        r"key[\"']?[ \t]{0,3}[=:][ \t]{0,3}[\"']?"
        r"(?P<secret>(?-i:" + _MIXED + r")[A-Za-z0-9+/]{38,90}={0,2})(?![\w.-])",
    ),
    _rule("key-", r"key-(?P<secret>[0-9a-f]{32})(?!\w)"),
    _rule('"d"', r"\"d\"[ \t]{0,3}:[ \t]{0,3}\"(?P<secret>[\w-]{43,600})\""),
    _rule("akia", r"akia[0-9a-z]{16}:(?P<secret>[\w+/=]{30,60})"),
    _rule(":5432:", r":5432:[^\s:]{1,60}:[^\s:]{1,60}:(?P<secret>[^\s:]{1,200})"),
    _rule("munge:", r"munge:(?P<secret>[\w+/=]{20,8192})"),
    _rule("auth=(", r"auth=\([\"'][^\"'\n]{1,200}[\"'],[ \t]?[\"'](?P<secret>[^\"'\n]{1,200})"),
    _rule(
        "creds",
        r"creds[ \t]?=[ \t]?\([\"'][^\"'\n]{1,200}[\"'],[ \t]?[\"'](?P<secret>[^\"'\n]{1,200})",
    ),
    _rule("aws_secret_access_key ", r"aws_secret_access_key[ \t]{1,3}(?P<secret>[^\s=:]{16,200})"),
    _rule("secret_access_key ", r"secret_access_key[ \t]{1,3}(?P<secret>[^\s=:]{16,200})"),
    # .netrc, in one line or several
    _rule(
        "login ",
        r"login [^\s]{1,100}\s{1,8}(?:account \S{1,80}\s{1,8})?password[ \t]{1,3}"
        r"(?P<secret>\S{1,1024})",
    ),
    _rule("sudo ", r"sudo [^\n|]{0,80}?<<<[ \t]{0,3}[\"']?(?P<secret>[^\s\"'$]{1,1024})"),
    _rule(
        "keyring set", r"keyring set [^\n|]{0,80}?<<<[ \t]{0,3}[\"']?(?P<secret>[^\s\"'$]{1,1024})"
    ),
    _rule("set ", r"set [ \t]{0,3}(?:\w{1,40}[_.])?token[ \t]{1,3}(?P<secret>[^\s$<]{8,1024})"),
    _rule("set api-key ", r"set api-key (?P<secret>[^\s$<]{8,1024})"),
    _rule(
        "securestring",
        r"securestring[ \t]{1,3}(?:-string[ \t]{1,3})?[\"'](?P<secret>[^\"'\n]{1,400})",
    ),
    _rule("add-mask::", r"add-mask::(?P<secret>\S[^\n]{0,1024})"),
    _rule("--auth", r"--auth(?:key)?[= ](?P<secret>(?=\S{0,80}\d)[^\s\"']{16,1024})"),
    _rule(
        "_api_key ",
        r"_api_key[ \t]{1,3}(?P<secret>(?=\S{0,80}\d)(?=\S{0,80}[A-Za-z])[\w./+=-]{16,1024})",
    ),
    _rule(" api key ", r" api key [^\n:]{1,80}: {1,3}(?P<secret>(?=\S{0,80}\d)\w{20,200})"),
    _rule("login(key=", r"login\(key=[\"'](?P<secret>\w{16,200})"),
    _rule("-api:", r"-api:[ \t]{0,3}(?P<secret>[^\s\"'$]{8,8192})"),
    # Telegram's bots, and Google's tokens to renew others with.
    _rule(":aa", r":(?P<secret>AA[\w-]{30,60})(?![\w-])"),
    _rule("1//0", r"1//0(?P<secret>[\w-]{30,400})"),
    _rule("code=4/", r"code=(?P<secret>4/[\w-]{20,400})"),
    _rule("apa91b", r"(?P<secret>APA91b[\w-]{60,400})"),
    _rule(".atlasv1.", r"\.atlasv1\.(?P<secret>[\w-]{40,200})"),
    _rule("pass:", r"pass:(?P<secret>[^\s\"']{1,1024})"),
    _rule("pwd=", r"(?<=[;&?])pwd=(?P<secret>[^\s;&\"']{1,1024})"),
    *(
        _rule(f"<{tag}", rf"<{tag}\w{{0,8}}>(?P<secret>[^<\n]{{1,1024}})</")
        for tag in ("pass", "token", "apikey", "secret")
    ),
    _rule("-with-token", r"-with-token[ \t]{0,3}<<<[ \t]{0,3}(?P<secret>\S{1,1024})"),
    _rule("chpasswd", r"chpasswd[ \t]{0,3}<<<[ \t]{0,3}[\"']?[^\s:]{1,80}:(?P<secret>\S{1,1024})"),
    _rule("sonar.login=", r"sonar\.login=(?P<secret>[^\s\"']{8,1024})"),
    # Signed addresses, and channels of conda that carry a token.
    _rule("sig=", r"(?<=[?&;])sig=(?P<secret>[^&\s\"']{4,8192})"),
    _rule("auth=", r"(?<=[?&;])auth=(?P<secret>[^&\s\"']{8,8192})"),
    _rule("signature=", r"signature=(?P<secret>[^&\s\"']{4,8192})"),
    _rule("x-amz-", r"x-amz-(?:signature|credential|security-token)=(?P<secret>[^&\s\"']{4,8192})"),
    _rule("key=", r"(?<=[?&])key=(?P<secret>[^&\s\"']{8,8192})"),
    _rule("/t/", r"/t/(?P<secret>[\w-]{10,200})(?=/)"),
    _rule("pypi.fury.io/", r"pypi\.fury\.io/(?P<secret>(?=[\w-]{0,80}\d)[\w-]{16,200})/"),
    _rule(
        "dl.cloudsmith.io/", r"dl\.cloudsmith\.io/(?!public/)(?:basic/)?(?P<secret>[\w-]{12,200})/"
    ),
    _rule("hooks.slack.com/", r"hooks\.slack\.com/(?P<secret>[\w/+-]{8,400})"),
    _rule("/api/webhooks/", r"/api/webhooks/(?P<secret>[\w/-]{8,400})"),
    _rule("webhook.office.com/", r"webhook\.office\.com/(?P<secret>[^\s\"']{8,600})"),
    _rule("/bot", r"/bot(?P<secret>\d{5,16}:[\w-]{30,60})"),
    # Passwords as crypt keeps them.
    *(
        _rule(f"${kind}$", rf"\${kind}\$(?P<secret>[\w./+$=,-]{{20,400}})")
        for kind in ("5", "6", "y", "2a", "2b", "2y", "apr1", "argon2id")
    ),
)


_BEGIN = r"-----begin[ A-Z0-9]{0,60}private key(?: block)?-----"
_BREAK = r"(?:\s|\\{1,4}[nr])"
_KEYS = (
    # A private key, in lines or with `\n` between them.
    _rule(
        "-----begin", rf"{_BEGIN}(?P<secret>(?:[^-]|-(?!----)){{1,{LONGEST_KEY_BLOCK}}})-----end"
    ),
    # One that is cut off; each of its lines may have a date or a name before it.
    _rule(
        "-----begin",
        rf"{_BEGIN}(?P<secret>(?:{_BREAK}{{0,4}}(?:[A-Za-z-]{{3,12}}: [^\n]{{1,80}}|"
        rf"(?:[^\n]{{0,60}}[ |:\]\t](?=[A-Za-z0-9+/=]{{40}}))?[A-Za-z0-9+/=]{{16,128}})){{1,600}}"
        rf"(?:{_BREAK}{{1,4}}[A-Za-z0-9+/]{{1,80}}={{0,2}}(?=\r?\n|\\|[\"']|\Z))?)",
    ),
)
_KEY_ENDS = re.compile(rb"-----END[ A-Z0-9]{0,60}PRIVATE KEY")
_IN_KEY = re.compile(rb"[ \t]*[A-Za-z0-9+/=]{1,128}[ \t\r]*")


def of_places(content: bytes, lower: bytes) -> Spans:
    """What stands where only secrets do: in addresses, headers, files of logins."""
    yield from _found_by(_PLACES, content, lower)


def of_keys(content: bytes, lower: bytes) -> Spans:
    """Private keys, whole or cut off at either end."""
    yield from _found_by(_KEYS, content, lower)
    for found in _KEY_ENDS.finditer(content):
        end = start = found.start()
        # Upwards, line by line, for as long as they are a key's.
        while start > 0 and end - start < LONGEST_KEY_BLOCK // 8:
            line = content.rfind(b"\n", max(0, start - 160), start - 1) + 1
            # Only its last line is short.
            shortest = 1 if start == end else 40
            if start - line < shortest or not _IN_KEY.fullmatch(content, line, start - 1):
                break
            start = line
        if start < end:
            yield start, end - 1


def _found_by(
    rules: Iterable[tuple[bytes, re.Pattern[bytes]]], content: bytes, lower: bytes
) -> Spans:
    for key, expression in rules:
        at = lower.find(key)
        while at != -1:
            found = expression.match(content, at)
            if found is not None:
                yield from _span(found)
            at = lower.find(key, found.end("secret") if found is not None else at + len(key))

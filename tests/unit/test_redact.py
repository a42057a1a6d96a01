"""What looks like a secret is taken out of text, in time that grows with the text's length."""

from __future__ import annotations

import base64
import html
import shlex
import time

import pytest

from torchsmith.redact import LineReader, Redactor, redacted, redacted_lines, without_keys

pytestmark = pytest.mark.unit

SECRET = "geheim123"
LONG = "aB3" + "geheim123" * 9
KEY_LINE = "MIIEvQIBADANBgkqhkiG9w0BAQEFAASCBKcwggSjAgEAAoIBAQC7VJTUt9Us8cK+"


@pytest.mark.parametrize(
    "line",
    [
        # by the word before
        "fatal: unable to access 'https://bob:geheim123@example.org/x': error",
        "postgresql://root:p@ss/geheim123@db/x".replace("/geheim123", "geheim123"),
        "export ANACONDA_TOKEN=geheim123",
        'HF_TOKEN: "geheim123"',
        "twine upload --password geheim123 dist/*",
        "twine upload -p geheim123 dist/*",
        "echo geheim123 | sudo -S apt-get update",
        "echo bob:geheim123 | chpasswd",
        "htpasswd -b users bob geheim123",
        "ssh-keygen -t ed25519 -N geheim123 -f key",
        '{"username":"bob","key":"geheim123geheim123"}',
        'password="geheim123',
        "{'token': 'geheim123'}",
        r"{\"api_key\": \"geheim123\"}",
        "DB_PASS=geheim123",
        "mysql -pgeheim123 -u root",
        "sudo -S <<< geheim123",
        "conda config --set token geheim123",
        "rclone obscure pass = geheim123",
        "the password is geheim123",
        "ANTHROPIC_API_KEY geheim123geheim123",
        "curl -H 'X-JFrog-Art-Api: geheim123'",
        "telegram 123456789:AAgeheim123geheim123geheim123geheim",
        "1//0geheim123geheim123geheim123geheim123",
        "GH_PAT=geheim123",
        "MYSQL_PWD=geheim123",
        "api_key=geheim123",
        "_authToken=geheim123",
        "    client-key-data: geheim123geheim123",
        "Server=x;Uid=sa;Pwd=geheim123;",
        "AccountName=x;AccountKey=geheim123geheim123==;EndpointSuffix=y",
        # by the command or the place
        "Authorization: Bearer geheim123geheim123",
        "Authorization: Basic geheim123geheim123=",
        "authorization: token geheim123",
        "Cookie: a=b; session=geheim123",
        "Set-Cookie: sid=geheim123; Path=/",
        "+ curl -fsSL -u bob:geheim123 https://example.org",
        "curl --user 'bob:geheim123' https://example.org",
        "sshpass -p geheim123 scp a b",
        "sshpass -pgeheim123 scp a b",
        "<password>geheim123</password>",
        "anaconda -t geheim123 upload a.conda",
        "vault login geheim123",
        "gh auth login --with-token <<< geheim123",
        "chpasswd <<< root:geheim123",
        "unzip -P geheim123 a.zip",
        "ldapsearch -w geheim123 -D cn=a",
        "smbclient -U me%geheim123 //host/share",
        "mvn -Dsonar.login=geheim123 verify",
        "SECRET_KEY_BASE=geheim123",
        "KAGGLE_KEY=geheim123",
        "whsec_geheim123geheim123geheim123",
        "docker login -u bob -p geheim123 registry.example.org",
        "podman login --username bob --password=geheim123 x",
        "echo geheim123 | docker login -u bob --password-stdin",
        "skopeo copy --dest-creds bob:geheim123 a b",
        "wandb login --relogin geheim123geheim123geheim123",
        "machine example.org login bob password geheim123",
        "aws configure set aws_secret_access_key geheim123geheim123",
        "openssl rsa -passin pass:geheim123",
        "https://example.org/x?X-Amz-Signature=geheim123&a=1",
        "https://x.blob.core.windows.net/a?sv=1&sig=geheim123",
        "https://maps.example.org/?key=geheim123",
        "https://conda.anaconda.org/t/geheim123-geheim/channel",
        "https://hooks.slack.com/services/T0/B0/geheim123",
        "https://discord.com/api/webhooks/1/geheim123",
        "https://api.telegram.org/bot123456:geheim123geheim123geheim123geheim123/x",
        '"private_key": "-----BEGIN PRIVATE KEY-----\\ngeheim123\\n-----END PRIVATE KEY-----\\n"',
        # by how they begin
        *(
            f"it is {beginning}{LONG}, it says"
            for beginning in (
                *("ghp_", "gho_", "github_pat_", "glpat-", "hf_", "pypi-", "npm_", "dckr_pat_"),
                *("nvapi-", "AIza", "sk-", "sk-ant-api03-", "sk_live_", "xoxb-", "dapi", "r8_"),
                *("hvs.", "SG.", "dop_v1_", "shpat_", "lin_api_", "gsk_", "tskey-", "glsa_"),
            )
        ),
        "eyJhbGciOiJIUzI1NiJ9.eyJzdWIiOiIxMjM0NTY3ODkwIn0.geheim123geheim",
        f"\x1b[32mghp_{LONG}\x1b[0m",
        rf"error\nghp_{LONG}",
        f"https://example.org/?next=a%3Dghp_{LONG}",
        # in sentences and tables
        "log in as ci with password geheim123",
        "[sudo] password for bob: geheim123",
        "Password for the elastic user is: geheim123",
        "**Password:** geheim123",
        "| password | geheim123 |",
        "using password 'geheim123'",
        f"use the token {LONG} to log in",
        f"API key: {LONG}",
        "AWS Secret Access Key [None]: geheim123geheim123",
        # as languages and files write it
        "os.environ['HF_TOKEN'] = 'geheim123'",
        "os.environ.setdefault('HF_TOKEN', 'geheim123')",
        "password: str = 'geheim123'",
        'const apiToken string = "geheim123"',
        'password: Some("geheim123")',
        'password = """geheim123"""',
        '#define WIFI_PASSWORD "geheim123"',
        "PASSWORD ?= geheim123",
        "API_TOKEN:STRING=geheim123",
        "password: |\n  geheim123\n",
        '"password":\n    "geheim123"',
        "- name: DB_PASSWORD\n  value: geheim123",
        '{"name": "DB_PASSWORD", "value": "geheim123"}',
        '<add key="ClearTextPassword" value="geheim123" />',
        '<input type="password" name="p" value="geheim123">',
        "<token>geheim123</token>",
        r'"password": "a\"geheim123"',
        r"export DB_PASSWORD=a\ geheim123",
        "DB_PASSWORD=a,geheim123",
        "export DB_PASSWORD=$'geheim123'",
        "DB_PASSWORD\x1b[0m=\x1b[31mgeheim123\x1b[0m",
        "password%3Dgeheim123",
        'psk="geheim123"',
        '"pass": "geheim123"',
        "RAILS_MASTER_KEY=geheim123",
        "SSHPASS=geheim123 sshpass -e ssh a",
        'const API_KEY: &str = "geheim123";',
        'char password[] = "geheim123";',
        f"HF_TOKEN                       {LONG}",
        f"│ WANDB_API_KEY │ {LONG} │",
        "ENV DB_PASSWORD geheim123",
        "setx API_TOKEN geheim123",
        "set -gx DB_PASSWORD geheim123",
        "Connect-Service -User a -Password geheim123",
        'ConvertTo-SecureString "geheim123" -AsPlainText',
        '["twine", "upload", "--token", "geheim123"]',
        "Command '['sshpass', '-p', 'geheim123', 'ssh', 'h']' returned 5",
        "machine a\n  login b\n  password geheim123",
        '{"auths": {"example.org": {"auth": "Ym9iOgeheim123=="}}}',
        # options and arguments of more commands
        "openssl enc -d -aes-256-cbc -k geheim123 -in a",
        "7z x -pgeheim123 a.7z",
        "unrar x -pgeheim123 a.rar",
        "curl -sSu bob:geheim123 https://example.org",
        "curl -u :geheim123 https://example.org",
        "curl --proxy-user bob:geheim123 https://example.org",
        "curl -b 'session=geheim123' https://example.org",
        "uv publish -u bob -p geheim123",
        "poetry config http-basic.a bob geheim123",
        "cargo login geheim123",
        "echo 'geheim123' | su -c id",
        "printf '%s' geheim123 | docker login --password-stdin",
        "docker login --password-stdin <<EOF\ngeheim123\nEOF",
        "plink -ssh bob@h -pw geheim123 ls",
        "tool --pass geheim123 --pw=geheim123",
        "sqlcmd -S a -U sa -P geheim123",
        "snmpwalk -v3 -A geheim123 -X geheim123 h",
        "vault operator unseal geheim123",
        "mc alias set a https://example.org bob geheim123",
        # headers and addresses
        "Authorization: ApiKey geheim123geheim123",
        "Authorization: SharedKey bob:geheim123",
        "authorization=Bearer%20geheim123",
        'Cookie: a=b; c="geheim123"',
        "https://bob:a/geheim123@example.org/",
        "https://example.org/a?b=1&amp;sig=geheim123",
        "root:$6$salt$geheim123geheim123geheim123:19000",
    ],
)
def test_a_secret_is_taken_out(line: str) -> None:
    assert SECRET not in redacted(line), redacted(line)
    assert "***" in redacted(line)


def test_an_access_key_of_amazon_is_taken_out() -> None:
    assert redacted("key AKIAIOSFODNN7EXAMPLE used") == "key *** used"


@pytest.mark.parametrize(
    "line",
    [
        "ANACONDA_TOKEN is unset. Please set it in your environment",
        "error: expected ‘;’ before ‘)’ token",
        "max_tokens=4096 num_tokens: 512",
        "pad_token: '</s>'",
        "token: $TOKEN",
        "docker run -u 1000:1000 image",
        "PWD=/home/bob/pytorch",
        "in hf_hub_download_with_retries_and_resume(",
        "sha256:5d41c289942008211c2964bca72800f5c9d5ea5aa4057528da617fb36463d4ab",
        "-- Build files have been written to: /src/build",
        "https://download.pytorch.org/whl/cu121",
        "git@github.com:pytorch/pytorch.git",
        "gcc a.o -lmysqlclient -pthread -o a",
        "PASS: test1.exp: break at 2",
        "pass: InstCombinePass",
        "two-pass: enabled, first-pass=linking",
        "# KEY:TYPE=VALUE",
        "see ``keyring.get_password``::",
        "the `1Password <https://1password2.example.org/>`_ password manager",
        "    inference_session = InferenceSession(path, providers=providers)",
        'secret "regcred-2" not found',
        "error: unknown token _ZN3c106detail19maybe_wrap_dim_slowIlEET_S2_S2_b",
        "error: unexpected token 'torch2' at a.cpp:12",
        "fatal: could not read Password for 'https://example.org': No such device or address",
        "Checking passwords in a/password.c:123",
        'columns: ["username", "password", "email"]',
        "DEBIAN_KEYS=/usr/share/keyrings/debian-archive-keyring.gpg",
        "-DCMAKE_CXX_FLAGS_RELEASE=-O3 -DUSE_KEYBOARD=on",
        "assert one.token == other.token",
        "password: <% $secrets.docker_password %>",
        "echo 2.6.0 | tee version.txt",
        "zip -r a.zip b && mkdir -p /src/build",
        "https://registry.example.org:4873/@scope/package",
    ],
)
def test_what_is_no_secret_stays(line: str) -> None:
    assert redacted(line) == line


@pytest.mark.parametrize(
    "text",
    [
        # cut off at either end, with a date before each line, escaped twice, encrypted
        f"{KEY_LINE}\nAbCd12+/==\n-----END PRIVATE KEY-----",
        f"-----BEGIN PRIVATE KEY-----\n{KEY_LINE}\nAbCd12+/==",
        f"1 | -----BEGIN PRIVATE KEY-----\n1 | {KEY_LINE}\n1 | {KEY_LINE}AbCd12+/==",
        rf"-----BEGIN PRIVATE KEY-----\\n{KEY_LINE}\\nAbCd12+/==\\n",
        f"-----BEGIN RSA PRIVATE KEY-----\nDEK-Info: AES-128-CBC,AA\n\n{KEY_LINE}\nAbCd12+/==",
    ],
)
def test_a_private_key_in_pieces_is_taken_out(text: str) -> None:
    shown = redacted(f"begin\n{text}\nend of it")
    assert KEY_LINE[:20] not in shown
    assert "AbCd12" not in shown
    assert shown.startswith("begin\n")
    assert shown.endswith("\nend of it")


@pytest.mark.parametrize("user", ["", "a:", "ab:", "bob:"])
def test_a_known_value_is_taken_out_however_a_program_prints_it(user: str) -> None:
    value = "it's <geheim> & more?"
    clean = Redactor([f"{value}\n"]).text
    encoded = base64.b64encode(f"{user}{value}:x".encode()).decode()
    assert encoded[6:18] not in clean(encoded)
    for form in (value, shlex.quote(value), html.escape(value), repr(value + '"')):
        assert "geheim" not in clean(f"say {form} again")


@pytest.mark.parametrize("value", ["", " ", "\n", "1", "on", "True", "none"])
def test_a_value_that_is_no_secret_leaves_logs_as_they_are(value: str) -> None:
    text = "[1/10] c++ -O1 a on 10.0.0.1: True, none \n"
    assert Redactor([value]).text(text) == text


def test_a_private_key_is_taken_out_line_by_line() -> None:
    text = f"a\n-----BEGIN RSA PRIVATE KEY-----\n{KEY_LINE}\n-----END RSA PRIVATE KEY-----\nb"
    assert KEY_LINE[:20] not in redacted(text)
    assert redacted(text).endswith("\nb")
    assert KEY_LINE[:20] not in redacted(f"error: x\n{KEY_LINE}\n")
    lines = without_keys(f"{text}\nerror: x\n".encode()).decode().splitlines()
    assert KEY_LINE[:20] not in "".join(lines)
    assert lines.index("error: x") == text.count("\n") + 1


@pytest.mark.parametrize("size", [1, 7, 50, 4096])
def test_a_stream_is_cleaned_too_however_it_is_cut(size: int) -> None:
    text = (
        f"before\n-----BEGIN OPENSSH PRIVATE KEY-----\n{KEY_LINE}\n{KEY_LINE}\n"
        f"-----END OPENSSH PRIVATE KEY-----\nexport API_KEY={SECRET}\nghp_{LONG}\n"
        f"- name: DB_PASSWORD\n  value: {SECRET}\nafter\n"
    ).encode()
    reader = LineReader(Redactor([]))
    kept = b"".join(reader.feed(text[at : at + size]) for at in range(0, len(text), size))
    kept += reader.finish()
    assert KEY_LINE[:20].encode() not in kept
    assert SECRET.encode() not in kept
    assert kept.startswith(b"before\n")
    assert kept.endswith(b"after\n")


def test_a_key_that_never_ends_does_not_hold_a_stream_back() -> None:
    reader = LineReader(Redactor([]))
    kept = reader.feed(b"-----BEGIN PRIVATE KEY-----\n")
    kept += b"".join(reader.feed(b"a line of a log\n" * 100) for _ in range(100))
    assert kept.count(b"a line of a log") > 5000


# Where the time grew with the square of the length, each of these would take minutes.
@pytest.mark.parametrize(
    "piece",
    [
        *("a-", "token ", "token=", "token=$", 'password="', "--token ", "--password-", "://", "x"),
        *("AB_KEY=", "AB_KEY='", "-----END PRIVATE KEY-----\n", "key=", "for x is ", "| token"),
        *("curl ", "login ", "echo ", "eyJ", "a.", "sk-", "hf_1", "sig=", "cookie:", "bearer "),
        *(
            "private key-----",
            "-----BEGIN PRIVATE KEY-----",
            "A1b+",
            "secret",
            "\\",
            '"',
            " ",
            "\t",
        ),
    ],
)
def test_the_time_grows_with_the_length_only(piece: str) -> None:
    text = piece * (400_000 // len(piece))
    began = time.process_time()
    redacted(text)
    assert time.process_time() - began < 20


def test_lines_of_a_job_are_redacted_as_they_come() -> None:
    said = [
        "step 1",
        "export HF_TOKEN=hf_AbCdEfGhIjKlMnOpQrStUvWxYz012345",
        "-----BEGIN OPENSSH PRIVATE KEY-----",
        "b3BlbnNzaC1rZXktdjEAAAAABG5vbmUAAAAEbm9uZQ",
        "-----END OPENSSH PRIVATE KEY-----",
        "step 2",
    ]
    shown = "\n".join(redacted_lines(iter(said)))
    assert shown.startswith("step 1\n")
    assert shown.endswith("\nstep 2")
    assert "hf_AbC" not in shown
    named = list(redacted_lines(["- name: DB_PASSWORD", "  value: geheim123", "- name: A"]))
    assert named == ["- name: DB_PASSWORD", "  value: ***", "- name: A"]
    assert "b3BlbnNz" not in shown

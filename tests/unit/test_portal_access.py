"""Who may see the portal and who may act: asked as browsers, other sites and scripts ask."""

from __future__ import annotations

import base64
import re
import stat
from pathlib import Path

import pytest
from starlette.testclient import TestClient
from tests.tiny_packages import wheel

from torchsmith.errors import UsageError
from torchsmith.ship.publish import Places, publish
from torchsmith.web.access import Access, token_in
from torchsmith.web.app import make_app
from torchsmith.web.portal import Portal

pytestmark = pytest.mark.unit

TOKEN = "a-token-for-the-tests-of-the-portal"
HTML = {"Accept": "text/html"}


def client(
    tmp_path: Path, access: Access | None = None, said: list[str] | None = None, **more: object
) -> TestClient:
    publish([wheel(tmp_path / "made", "tiny-lib", "1.0")], Places(tmp_path / "index"))
    portal = Portal(access or Access(), Places(tmp_path / "index"), tmp_path / "store", tmp_path)
    app = make_app(portal, said.append if said is not None else lambda _: None)
    return TestClient(app, "http://127.0.0.1:8080", follow_redirects=False, **more)  # type: ignore[arg-type]


def page_token(text: str) -> str:
    found = re.search(r'name="page_token" value="([0-9a-f]+)"', text)
    assert found is not None
    return found[1]


def log_in(reader: TestClient) -> None:
    own = page_token(reader.get("/login", headers=HTML).text)
    done = reader.post("/login", data={"token": TOKEN, "page_token": own})
    assert (done.status_code, done.headers["location"]) == (303, "/")


def test_the_start_page_and_the_index_come_from_one_server(tmp_path: Path) -> None:
    reader = client(tmp_path)
    assert "Packages" in reader.get("/", headers=HTML).text
    assert "tiny-lib" in reader.get("/simple/").text
    assert reader.get("/simple/tiny-lib").headers["location"] == "/simple/tiny-lib/"


@pytest.mark.parametrize("path", ["/static/portal.css", "/static/portal.js", "/static/icon.svg"])
def test_everything_a_page_needs_comes_from_here(tmp_path: Path, path: str) -> None:
    reader = client(tmp_path)
    assert path in reader.get("/", headers=HTML).text
    assert reader.get(path).status_code == 200


@pytest.mark.parametrize(
    "host",
    ["evil.example.org", "127.0.0.1.example.org", "", "user@127.0.0.1", "127.0.0.1:0", "[::1"],
)
def test_another_name_is_refused(tmp_path: Path, host: str) -> None:
    assert client(tmp_path).get("/", headers={"Host": host}).status_code == 421


def test_of_a_server_for_others_only_its_address_and_names_are_known(tmp_path: Path) -> None:
    reader = client(tmp_path, Access(frozenset({"forge.lab"}), TOKEN))
    reader.base_url = "http://10.0.0.7:8080"
    answers = {
        host: reader.get("/login", headers={"Host": host}).status_code
        for host in ("10.0.0.7:8080", "forge.lab:8080", "FORGE.lab", "other.lab", "127.0.0.1")
    }
    assert answers == {
        "10.0.0.7:8080": 200,
        "forge.lab:8080": 200,
        "FORGE.lab": 200,
        "other.lab": 421,
        "127.0.0.1": 421,
    }


@pytest.mark.parametrize("path", ["/", "/builds", "/jobs", "/simple/", "/channel/x", "/nothing"])
def test_without_the_token_nothing_is_shown(tmp_path: Path, path: str) -> None:
    reader = client(tmp_path, Access(token=TOKEN))
    for given in ({}, {"Authorization": "Bearer wrong"}, {"Authorization": "Basic ???"}):
        answer = reader.get(path, headers=given)
        assert answer.status_code == 401, path
        assert "tiny" not in answer.text
    if not path.startswith(("/simple", "/channel")):
        answer = reader.get(path, headers=HTML)
        assert (answer.status_code, answer.headers["location"]) == (303, "/login")


def test_the_token_opens_a_session_that_scripts_cannot_read(tmp_path: Path) -> None:
    said: list[str] = []
    reader = client(tmp_path, Access(token=TOKEN), said)
    own = page_token(reader.get("/login").text)
    wrong = reader.post("/login", data={"token": "x" * 20, "page_token": own})
    assert (wrong.status_code, "set-cookie" in wrong.headers) == (403, False)
    done = reader.post("/login", data={"token": TOKEN, "page_token": own})
    cookie = done.headers["set-cookie"]
    assert "HttpOnly" in cookie
    assert "SameSite=strict" in cookie
    assert TOKEN not in cookie
    assert reader.get("/", headers=HTML).status_code == 200
    # Another browser has nothing of it.
    assert client(tmp_path, Access(token=TOKEN)).get("/").status_code == 401
    own = page_token(reader.get("/", headers=HTML).text)
    reader.post("/logout", data={"page_token": own})
    assert reader.get("/").status_code == 401
    assert not [line for line in said if TOKEN in line]


def test_scripts_and_installers_send_the_token_in_a_header(tmp_path: Path) -> None:
    reader = client(tmp_path, Access(token=TOKEN))
    basic = base64.b64encode(f"anybody:{TOKEN}".encode()).decode()
    for given in (f"Bearer {TOKEN}", f"Basic {basic}"):
        assert reader.get("/simple/", headers={"Authorization": given}).status_code == 200
    refused = reader.get("/simple/", headers=HTML)
    assert refused.headers["www-authenticate"].startswith("Basic")


@pytest.mark.parametrize(
    "headers",
    [
        {"Origin": "http://evil.example.org"},
        {"Origin": "null"},
        {"Origin": "http://127.0.0.1:9999"},
        {"Origin": "https://127.0.0.1:8080"},
        {"Sec-Fetch-Site": "cross-site"},
        {"Sec-Fetch-Site": "same-site"},
    ],
)
def test_a_page_of_another_site_cannot_post(tmp_path: Path, headers: dict[str, str]) -> None:
    reader = client(tmp_path, Access(token=TOKEN, actions=True))
    log_in(reader)
    own = page_token(reader.get("/", headers=HTML).text)
    refused = reader.post("/logout", data={"page_token": own}, headers=headers)
    assert refused.status_code == 403
    assert reader.get("/", headers=HTML).status_code == 200


def test_a_form_without_the_pages_own_token_is_refused(tmp_path: Path) -> None:
    reader = client(tmp_path, Access(token=TOKEN, actions=True))
    before = page_token(reader.get("/login").text)
    log_in(reader)
    for given in ({}, {"page_token": "0" * 64}, {"page_token": before}):
        assert reader.post("/logout", data=given).status_code == 403
    same = {"Origin": "http://127.0.0.1:8080"}
    own = page_token(reader.get("/", headers=HTML).text)
    assert reader.post("/logout", data={"page_token": own}, headers=same).status_code == 303


def test_long_and_broken_forms_are_refused(tmp_path: Path) -> None:
    reader = client(tmp_path)
    assert reader.post("/logout", content=b"x" * (3 << 20)).status_code == 413
    assert reader.post("/logout", content=iter([b"x" * (1 << 20)] * 3)).status_code == 413
    assert reader.post("/logout", content=b"a=\xff").status_code == 400
    assert reader.post("/logout", content=b"&".join([b"a=1"] * 1000)).status_code == 400


def test_pages_let_no_foreign_script_run_and_no_other_site_frame_them(tmp_path: Path) -> None:
    answer = client(tmp_path).get("/", headers=HTML)
    policy = answer.headers["content-security-policy"]
    assert "default-src 'none'" in policy
    assert "unsafe" not in policy
    assert "frame-ancestors 'none'" in policy
    assert answer.headers["x-content-type-options"] == "nosniff"
    # Whatever was published is kept apart from the pages.
    assert "sandbox" in client(tmp_path).get("/simple/").headers["content-security-policy"]


def test_addresses_are_logged_without_their_query_and_without_control_characters(
    tmp_path: Path,
) -> None:
    said: list[str] = []
    client(tmp_path, said=said).get("/%1b[2J?token=secret", headers=HTML)
    (line,) = said
    assert "secret" not in line
    assert "\x1b" not in line


def test_a_token_file_is_made_and_only_its_owner_reads_it(tmp_path: Path) -> None:
    file = tmp_path / "new/portal.token"
    token = token_in(file)
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    assert len(token) >= 32
    assert token_in(file) == token
    file.chmod(0o644)
    with pytest.raises(UsageError, match="others can read"):
        token_in(file)
    file.chmod(0o600)
    file.write_text("short\n")
    with pytest.raises(UsageError, match="fewer than"):
        token_in(file)

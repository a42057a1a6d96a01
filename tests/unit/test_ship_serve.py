"""The server of an index and a channel, asked over real HTTP."""

from __future__ import annotations

import contextlib
import http.client
import socket
import struct
import time
from collections.abc import Iterator
from urllib.parse import urlsplit

import pytest
from tests.tiny_packages import conda, wheel

from torchsmith.errors import HostError
from torchsmith.ship.addresses import accepted, usage
from torchsmith.ship.index import HTML_TYPE, JSON_TYPE
from torchsmith.ship.publish import Places, publish
from torchsmith.web import app as web_server
from torchsmith.web.access import Access
from torchsmith.web.app import Server, make_app
from torchsmith.web.portal import Portal

pytestmark = pytest.mark.unit

WHEEL = "tiny_lib-1.0%2Bcpu-py3-none-any.whl"
PIP = f"{JSON_TYPE}, {HTML_TYPE}; q=0.1, text/html; q=0.01"


def serving(places: Places, said: list[str] | None = None, port: int = 0) -> Server:
    portal = Portal(Access(names=None), places)
    say = said.append if said is not None else lambda _: None
    return Server(make_app(portal, say), "127.0.0.1", port)


def place(server: Server) -> tuple[str, int]:
    found = urlsplit(server.address)
    assert found.hostname is not None
    assert found.port is not None
    return found.hostname, found.port


class Answer:
    """A response, read to its end."""

    def __init__(self, response: http.client.HTTPResponse) -> None:
        self.status = response.status
        self.headers = response.headers
        self.body = response.read()


class Client:
    """One connection that is kept open."""

    def __init__(self, server: Server) -> None:
        self._connection = http.client.HTTPConnection(*place(server), timeout=10)

    def get(self, path: str, method: str = "GET", **headers: str) -> Answer:
        given = {name.replace("_", "-"): value for name, value in headers.items()}
        self._connection.request(method, path, headers=given)
        return Answer(self._connection.getresponse())

    def close(self) -> None:
        self._connection.close()


@pytest.fixture(scope="module")
def places(tmp_path_factory: pytest.TempPathFactory) -> Places:
    """Published folders, beside and inside of which lies what is nobody's business."""
    folder = tmp_path_factory.mktemp("served")
    index = folder / "index"
    places = Places(index, folder / "channel")
    made = folder / "made"
    publish([wheel(made, "tiny-lib", "1.0+cpu"), conda(made, "tiny", "1.0")], places)
    (folder / "secret.txt").write_text("secret")
    (index / "simple/.hidden").write_text("secret")
    (index / "simple/link").symlink_to(folder)
    return places


@pytest.fixture(scope="module")
def client(places: Places) -> Iterator[Client]:
    with serving(places) as server:
        client = Client(server)
        yield client
        client.close()


@pytest.mark.parametrize(
    ("accept", "type_"),
    [
        (PIP, JSON_TYPE),
        ("", "text/html; charset=utf-8"),
        ("*/*", "text/html; charset=utf-8"),
        ("text/html", "text/html; charset=utf-8"),
        ("text/*;q=0.3, application/*;q=0.9", HTML_TYPE),
        (HTML_TYPE, HTML_TYPE),
        ("application/vnd.pypi.simple.latest+json", JSON_TYPE),
        (f"{JSON_TYPE};q=0, */*", "text/html; charset=utf-8"),
        (f"{JSON_TYPE};q=nonsense, text/html;q=0.1", "text/html; charset=utf-8"),
    ],
)
def test_an_index_page_comes_in_the_form_the_client_likes_best(accept: str, type_: str) -> None:
    choice = accepted(accept)
    assert choice is not None
    assert choice[1] == type_


def test_the_form_is_chosen_over_http(client: Client, places: Places) -> None:
    assert places.index is not None
    page = places.index / "simple/tiny-lib"
    json = client.get("/simple/tiny-lib/", Accept=PIP)
    assert (json.status, json.headers["Content-Type"]) == (200, JSON_TYPE)
    assert json.headers["Vary"] == "Accept"
    assert json.body == (page / "index.json").read_bytes()
    html = client.get("/simple/tiny-lib/", Accept="text/html")
    assert html.body == (page / "index.html").read_bytes()
    assert client.get("/simple/", Accept="image/png").status == 406


def test_names_are_normalised_and_folders_end_with_a_slash(client: Client) -> None:
    for path in ("/simple/Tiny_Lib/", "/simple/tiny-lib", "//simple//tiny-lib"):
        answer = client.get(path)
        assert (answer.status, answer.headers["Location"]) == (301, "/simple/tiny-lib/"), path


def test_a_browser_at_the_root_is_shown_the_projects(client: Client) -> None:
    answer = client.get("/")
    assert (answer.status, answer.headers["Location"]) == (301, "/simple/")


def test_a_file_can_be_had_in_parts(client: Client, places: Places) -> None:
    assert places.index is not None
    whole = (places.index / f"simple/tiny-lib/{WHEEL.replace('%2B', '+')}").read_bytes()
    path = f"/simple/tiny-lib/{WHEEL}"
    answer = client.get(path)
    assert (answer.status, answer.body) == (200, whole)
    assert answer.headers["Accept-Ranges"] == "bytes"
    for asked, part, said in (
        ("bytes=0-9", whole[:10], f"bytes 0-9/{len(whole)}"),
        ("bytes=10-", whole[10:], f"bytes 10-{len(whole) - 1}/{len(whole)}"),
        ("bytes=-10", whole[-10:], f"bytes {len(whole) - 10}-{len(whole) - 1}/{len(whole)}"),
        ("bytes=5-99999999", whole[5:], f"bytes 5-{len(whole) - 1}/{len(whole)}"),
    ):
        answer = client.get(path, Range=asked)
        assert (answer.status, answer.body) == (206, part), asked
        assert answer.headers["Content-Range"] == said
    answer = client.get(path, Range=f"bytes={len(whole)}-")
    assert (answer.status, answer.headers["Content-Range"]) == (416, f"bytes */{len(whole)}")
    for asked in ("bytes=0-1,4-5", "lines=1-2", "bytes=x"):
        assert client.get(path, Range=asked).body == whole
    stale = client.get(path, Range="bytes=0-9", If_Range='"another"')
    assert (stale.status, stale.body) == (200, whole)


def test_what_a_client_has_is_not_sent_again(client: Client) -> None:
    path = f"/simple/tiny-lib/{WHEEL}.metadata"
    first = client.get(path)
    again = client.get(path, If_None_Match=first.headers["ETag"])
    assert (again.status, again.body) == (304, b"")
    again = client.get(path, If_Modified_Since=first.headers["Last-Modified"])
    assert again.status == 304
    assert client.get(path, If_None_Match='"other"').status == 200
    assert client.get(path, If_Modified_Since="yesterday").status == 200


def test_head_says_what_get_would(client: Client) -> None:
    path = f"/simple/tiny-lib/{WHEEL}"
    head, get = client.get(path, "HEAD"), client.get(path)
    assert (head.status, head.body) == (200, b"")
    assert head.headers["Content-Length"] == str(len(get.body))
    assert head.headers["ETag"] == get.headers["ETag"]


def test_a_channel_lies_below_its_own_name(client: Client) -> None:
    answer = client.get("/channel/noarch/repodata.json")
    assert (answer.status, answer.headers["Content-Type"]) == (200, "application/json")
    assert client.get("/channel/noarch/tiny-1.0-0.conda").status == 200
    assert client.get("/channel/noarch/").status == 404


@pytest.mark.parametrize(
    "path",
    [
        "/../secret.txt",
        "/simple/../../secret.txt",
        "/%2e%2e/secret.txt",
        "/simple/%2e%2e%2f%2e%2e%2fsecret.txt",
        "/channel/../../secret.txt",
        "/..%5csecret.txt",
        "//etc/passwd",
        "/simple/link/secret.txt",
        "/.torchsmith-index",
        "/simple/.hidden",
        "/%00",
        "/simple/%ff%fe",
        "/nothing",
        "/simple/nothing/",
        f"/simple/tiny-lib/{WHEEL}/",
    ],
)
def test_nothing_else_can_be_reached(path: str, client: Client) -> None:
    answer = client.get(path)
    assert answer.status == 404
    assert b"secret" not in answer.body.replace(path.encode(), b"")


def test_it_can_only_be_read(client: Client) -> None:
    for method in ("PUT", "POST", "DELETE"):
        assert client.get("/simple/", method).status == 405


def test_a_port_that_is_taken_is_said_to_be(places: Places) -> None:
    with serving(places) as server:
        port = place(server)[1]
        with pytest.raises(HostError, match="cannot be listened on"):
            serving(places, port=port)
        assert usage(places, server.address) == [
            f"pip install --index-url http://127.0.0.1:{port}/simple/ NAME",
            f"uv pip install --index-url http://127.0.0.1:{port}/simple/ NAME",
            f"conda install --channel http://127.0.0.1:{port}/channel NAME",
        ]


@pytest.fixture
def server(places: Places) -> Iterator[tuple[Server, list[str]]]:
    said: list[str] = []
    with serving(places, said) as server:
        yield server, said


def connected(server: Server) -> socket.socket:
    return socket.create_connection(place(server), timeout=10)


HIDDEN = b"GET /simple/ HTTP/1.1\r\nHost: localhost\r\n\r\n"
TWO_LENGTHS = b"Content-Length: %d\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n"


@pytest.mark.parametrize(
    ("method", "head"),
    [
        (b"GET", b"Content-Length: %d\r\n\r\n"),
        (b"GET", TWO_LENGTHS),
        (b"POST", TWO_LENGTHS),
        (b"GET", b"Transfer-Encoding: chunked\r\nContent-Length: %d\r\n\r\n0\r\n\r\n"),
    ],
)
def test_a_body_is_not_taken_for_the_next_request(
    method: bytes, head: bytes, server: tuple[Server, list[str]]
) -> None:
    with connected(server[0]) as line:
        begin = method + b" /none HTTP/1.1\r\nHost: localhost\r\n"
        line.sendall(begin + head % len(HIDDEN) + HIDDEN)
        said = b""
        line.settimeout(1)
        with contextlib.suppress(ConnectionError, TimeoutError):
            while chunk := line.recv(65536):
                said += chunk
    assert said.count(b"HTTP/1.1 ") == 1


@pytest.mark.parametrize(
    "host", ["evil.example.org", "127.0.0.1.example.org", "[::1", "localhost.example.org:80"]
)
def test_a_name_that_only_leads_here_is_refused(host: str, client: Client) -> None:
    assert client.get("/simple/", Host=host).status == 421


@pytest.mark.parametrize("host", ["localhost", "localhost:8080", "127.0.0.1", "[::1]:80"])
def test_this_machines_own_names_are_taken(host: str, client: Client) -> None:
    assert client.get("/simple/", Host=host).status == 200


def test_a_slow_request_is_cut_off(
    server: tuple[Server, list[str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(web_server._Impatient, "request_seconds", 0.3)
    begin = time.monotonic()
    with connected(server[0]) as line, contextlib.suppress(ConnectionError):
        for byte in b"GET / HTTP/1.1\r\n" + b"X: " + b"a" * 1000:
            line.sendall(bytes([byte]))
            time.sleep(0.05)
            if time.monotonic() - begin > 8:
                break
    assert time.monotonic() - begin < 8


def test_connections_beyond_the_most_are_told_so_and_idle_ones_go(
    places: Places, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(web_server, "_MOST_CONNECTIONS", 3)
    monkeypatch.setattr(web_server._Impatient, "request_seconds", 1.0)
    with serving(places) as server:
        idle = [connected(server) for _ in range(5)]
        client = Client(server)
        assert client.get("/simple/").status == 503
        client.close()
        for line in idle:
            assert line.recv(1) == b""
            line.close()
        client = Client(server)
        assert client.get("/simple/").status == 200
        client.close()


def test_a_client_that_resets_is_no_error(
    server: tuple[Server, list[str]], capfd: pytest.CaptureFixture[str]
) -> None:
    for _ in range(5):
        line = connected(server[0])
        line.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        line.sendall(b"GET /simple/ HTTP/1.1\r\nHost: local")
        line.close()
    time.sleep(0.3)
    assert "Traceback" not in capfd.readouterr().err
    assert not [text for text in server[1] if "could not be answered" in text]

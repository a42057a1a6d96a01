"""Whatever an address, a header or a form holds, the portal answers and logs no error."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.fuzzing import ODD_WORDS, QUICK
from tests.unit.test_portal_access import HTML, client, page_token

pytestmark = pytest.mark.unit

FIELDS = (
    *("run", "step", "start", "from", "id", "file", "changes", "job", "to", "name", "toml", "gpus"),
    *("torch", "python", "cuda", "node", "nodes", "path", "project", "token", "without"),
)
ASKED = (
    *("/", "/builds", "/build", "/build/live", "/build/known", "/build/timeline", "/packages"),
    *("/package", "/package/fits", "/recipes", "/jobs", "/job", "/job/parts", "/job/launch"),
    *("/matrix", "/doctor", "/simple/x", "/channel/x"),
)
POSTED = (
    *("/recipes/check", "/job/launch", "/job/cancel", "/build/stop", "/build/resume", "/login"),
    "/doctor/nodes",
)


def test_whatever_a_request_holds_it_is_answered(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", "")
    said: list[str] = []
    reader = client(tmp_path, said=said)
    own = page_token(reader.get("/login", headers=HTML).text)
    values = st.one_of(
        st.text(max_size=12), st.sampled_from([*ODD_WORDS, "a = [", "\0", "../../x"])
    )
    fields = st.dictionaries(st.sampled_from(FIELDS), values, max_size=4)
    headers = st.dictionaries(
        st.sampled_from(["last-event-id", "range", "if-none-match", "if-modified-since", "accept"]),
        st.sampled_from(
            ["-1", "9" * 5000, "bytes=9-1", "bytes=" + "0-0," * 999, "\xb2", "text/html"]
        ),
        max_size=3,
    )

    @QUICK
    @given(fields, headers, st.sampled_from(ASKED), st.sampled_from(POSTED), st.binary(max_size=9))
    def try_it(
        form: dict[str, str], head: dict[str, str], asked: str, posted: str, body: bytes
    ) -> None:
        sent = {name: value.encode("latin-1") for name, value in head.items()}
        reader.get(asked, params=form, headers=sent)
        reader.post(posted, data={**form, "page_token": own})
        reader.post(posted, content=body, headers=sent)

    try_it()
    assert [line for line in said if "could not be shown" in line] == []

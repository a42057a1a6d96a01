"""Keys: made once, kept private, trusted only when told."""

from __future__ import annotations

import os
import stat
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from tests.unit.conftest import Run

from torchsmith.errors import HostError, UsageError
from torchsmith.package.keys import (
    PublicKey,
    keys_folder,
    own_key,
    read_public,
    revoke,
    signer,
    trust,
    trusted_keys,
)

pytestmark = pytest.mark.unit


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path / "data"))
    return tmp_path


def private() -> Path:
    return keys_folder() / "signing.pem"


def test_a_key_is_made_once_and_for_its_owner_alone() -> None:
    assert own_key() is None
    first = signer().public_key.keyid
    assert signer().public_key.keyid == first
    assert stat.S_IMODE(private().stat().st_mode) == 0o600
    assert stat.S_IMODE(keys_folder().stat().st_mode) == 0o700
    assert [path.name for path in keys_folder().iterdir()] == ["signing.pem"]


def test_several_at_once_make_one_key() -> None:
    with ThreadPoolExecutor(8) as pool:
        found = set(pool.map(lambda _: signer().public_key.keyid, range(16)))
    assert len(found) == 1


@pytest.mark.parametrize("mode", [0o644, 0o640, 0o604])
def test_a_key_that_others_can_read_is_refused(mode: int) -> None:
    signer()
    private().chmod(mode)
    with pytest.raises(HostError, match="others can read the signing key") as caught:
        signer()
    assert "chmod 600" in caught.value.hint


def test_a_folder_that_others_can_write_to_is_refused() -> None:
    signer()
    keys_folder().chmod(0o777)
    with pytest.raises(HostError, match="others can replace"):
        signer()


def test_a_damaged_key_is_refused_and_stays() -> None:
    signer()
    private().write_bytes(b"-----BEGIN PRIVATE KEY-----\nAAAA\n")
    with pytest.raises(HostError, match="not an ed25519 private key"):
        signer()
    assert private().read_bytes().startswith(b"-----BEGIN")


def test_a_folder_that_cannot_be_made_is_said(home: Path) -> None:
    (home / "data").write_text("in the way", encoding="utf-8")
    with pytest.raises(HostError, match="no key can be kept"):
        signer()


def test_what_is_exported_can_be_trusted_elsewhere(
    home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    key = own_key(make=True)
    assert key is not None
    (home / "theirs.pem").write_text(key.pem, encoding="utf-8")
    monkeypatch.setenv("XDG_DATA_HOME", str(home / "elsewhere"))
    assert trusted_keys() == ()
    assert trust(home / "theirs.pem").id == key.id
    assert [(item.id, item.own) for item in trusted_keys()] == [(key.id, False)]


def test_a_private_key_is_never_taken_for_a_public_one() -> None:
    signer()
    with pytest.raises(UsageError, match="private key"):
        trust(private())
    assert not (keys_folder() / "trusted").exists()


@pytest.mark.parametrize("content", [b"", b"\x00\xff", b"-----BEGIN PUBLIC KEY-----\nx\n"])
def test_what_is_no_key_is_refused(home: Path, content: bytes) -> None:
    (home / "x.pem").write_bytes(content)
    with pytest.raises(UsageError, match="not an ed25519 public key"):
        read_public(home / "x.pem")


def test_the_commands_never_print_the_private_key(run: Run, home: Path) -> None:
    code, _, said = run("key", "show")
    assert code == 2
    assert "no key yet" in said
    outputs = [
        run("key", "export"),
        run("key", "show"),
        run("key", "show", "--json"),
        run("key", "export", "--output", "mine.pem"),
        run("key", "trust", "mine.pem"),
        run("key", "list"),
        run("key", "list", "--json"),
    ]
    assert [code for code, _, _ in outputs] == [0] * len(outputs)
    secret = private().read_text(encoding="ascii").splitlines()[1]
    text = "".join(out + err for _, out, err in outputs)
    assert secret not in text
    assert "PRIVATE" not in text
    assert outputs[0][1].startswith("-----BEGIN PUBLIC KEY-----")
    key = own_key()
    assert key is not None
    assert key.id in outputs[1][1]
    code, _, said = run("key", "trust", "nothing.pem")
    assert code == 2
    assert "Traceback" not in said


@pytest.fixture
def theirs(home: Path) -> Path:
    """A trusted key, as it is kept."""
    from securesystemslib.signer import CryptoSigner

    made = CryptoSigner.generate_ed25519().public_key
    pem = home / "theirs.pem"
    pem.write_text(PublicKey(made.keyid, made.keyval["public"], pem).pem)
    return trust(pem).path


# Whoever may write to a folder above can put another in the place of one that is private.
@pytest.mark.parametrize("what", ["", "trusted", "file", "../.."])
@pytest.mark.parametrize("mode", [0o666, 0o777])
def test_a_trusted_key_that_everybody_may_write_to_is_not_believed(
    what: str, mode: int, theirs: Path
) -> None:
    path = theirs if what == "file" else keys_folder() / what
    path.chmod(mode)
    with pytest.raises(HostError, match="everybody may write"):
        trusted_keys()


def test_a_trusted_key_of_another_user_is_not_believed(
    theirs: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if os.getuid() == 0:
        os.chown(theirs, 12345, -1)
    else:
        own = os.getuid()
        monkeypatch.setattr(os, "geteuid", lambda: own + 1)
    with pytest.raises(HostError, match="belongs to another user"):
        trusted_keys()


@pytest.mark.parametrize("instead", ["pipe", "link", "folder"])
def test_what_is_no_file_among_the_keys_is_refused_and_not_waited_for(
    instead: str, theirs: Path, home: Path
) -> None:
    odd = theirs.with_name("odd.pem")
    if instead == "pipe":
        os.mkfifo(odd)
    elif instead == "link":
        odd.symlink_to(home / "theirs.pem")
    else:
        odd.mkdir()
    with pytest.raises(HostError, match=r"cannot be read|is a link"):
        trusted_keys()


def test_folders_for_keys_are_private_whatever_the_umask(home: Path) -> None:
    public = home / "mine.pem"
    before = os.umask(0)
    try:
        public.write_text(own_key(make=True).pem)  # type: ignore[union-attr]
        trust(public)
        assert trusted_keys()
    finally:
        os.umask(before)
    for folder in (keys_folder(), keys_folder() / "trusted"):
        assert stat.S_IMODE(folder.stat().st_mode) == 0o700
    assert stat.S_IMODE(keys_folder().parent.stat().st_mode) == 0o755


def test_a_list_of_revoked_keys_that_others_may_write_to_is_refused(theirs: Path) -> None:
    revoke([theirs.stem])
    (keys_folder() / "revoked").chmod(0o666)
    with pytest.raises(HostError, match="everybody may write"):
        trusted_keys()


@pytest.mark.parametrize(
    "end", ["until: 2020-01-01\r\n", "Until: 2020-01-01 \n", "until=2020-01-01\n"]
)
def test_an_end_of_trust_holds_however_it_is_written(theirs: Path, end: str) -> None:
    theirs.write_bytes(end.encode() + theirs.read_bytes())
    assert [key.problem for key in trusted_keys()] == ["expired"]
    theirs.write_bytes(theirs.read_bytes().replace(b"2020-01-01", b"New Year"))
    with pytest.raises(UsageError, match="'New Year' is not a day"):
        trusted_keys()


def test_a_list_of_revoked_keys_is_taken_whole_or_refused(theirs: Path, home: Path) -> None:
    key = read_public(theirs)
    listed = home / "list"
    listed.write_text(f"\ufeff{key.id.upper()}  # lost\r\n\r\n", encoding="utf-8")
    assert revoke([str(listed)]) == (key.id,)
    assert [one.problem for one in trusted_keys()] == ["revoked"]
    for wrong in (f"{key.id}\nsha256:{key.id}\n", "not an id\n", "a" * 100_000):
        listed.write_text(wrong, encoding="utf-8")
        with pytest.raises(UsageError, match=r"is not the id of a key|is too long"):
            revoke([str(listed)])
    os.mkfifo(home / "pipe")
    with pytest.raises(UsageError, match="is not a file"):
        revoke([str(home / "pipe")])
    # Also the list that is kept: a line that is not understood may be a key that is lost.
    (keys_folder() / "revoked").write_text(f"{key.id[:-1]}\n", encoding="utf-8")
    with pytest.raises(UsageError, match="line 1 is not the id of a key"):
        trusted_keys()

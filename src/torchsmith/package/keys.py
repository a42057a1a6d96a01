"""The key this machine signs with, and the public keys of others that are trusted.

    $XDG_DATA_HOME/torchsmith/keys/signing.pem      private, ed25519, made on first use
    $XDG_DATA_HOME/torchsmith/keys/trusted/ID.pem   public; `until: DATE` before it ends the trust
    $XDG_DATA_HOME/torchsmith/keys/revoked          ids of keys that are believed no more

The private key is never printed, logged or copied. What another user can write to is not used.
"""

from __future__ import annotations

import os
import re
import stat
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, date, datetime
from pathlib import Path
from typing import TYPE_CHECKING

from torchsmith.errors import HostError, UsageError
from torchsmith.files import write_result
from torchsmith.inputs import check_file, why_unreadable
from torchsmith.owners import make_folder, read_plain, who_else_writes

if TYPE_CHECKING:
    from securesystemslib.signer import CryptoSigner, SSlibKey

_OTHERS = stat.S_IRWXG | stat.S_IRWXO
# No public key is longer; what is, is something else.
_LONGEST = 1 << 16
_ID = re.compile(r"[0-9a-f]{64}")
# As people write it by hand, too: an end that is not understood is no trust without an end.
_UNTIL = re.compile(
    rb"^[ \t]*until[ \t]*[:=][ \t]*([^\r\n]*?)[ \t]*\r?$", re.MULTILINE | re.IGNORECASE
)


@dataclass(frozen=True, slots=True)
class PublicKey:
    """A key that signatures can be checked with; `public` is its 32 bytes, in hexadecimal."""

    id: str
    public: str
    path: Path
    own: bool = False
    # The last day it is believed on, as 2027-12-31; empty: for good.
    until: str = ""
    revoked: bool = False

    @property
    def problem(self) -> str:
        """Why what it signs is not believed, though it is known; empty if it is."""
        if self.revoked:
            return "revoked"
        return "expired" if self.until and self.until < datetime.now(UTC).date().isoformat() else ""

    @property
    def verifier(self) -> SSlibKey:
        """As what checks signatures wants it."""
        from securesystemslib.signer import SSlibKey

        return SSlibKey(self.id, "ed25519", "ed25519", {"public": self.public})

    @property
    def pem(self) -> str:
        """As files hold it."""
        from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey
        from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat

        key = Ed25519PublicKey.from_public_bytes(bytes.fromhex(self.public))
        return key.public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo).decode()


def keys_folder() -> Path:
    """Where keys lie."""
    data = os.environ.get("XDG_DATA_HOME") or "~/.local/share"
    return Path(data).expanduser() / "torchsmith" / "keys"


def _private() -> Path:
    return keys_folder() / "signing.pem"


def signer() -> CryptoSigner:
    """What signs with this machine's key, which is made if there is none.

    A key that is revoked here signs nothing more: nobody who heard of it would believe it.
    """
    found = _own()
    if found.public_key.keyid in revoked_keys():
        raise HostError(
            f"the signing key {found.public_key.keyid[:16]} is revoked here",
            "`torchsmith key rotate` makes a new one; then run the same command again.",
        )
    return found


def ensure_signer() -> None:
    """Refuse a key that could not sign, before the work that is to be signed."""
    if _private().exists():
        signer()


def _own() -> CryptoSigner:
    from securesystemslib.signer import CryptoSigner

    path = _private()
    _make(path.parent)
    if not path.exists():
        # If another torchsmith is first, its key is everybody's.
        made = CryptoSigner.generate_ed25519()
        write_result(path, made.private_bytes, mode=0o600, replace=False)
    return _load(path)


def _load(path: Path) -> CryptoSigner:
    from cryptography.exceptions import UnsupportedAlgorithm
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
    from cryptography.hazmat.primitives.serialization import load_pem_private_key
    from securesystemslib.signer import CryptoSigner

    try:
        why = _who_else(path.parent)
        mode = path.stat().st_mode
        content = read_plain(path, _LONGEST)
    except OSError as error:
        raise HostError(
            f"the signing key {path} cannot be read: {error.strerror}", "It should be yours."
        ) from None
    if mode & _OTHERS:
        raise HostError(
            f"others can read the signing key {path}: it proves nothing any more",
            f"If nobody had it yet: chmod 600 {path}. If somebody may have: remove it, the next "
            "build makes a new one.",
        )
    if why := why or who_else_writes(path):
        raise HostError(
            f"others can replace the signing key: {why}",
            f"chmod 700 {path.parent}; if the key may be a stranger's, remove it: the next build "
            "makes a new one.",
        )
    try:
        key = load_pem_private_key(content, None)
    except (ValueError, TypeError, UnsupportedAlgorithm):
        key = None
    if not isinstance(key, Ed25519PrivateKey):
        raise HostError(
            f"{path} is not an ed25519 private key",
            "Put the right one there, or remove it: the next build makes a new one.",
        )
    return CryptoSigner(key)


def _make(folder: Path) -> None:
    """Make a folder for keys: for its owner alone, whatever the umask is."""
    try:
        make_folder(folder.parent)
        folder.mkdir(mode=0o700, exist_ok=True)
    except OSError as error:
        raise HostError(
            f"no key can be kept in {folder}: {error.strerror}",
            "Artifacts are signed with a key of yours: set XDG_DATA_HOME to a folder you can "
            "write to.",
        ) from None


def _who_else(folder: Path) -> str:
    """Who else could put keys into a folder, or another folder in its place."""
    for path in (folder, folder.parent):
        if why := who_else_writes(path):
            return why
    for path in folder.parent.parents:
        # In /tmp, which is sticky, everybody may make files and replace only their own.
        if path.stat().st_mode & (stat.S_IWOTH | stat.S_ISVTX) == stat.S_IWOTH:
            return f"everybody may write to {path}"
    return ""


def own_key(*, make: bool = False) -> PublicKey | None:
    """The public half of this machine's key; None where there is none and none is to be made."""
    if not make and not _private().exists():
        return None
    public = _own().public_key
    return PublicKey(
        public.keyid,
        public.keyval["public"],
        _private(),
        own=True,
        revoked=public.keyid in revoked_keys(),
    )


def read_public(path: Path) -> PublicKey:
    """A public key out of a file that a person named."""
    check_file(path, "Name a public key; `torchsmith key export` writes one.")
    with path.open("rb") as file:
        content = file.read(_LONGEST)
    return _public(path, content)


def _public(path: Path, content: bytes) -> PublicKey:
    from cryptography.exceptions import UnsupportedAlgorithm
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey
    from cryptography.hazmat.primitives.serialization import load_pem_public_key
    from securesystemslib.signer import SSlibKey

    if b"PRIVATE KEY" in content:
        raise UsageError(
            f"{path} is a private key, which nobody else should have",
            "Ask for the public one: `torchsmith key export` on the machine that signs.",
        )
    try:
        key = load_pem_public_key(content)
    except (ValueError, TypeError, UnsupportedAlgorithm):
        key = None
    if not isinstance(key, Ed25519PublicKey):
        raise UsageError(
            f"{path} is not an ed25519 public key", "`torchsmith key export` writes one."
        )
    known = SSlibKey.from_crypto(key)
    until = _UNTIL.search(content)
    return PublicKey(
        known.keyid,
        known.keyval["public"],
        path,
        until=_day(until[1].decode("ascii", "replace")) if until else "",
        revoked=known.keyid in revoked_keys(),
    )


def _day(text: str) -> str:
    try:
        return date.fromisoformat(text).isoformat()
    except ValueError:
        raise UsageError(f"{text!r} is not a day", "Write it as 2027-12-31.") from None


def trust(path: Path, until: str = "") -> PublicKey:
    """Trust what a key signed from now on, to the end of a day if one is named."""
    key = read_public(path)
    if key.revoked:
        raise UsageError(
            f"{key.id} was revoked here", f"If that was a mistake, take it out of {_revoked()}."
        )
    return _keep(key, _day(until) if until else key.until)


def _keep(key: PublicKey, until: str = "") -> PublicKey:
    folder = keys_folder() / "trusted"
    _make(keys_folder())
    _make(folder)
    kept = folder / f"{key.id}.pem"
    head = f"until: {until}\n" if until else ""
    write_result(kept, f"{head}{key.pem}".encode())
    return PublicKey(key.id, key.public, kept, until=until)


def trusted_keys() -> tuple[PublicKey, ...]:
    """This machine's own key, where it has one, and those its user trusts.

    Expired and revoked ones are among them, marked as such: whose they are can still be said.
    """
    own = own_key()
    others = _others(keys_folder() / "trusted")
    return (*([own] if own else []), *others)


def _others(folder: Path) -> list[PublicKey]:
    if not folder.is_dir():
        return []
    advice = (
        f"Look through {folder}, remove what you did not put there, and make it yours alone: "
        "chown, chmod -R go-w."
    )
    return [
        _public(path, _own_file(path, "a trusted key", advice))
        for path in sorted(folder.glob("*.pem"))
    ]


def _own_file(path: Path, what: str, advice: str) -> bytes:
    """A file of this folder that nobody else can have written."""
    try:
        why = _who_else(path.parent) or who_else_writes(path)
        content = b"" if why else read_plain(path, _LONGEST)
    except OSError as error:
        raise HostError(
            f"{what} cannot be read, {path}: {error.strerror}", "Remove it, or mend its rights."
        ) from None
    if why:
        raise HostError(f"somebody else may have written {what}: {why}", advice)
    return content


def _revoked() -> Path:
    return keys_folder() / "revoked"


def revoked_keys() -> frozenset[str]:
    """The ids of keys that are believed no more."""
    path = _revoked()
    if not path.exists() and not path.is_symlink():
        return frozenset()
    return frozenset(_ids(_own_file(path, "the list of revoked keys", f"chmod 600 {path}"), path))


def _ids(content: bytes, path: Path) -> list[str]:
    lines = content.decode("utf-8-sig", "replace").splitlines()
    words = [line.partition("#")[0].strip().lower() for line in lines]
    for number, word in enumerate(words, 1):
        if word and not _ID.fullmatch(word):
            # To pass over a line would be to go on believing a key that was to be revoked.
            raise UsageError(
                f"{path}: line {number} is not the id of a key: {word[:80]!r}",
                "One id a line, 64 hexadecimal digits; # begins a note.",
            )
    return [word for word in words if word]


def revoke(keys: Sequence[str]) -> tuple[str, ...]:
    """Stop trusting keys: each an id, a file with a public key, or a list of ids."""
    wanted: list[str] = []
    for key in keys:
        if _ID.fullmatch(key):
            wanted.append(key)
            continue
        path = Path(key)
        if reason := why_unreadable(path):
            raise UsageError(
                f"{key} is neither the id of a key nor a file: it {reason}",
                "`torchsmith key list` shows the ids.",
            )
        with path.open("rb") as file:
            content = file.read(_LONGEST + 1)
        if len(content) > _LONGEST:
            raise UsageError(f"{key} is too long for a list of ids", "Split it into several.")
        found = [read_public(path).id] if b"-----BEGIN" in content else _ids(content, path)
        if not found:
            raise UsageError(f"{key} names no key", "A list has one id a line; # begins a note.")
        wanted += found
    every = sorted({*revoked_keys(), *wanted})
    _make(keys_folder())
    write_result(_revoked(), "".join(f"{key}\n" for key in every).encode(), mode=0o600)
    return tuple(dict.fromkeys(wanted))


def rotate() -> tuple[PublicKey, PublicKey]:
    """Sign with a new key from now on; returns the old one, still believed, and the new one.

    The old private key is gone afterwards: nothing can be signed with it any more.
    """
    from securesystemslib.signer import CryptoSigner

    old = own_key()
    if old is None:
        raise UsageError("this machine has no key yet", "The first build makes one.")
    # Believed before it is replaced: what it signed must not be without a key for a moment.
    kept = _keep(old)
    write_result(_private(), CryptoSigner.generate_ed25519().private_bytes, mode=0o600)
    new = own_key()
    assert new is not None
    return kept, new

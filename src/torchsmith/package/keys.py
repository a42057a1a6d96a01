"""The key this machine signs with, and the public keys of others that are trusted.

    $XDG_DATA_HOME/torchsmith/keys/signing.pem      private, ed25519, made on first use
    $XDG_DATA_HOME/torchsmith/keys/trusted/ID.pem   public

The private key is never printed, logged or copied.
"""

from __future__ import annotations

import os
import stat
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from torchsmith.errors import HostError, UsageError
from torchsmith.package.whole import write_whole

if TYPE_CHECKING:
    from securesystemslib.signer import CryptoSigner, SSlibKey

_OTHERS = stat.S_IRWXG | stat.S_IRWXO
_OTHERS_WRITE = stat.S_IWGRP | stat.S_IWOTH
# No public key is longer; what is, is something else.
_LONGEST = 1 << 16


@dataclass(frozen=True, slots=True)
class PublicKey:
    """A key that signatures can be checked with; `public` is its 32 bytes, in hexadecimal."""

    id: str
    public: str
    path: Path
    own: bool = False

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
    """What signs with this machine's key, which is made if there is none."""
    from securesystemslib.signer import CryptoSigner

    path = _private()
    try:
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    except OSError as error:
        raise HostError(
            f"no key can be made in {path.parent}: {error.strerror}",
            "Artifacts are signed with a key of yours: set XDG_DATA_HOME to a folder you can "
            "write to.",
        ) from None
    if not path.exists():
        # If another torchsmith is first, its key is everybody's.
        made = CryptoSigner.generate_ed25519()
        write_whole(path, made.private_bytes, mode=0o600, replace=False)
    return _load(path)


def _load(path: Path) -> CryptoSigner:
    from cryptography.exceptions import UnsupportedAlgorithm
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
    from cryptography.hazmat.primitives.serialization import load_pem_private_key
    from securesystemslib.signer import CryptoSigner

    try:
        folder = path.parent.stat().st_mode
        mode = path.stat().st_mode
        content = path.read_bytes()
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
    if folder & _OTHERS_WRITE:
        raise HostError(
            f"others can replace the signing key: they may write to {path.parent}",
            f"chmod 700 {path.parent}",
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


def own_key(*, make: bool = False) -> PublicKey | None:
    """The public half of this machine's key; None where there is none and none is to be made."""
    if not make and not _private().exists():
        return None
    public = signer().public_key
    return PublicKey(public.keyid, public.keyval["public"], _private(), own=True)


def read_public(path: Path) -> PublicKey:
    """A public key out of a file."""
    from cryptography.exceptions import UnsupportedAlgorithm
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey
    from cryptography.hazmat.primitives.serialization import load_pem_public_key
    from securesystemslib.signer import SSlibKey

    try:
        with path.open("rb") as file:
            content = file.read(_LONGEST)
    except OSError as error:
        raise UsageError(f"{path} cannot be read: {error.strerror}") from None
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
    return PublicKey(known.keyid, known.keyval["public"], path)


def trust(path: Path) -> PublicKey:
    """Believe what a key signed from now on."""
    key = read_public(path)
    folder = keys_folder() / "trusted"
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    except OSError as error:
        raise HostError(f"{folder} cannot be made: {error.strerror}") from None
    kept = folder / f"{key.id}.pem"
    write_whole(kept, key.pem.encode())
    return PublicKey(key.id, key.public, kept)


def trusted_keys() -> tuple[PublicKey, ...]:
    """This machine's own key, where it has one, and those it was told to trust."""
    own = own_key()
    others = map(read_public, sorted((keys_folder() / "trusted").glob("*.pem")))
    return (*([own] if own else []), *others)

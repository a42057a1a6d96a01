"""Where passwords for uploads come from: the environment first, then the keyring."""

from __future__ import annotations

from collections.abc import Iterator

import keyring
import pytest
from keyring.backend import KeyringBackend
from keyring.errors import PasswordDeleteError

from torchsmith.errors import UsageError
from torchsmith.ship.uploads import secret

pytestmark = pytest.mark.unit

WHERE = ("TWINE_PASSWORD", "https://pypi.example.org/", "ann")


class InMemory(KeyringBackend):
    """A keyring that forgets: this machine need not have one that keeps."""

    priority = 1.0

    def __init__(self) -> None:
        self.kept: dict[tuple[str, str], str] = {}

    def get_password(self, service: str, username: str) -> str | None:
        return self.kept.get((service, username))

    def set_password(self, service: str, username: str, password: str) -> None:
        self.kept[service, username] = password

    def delete_password(self, service: str, username: str) -> None:
        if self.kept.pop((service, username), None) is None:
            raise PasswordDeleteError(service)


@pytest.fixture(autouse=True)
def _own_keyring(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.delenv("TWINE_PASSWORD", raising=False)
    before = keyring.get_keyring()
    keyring.set_keyring(InMemory())
    yield
    keyring.set_keyring(before)


def test_what_waskept_with_keyring_is_found() -> None:
    keyring.set_password("https://pypi.example.org/", "ann", "from the keyring")
    assert secret(*WHERE) == "from the keyring"


def test_the_environment_comes_first(monkeypatch: pytest.MonkeyPatch) -> None:
    keyring.set_password("https://pypi.example.org/", "ann", "from the keyring")
    monkeypatch.setenv("TWINE_PASSWORD", "from the environment")
    assert secret(*WHERE) == "from the environment"


def test_without_either_the_two_ways_are_told() -> None:
    with pytest.raises(UsageError) as told:
        secret(*WHERE)
    assert "TWINE_PASSWORD" in told.value.hint
    assert "keyring set https://pypi.example.org/ ann" in told.value.hint

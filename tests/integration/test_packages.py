"""System packages: what is missing is told with the command that brings it."""

from __future__ import annotations

import pytest

from torchsmith.engine.preflight import add_packages, ensure_packages, missing_packages
from torchsmith.errors import HostError

pytestmark = pytest.mark.integration


def test_an_installed_package_is_not_missing_and_an_unknown_one_is() -> None:
    assert missing_packages(["dpkg", "no-such-package-here", "apt"]) == ["no-such-package-here"]
    assert missing_packages([]) == []
    ensure_packages(["dpkg", "apt"], install=False)


def test_the_command_that_mends_it_is_told() -> None:
    with pytest.raises(HostError) as told:
        ensure_packages(["no-such-package-here"], install=False)
    assert "no-such-package-here" in told.value.message
    assert "apt-get install" in told.value.hint


def test_a_package_nobody_has_is_said_to_be_so() -> None:
    with pytest.raises(HostError):
        ensure_packages(["no-such-package-here"], install=True)


def test_what_is_only_of_use_may_be_missing() -> None:
    add_packages(["no-such-package-here"])

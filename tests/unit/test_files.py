"""Files that appear whole or not at all."""

from __future__ import annotations

import stat
from pathlib import Path

import pytest

from torchsmith.errors import OutputError, UsageError
from torchsmith.files import whole_file, write_result, write_whole
from torchsmith.inputs import one_file

pytestmark = pytest.mark.unit


def test_a_file_that_is_not_written_to_its_end_leaves_the_old_one(tmp_path: Path) -> None:
    path = tmp_path / "note"
    write_whole(path, b"old")

    def stop_halfway() -> None:
        with whole_file(path) as file:
            file.write(b"half of the new")
            raise RuntimeError

    with pytest.raises(RuntimeError):
        stop_halfway()
    assert path.read_bytes() == b"old"
    assert list(tmp_path.iterdir()) == [path]


def test_a_private_file_is_private_while_it_is_written(tmp_path: Path) -> None:
    path = tmp_path / "folder" / "key"
    with whole_file(path, mode=0o600) as file:
        (part,) = path.parent.iterdir()
        assert stat.S_IMODE(part.stat().st_mode) == 0o600
        file.write(b"secret")
    assert stat.S_IMODE(path.stat().st_mode) == 0o600


def test_a_file_that_is_not_to_be_replaced_stays(tmp_path: Path) -> None:
    path = tmp_path / "key"
    write_result(path, b"first", replace=False)
    write_result(path, b"second", replace=False)
    assert path.read_bytes() == b"first"
    assert list(tmp_path.iterdir()) == [path]


def test_a_result_that_cannot_be_written_is_said_to_be(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"")
    with pytest.raises(OutputError, match="cannot be written"):
        write_result(tmp_path / "file" / "below", b"content")


def test_a_pattern_stands_for_one_file(tmp_path: Path) -> None:
    wheel = tmp_path / "demo-1.0.whl"
    wheel.write_bytes(b"")
    assert one_file(str(tmp_path / "demo-*.whl")) == wheel
    with pytest.raises(UsageError, match="but matches none"):
        one_file(str(tmp_path / "other-*.whl"))
    (tmp_path / "demo-2.0.whl").write_bytes(b"")
    with pytest.raises(UsageError, match="must match one file"):
        one_file(str(tmp_path / "demo-*.whl"))

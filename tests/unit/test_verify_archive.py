"""A static library is read member by member: what it defines, and nothing that is not there."""

from __future__ import annotations

import io
import subprocess
from pathlib import Path

import pytest

from torchsmith.errors import VerificationError
from torchsmith.plan.expects import Expects
from torchsmith.verify.verify import members, verify_archive

pytestmark = pytest.mark.unit


@pytest.fixture
def library(tmp_path: Path) -> Path:
    (tmp_path / "a.c").write_text("int magma_init(void) { return 0; } int missing(void);\n")
    (tmp_path / "a_name_too_long_for_its_header.c").write_text(
        "int missing(void); static int hidden(void) { return 1; }\n"
        "int other(void) { return missing() + hidden(); }\n"
    )
    names = ["a", "a_name_too_long_for_its_header"]
    for name in names:
        subprocess.run(["gcc", "-c", f"{name}.c"], cwd=tmp_path, check=True)
    subprocess.run(
        ["ar", "cr", "libmagma.a", *(f"{name}.o" for name in names)], cwd=tmp_path, check=True
    )
    return tmp_path / "libmagma.a"


def test_what_it_defines_is_found(library: Path) -> None:
    made = verify_archive(library, Expects(package="magma", symbols=("magma_init", "other")))
    assert made.rating == "pass"
    assert made.check("objects").found == "2"


@pytest.mark.parametrize("name", ["missing", "hidden", "nowhere"])
def test_what_it_only_calls_or_keeps_to_itself_is_not(library: Path, name: str) -> None:
    made = verify_archive(library, Expects(package="magma", symbols=("other", name)))
    assert [check.name for check in made.failed] == ["functions"]
    assert name in made.failed[0].found


def test_missing_gpu_code_is_told(library: Path) -> None:
    made = verify_archive(library, Expects(package="magma", symbols=("other",), archs=("sm_90",)))
    (failed,) = made.failed
    assert (failed.found, failed.wanted) == ("none", "sm_90")


@pytest.mark.parametrize("keep", [0, 7, 30, 70, -3])
def test_a_library_that_is_cut_short_is_an_error(library: Path, keep: int) -> None:
    library.write_bytes(library.read_bytes()[:keep])
    with pytest.raises(VerificationError, match="cannot be read"):
        verify_archive(library, Expects(package="magma", symbols=("other",)))


def test_a_wheel_is_no_archive() -> None:
    with pytest.raises(ValueError, match="not an archive"):
        list(members(io.BytesIO(b"PK\x03\x04")))

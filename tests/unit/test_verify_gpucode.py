"""The GPU code in a package is read from its bytes and held against the GPUs asked for."""

from __future__ import annotations

import io
import struct

import pytest
from elftools.elf.elffile import ELFFile

from torchsmith.checks import Check
from torchsmith.plan.expects import Expects
from torchsmith.verify.binary import Library, read_bytes
from torchsmith.verify.compare import judge_gpu_code
from torchsmith.verify.fatbin import gpu_code

pytestmark = pytest.mark.unit

PTX, CUBIN = 1, 2
ASKED = Expects(cuda="13.0", archs=("sm_90",), arch_list="9.0")


def entry(kind: int, arch: int, flags: int = 0x11, payload: int = 24, more: int = 0) -> bytes:
    """An entry as nvcc writes it; `more` stands for the options it may have in its header."""
    length = 64 + more
    head = struct.pack("<HHIQII", kind, 0x101, length, payload, 0, 64 if more else 0)
    head += struct.pack("<HHIIIQQQ", 8, 1, arch, 0, 0, flags, 0, 0)
    return head + bytes(more) + b"\xaa" * payload


def fatbin(*entries: bytes) -> bytes:
    body = b"".join(entries)
    return struct.pack("<IHHQ", 0xBA55ED50, 1, 16, len(body)) + body


def library(content: bytes, name: str = ".nv_fatbin") -> bytes:
    """An ELF shared object with nothing in it but this section and the table of names."""
    names = b"\0.shstrtab\0" + name.encode() + b"\0"
    start = 64
    table = start + len(content) + len(names)
    header = b"\x7fELF\x02\x01\x01" + bytes(9)
    header += struct.pack("<HHIQQQIHHHHHH", 3, 62, 1, 0, 0, table, 0, 64, 56, 0, 64, 3, 1)

    def section(at: int, kind: int, offset: int, size: int) -> bytes:
        return struct.pack("<IIQQQQIIQQ", at, kind, 0, 0, offset, size, 0, 0, 8, 0)

    return (
        header
        + content
        + names
        + bytes(64)
        + section(1, 3, start + len(content), len(names))
        + section(11, 1, start, len(content))
    )


def code(content: bytes, name: str = ".nv_fatbin") -> tuple[str, ...]:
    return gpu_code(ELFFile(io.BytesIO(library(content, name))))


def test_cubins_and_ptx_are_named_as_nvcc_names_them() -> None:
    found = code(fatbin(entry(CUBIN, 90), entry(PTX, 80, more=16), entry(CUBIN, 120)))
    assert found == ("compute_80", "sm_90", "sm_120")


def test_code_for_one_gpu_or_one_family_is_told_apart() -> None:
    content = fatbin(entry(CUBIN, 90, 0x10_0011), entry(PTX, 100, 0x20_8011), entry(CUBIN, 90))
    assert code(content) == ("sm_90", "sm_90a", "compute_100f")


def test_every_file_that_was_linked_counts() -> None:
    content = fatbin(entry(CUBIN, 80)) + bytes(8) + fatbin(entry(CUBIN, 90)) + bytes(16)
    assert code(content) == ("sm_80", "sm_90")


def test_code_that_is_linked_apart_counts() -> None:
    assert code(fatbin(entry(CUBIN, 90)), "__nv_relfatbin") == ("sm_90",)


def test_a_library_without_gpu_code_has_none() -> None:
    assert code(fatbin(entry(CUBIN, 90)), ".rodata") == ()
    assert code(b"") == ()


@pytest.mark.parametrize(
    ("content", "why"),
    [
        (fatbin(entry(CUBIN, 90))[:-8], "cut short"),
        (struct.pack("<IHHQ", 0xBA55ED50, 1, 16, 80) + entry(CUBIN, 90, payload=900), "cut short"),
        (struct.pack("<IHHQ", 0xBA55ED50, 1, 0, 0), "cut short"),
        (b"something else entirely", "not a fat binary"),
    ],
)
def test_what_cannot_be_read_is_said_and_the_library_is_still_judged(
    content: bytes, why: str
) -> None:
    found = read_bytes("ops.so", library(content))
    assert found is not None
    assert not found.broken
    assert why in found.gpu_unread
    (check,) = judge_gpu_code("ops", [found])
    assert (check.status, check.name) == ("warn", "ops")


def judged(name: str, *found: str, asked: Expects | None = ASKED) -> Check:
    (check,) = judge_gpu_code(name, [Library("a.so", gpu=found), Library("b.so")], asked)
    return check


def test_exactly_what_was_asked_for_passes() -> None:
    assert judged("ops", "sm_90").status == "pass"
    with_ptx = Expects(cuda="13.0", archs=("sm_80", "sm_90", "compute_90"))
    assert judged("ops", "sm_80", "sm_90", "compute_90", asked=with_ptx).status == "pass"


@pytest.mark.parametrize("found", [("sm_80",), ("sm_80", "sm_90"), ("compute_90", "sm_90")])
def test_another_gpu_or_one_too_many_fails(found: tuple[str, ...]) -> None:
    check = judged("torchvision", *found)
    assert check.status == "fail"
    assert (check.found, check.wanted) == (" ".join(found), "sm_90")
    assert "TORCH_CUDA_ARCH_LIST='9.0'" in check.cure


def test_torch_may_hold_special_code_of_a_gpu_asked_for() -> None:
    assert judged("torch", "sm_90", "sm_90a").status == "pass"
    assert judged("torch", "sm_80", "sm_90").status == "warn"
    assert judged("torch", "sm_80").status == "fail"


def test_only_an_extension_may_have_no_gpu_code() -> None:
    assert judged("ops").status == "warn"
    assert judged("torchvision").status == "fail"


def test_without_a_recipe_it_is_told_where_there_is_any() -> None:
    check = judged("ops", "sm_80", "sm_90", asked=None)
    assert (check.status, check.found) == ("info", "sm_80 sm_90, in a.so")
    assert not list(judge_gpu_code("ops", [Library("b.so")], None))

"""How far results lie apart: worked out by hand."""

from __future__ import annotations

import base64
import math
import struct

import pytest
from tests.unit.conftest import Run

from torchsmith.bench.parity import distance, pools, unpack
from torchsmith.bench.worker.operators import EXCLUDED, table

pytestmark = pytest.mark.unit


def f32(*values: float) -> bytes:
    return struct.pack(f"<{len(values)}f", *values)


def after(value: float, steps: int) -> float:
    """The float32 so many places further."""
    number = struct.unpack("<I", struct.pack("<f", value))[0] + steps
    return float(struct.unpack("<f", struct.pack("<I", number))[0])


def test_the_inputs_are_the_same_every_time() -> None:
    assert pools(1) == pools(1)
    assert pools(1) != pools(2)
    wide = unpack("float32", base64.b64decode(pools(1)["float32"]))
    narrow = unpack("bfloat16", base64.b64decode(pools(1)["bfloat16"]))
    assert all(abs(a - b) <= abs(a) / 128 for a, b in zip(wide, narrow, strict=True))
    assert abs(sum(wide) / len(wide)) < 0.1


def test_the_same_bits_are_identical() -> None:
    assert distance("float32", f32(1, math.nan), f32(1, math.nan), 1).identical


def test_neighbours_are_one_unit_apart_also_across_zero() -> None:
    found = distance("float32", f32(1.0), f32(after(1.0, 1)), 1)
    assert (found.ulps, found.beyond, found.identical) == (1, False, False)
    least = struct.unpack("<f", struct.pack("<I", 1))[0]
    assert distance("float32", f32(-least), f32(least), 1).ulps == 2
    assert distance("bfloat16", b"\x80\x3f", b"\x81\x3f", 1).ulps == 1


def test_what_rounding_does_not_explain_is_beyond() -> None:
    assert not distance("float32", f32(1.0), f32(1.00001), 1).beyond
    found = distance("float32", f32(1.0), f32(1.001), 1)
    assert found.beyond
    assert found.relative == pytest.approx(0.001, rel=0.01)
    assert not distance("float32", f32(1.0), f32(1.001), 100).beyond
    # From nothing to something is all of it.
    assert distance("float32", f32(0.0), f32(1e-9), 1).relative == 1.0
    # Next to large results a small one is as exact as they are.
    assert not distance("float32", f32(1000, 1.0), f32(1000, 1.0005), 1).beyond


def test_not_a_number_on_one_side_is_beyond_everything() -> None:
    for value in (math.nan, math.inf):
        found = distance("float32", f32(1.0), f32(value), 1e9)
        assert found.beyond
        assert found.detail == f"1.0 against {value}"


def test_whole_numbers_have_to_be_equal() -> None:
    one, other = struct.pack("<2q", 1, 2), struct.pack("<2q", 1, 3)
    assert distance("int64", one, other, 100).beyond
    assert distance("int64", one, one, 1).identical


def test_half_precision_is_not_loosened_further() -> None:
    one, other = struct.pack("<e", 1.0), struct.pack("<e", 1.05)
    assert distance("float16", one, other, 1000).beyond


def test_there_are_many_operators_and_reasons_for_those_left_out() -> None:
    operators = table()
    assert len(operators) >= 200
    assert not set(operators) & set(EXCLUDED)
    assert all(EXCLUDED.values())


def test_operators_are_listed_and_wrong_names_refused(run: Run) -> None:
    assert "float32   conv2d" in run("parity", "--operators")[1]
    assert run("parity", "--operators", "--operator", "conv2d")[1].count("\n") == 4
    assert "not compared: random" in run("parity", "/a", "/b", "--operator", "dropout")[2]
    assert "no operator 'conv9d'" in run("parity", "/a", "/b", "--operator", "conv9d")[2]
    assert "no type 'int3'" in run("parity", "/a", "/b", "--dtype", "int3")[2]
    assert run("parity", "/a", "/b", "/c")[0] == 2

"""Reading build.ninja."""

from __future__ import annotations

from pathlib import Path

import pytest

from torchsmith.toolchain.accel.ninja_file import escaped, plain, read_statements
from torchsmith.toolchain.accel.unit import macros_of, unit_text

pytestmark = pytest.mark.unit


def test_a_statement_is_read_with_its_variables_and_kinds_of_inputs() -> None:
    lines = [
        "rule CXX",
        "  command = c++ $in",
        "build a$ b.o: CXX ../a$ b.cpp | gen$:x.h || order",
        "  FLAGS = -O2",
        "  DEFINES = -DX",
        "",
        "build all: phony a$ b.o",
    ]
    first, second = read_statements(lines)
    assert (first.first, first.last) == (2, 4)
    assert first.outputs == ("a$ b.o",)
    assert first.rule == "CXX"
    assert first.inputs == ("../a$ b.cpp",)
    assert first.implicit == ("gen$:x.h",)
    assert first.order_only == ("order",)
    assert second.rule == "phony"


def test_a_statement_over_several_lines_is_one() -> None:
    (statement,) = read_statements(["build x.o: CXX $", "    x.cpp", "  FLAGS = 1"])
    assert statement.inputs == ("x.cpp",)
    assert (statement.first, statement.last) == (0, 2)


def test_statements_ninja_alone_can_read_are_left_to_it() -> None:
    assert read_statements(["build $dir/x.o: CXX x.cpp"]) == []
    assert read_statements(["build x.o: CXX x.cpp |@ check"]) == []
    assert read_statements(["build x.o | x.d: CXX x.cpp"]) == []


@pytest.mark.parametrize("name", ["plain.cpp", "a b.cpp", "c:d", "do$lar", "a|b"])
def test_names_survive_escaping(name: str) -> None:
    assert plain(escaped(name)) == name


def test_a_files_own_macros_are_put_back_after_it(tmp_path: Path) -> None:
    kernel = tmp_path / "kernel.cpp"
    kernel.write_text("#define TORCH_ASSERT_NO_OPERATORS\n  # define X(a) a\n#undef Y\nint z;\n")
    wrapper = tmp_path / "kernel.cpp.DEFAULT.cpp"
    wrapper.write_text(f'#include "{kernel}"\n')
    assert macros_of(wrapper) == ("TORCH_ASSERT_NO_OPERATORS", "X", "Y")
    text = unit_text([wrapper], tmp_path / "build/ours")
    assert f'#include "../../{wrapper.name}"' in text
    assert text.index('push_macro("X")') < text.index("#include") < text.index('pop_macro("X")')

"""Which headers a file reads, and which of them are worth compiling."""

from __future__ import annotations

from pathlib import Path

import pytest

from torchsmith.toolchain.accel.gcc_command import find_compile, kind_of, read_compile
from torchsmith.toolchain.accel.precompiled import FEWEST, Includes, choose, early_macros, tops

pytestmark = pytest.mark.unit

MANY = FEWEST + 4


def write(folder: Path, **texts: str) -> dict[str, str]:
    folder.mkdir(exist_ok=True)
    for name, text in texts.items():
        (folder / f"{name}.h").write_text(text)
    return {name: str((folder / f"{name}.h").resolve()) for name in texts}


def includes(tmp_path: Path, *defined: str, **texts: str) -> tuple[Includes, dict[str, str]]:
    names = write(tmp_path / "include", **texts)
    return Includes([str((tmp_path / "include").resolve())], defined), names


def test_a_file_reads_what_its_headers_include(tmp_path: Path) -> None:
    found, at = includes(tmp_path, a='#include "b.h"\n', b="#include <c.h>\n", c="#include <map>\n")
    assert list(found.closure(at["a"])) == [at["a"], at["b"], at["c"], "<map>"]


def test_headers_in_a_circle_are_read_once(tmp_path: Path) -> None:
    found, at = includes(tmp_path, a="#include <b.h>\n", b="#include <a.h>\n")
    assert list(found.closure(at["b"])) == [at["b"], at["a"]]


def test_what_stands_under_a_condition_counts_where_it_can_be_decided(tmp_path: Path) -> None:
    text = (
        "#pragma once\n#ifdef EACH\n#include <yes.h>\n#else\n#include <no.h>\n#endif\n"
        "#ifndef EACH\n#include <no.h>\n#endif\n#if defined(EACH)\n#include <one.h>\n#endif\n"
        "#if !defined(_WIN32)\n#include <two.h>\n#endif\n#if 0\n#include <no.h>\n#endif\n"
    )
    empty = dict.fromkeys(("yes", "no", "one", "two"), "")
    found, at = includes(tmp_path, "EACH", a=text, **empty)
    assert found.of(at["a"]) == (at["yes"], at["one"], at["two"])


def test_what_nobody_can_decide_is_left_out(tmp_path: Path) -> None:
    text = (
        "#if SOMETHING > 3\n#include <b.h>\n#elif OTHER\n#include <b.h>\n#else\n#include <b.h>\n"
        "#endif\n#ifdef UNKNOWN\n#include <b.h>\n#else\n#include <b.h>\n#endif\n"
        "/* #include <b.h> */\n// #include <b.h>\n#include HEADER\n"
    )
    found, at = includes(tmp_path, a=text, b="")
    assert found.of(at["a"]) == ()


def test_what_stands_within_braces_means_something_else(tmp_path: Path) -> None:
    text = (
        'extern "C" {\n#include <b.h>\n}\nstruct A { int x = 0; };\n#include <c.h>\n'
        "namespace x {\n#include <b.h>\n}\n#include <d.h>\n"
    )
    found, at = includes(tmp_path, a=text, b="", c="", d="")
    assert found.of(at["a"]) == (at["c"], at["d"])


def test_a_guard_is_no_condition(tmp_path: Path) -> None:
    guarded = "#ifndef A_H\n#define A_H\n#include <b.h>\n#endif\n"
    other = "#if !defined(C_H)\n#define C_H\n#include <b.h>\n#endif\n"
    found, at = includes(tmp_path, a=guarded, c=other, b="")
    assert found.of(at["a"]) == found.of(at["c"]) == (at["b"],)


def test_a_header_beside_the_file_comes_before_one_on_the_search_path(tmp_path: Path) -> None:
    beside = write(tmp_path / "source", a='#include "b.h"\n', b="")
    found, _ = includes(tmp_path, b="")
    assert found.of(beside["a"]) == (beside["b"],)
    assert found.spelling(beside["b"]) is None


def test_headers_that_all_read_are_chosen_and_larger_sets_for_those_who_read_them() -> None:
    few = [{"core", "rare"}] * FEWEST
    units = [{"core"}] * MANY + [{"core", "functions"}] * MANY + few
    sizes = {"core": 1_000, "functions": 9_000, "rare": 1}
    assert choose(units, sizes) == (frozenset({"core", "functions"}), frozenset({"core"}))


def test_what_few_read_is_not_worth_it() -> None:
    assert choose([{"a"}] * (FEWEST - 1), {"a": 1_000_000}) == ()
    assert choose([], {}) == ()


def test_the_choice_does_not_depend_on_the_order_in_which_headers_are_read() -> None:
    units = [["a", "b", f"own{number}"] for number in range(MANY)]
    units += [["b", "c", f"other{number}"] for number in range(MANY)]
    sizes = {"a": 100, "b": 100, "c": 100}
    again = [unit[::-1] for unit in units]
    assert choose(units, sizes) == choose(again, sizes)


def test_as_few_headers_are_included_as_read_all() -> None:
    graph = {"top": ("middle",), "middle": ("low",), "low": (), "other": ()}
    assert tops(set(graph), graph, ["low", "other", "top", "middle"]) == ("other", "top")


def test_of_headers_in_a_circle_one_is_included() -> None:
    graph = {"a": ("b",), "b": ("c",), "c": ("a",)}
    assert tops(set(graph), graph, ["b", "c", "a"]) == ("b",)


def test_macros_before_the_last_include_count(tmp_path: Path) -> None:
    path = tmp_path / "a.cpp"
    path.write_text("#define FIRST\n#include <a>\n#undef NDEBUG\n#include <b>\n#define LATE 1\n")
    assert early_macros([str(path)]) == {"FIRST", "NDEBUG"}


def test_a_command_is_of_the_kind_its_options_make_it() -> None:
    one = ["g++", "-DA", "-O2", "-Iinclude", "-c", "a.cpp", "-o", "a.o", "-MD", "-MF", "a.o.d"]
    other = ["/usr/bin/g++", "-Iinclude", "-O2", "-D", "A", "-c", "b.cpp", "-o", "b.o"]
    first, second = read_compile(one), read_compile([*other[:3], "-DA", *other[5:]])
    assert first is not None
    assert second is not None
    assert first.kind == second.kind
    assert (first.source, first.dependencies, first.target) == ("a.cpp", "a.o.d", "a.o")
    third = read_compile([word.replace("-O2", "-O3") for word in one])
    assert third is not None
    assert third.kind != first.kind
    launched = find_compile(["python", "-I", "launch.py", "ccache", *one])
    assert launched == first
    assert kind_of(["\x01in\x01" if word == "a.cpp" else word for word in one]) == first.kind


def test_other_commands_are_left_alone() -> None:
    assert read_compile(["g++", "-c", "a.cpp", "b.cpp"]) is None
    assert read_compile(["g++", "-E", "a.cpp"]) is None
    assert read_compile(["g++", "-include", "x.h", "-c", "a.cpp"]) is None
    assert read_compile(["clang++", "-c", "a.cpp"]) is None
    assert read_compile(["nvcc", "-c", "a.cu"]) is None
    assert read_compile(["gcc", "-c", "a.c"]) is None


@pytest.mark.parametrize(
    ("condition", "counts"),
    [
        ("#ifdef _MSC_VER", False),
        ("#if defined(_WIN32)  // there", False),
        ("# if defined _WIN32", False),
        ("#ifndef _MSC_VER", True),
        ("#if defined(_WIN32) || defined(__linux__)", True),
        ("#ifdef _WIN32_SOMETHING", True),
    ],
)
def test_macros_for_another_compiler_do_not_count(
    tmp_path: Path, condition: str, counts: bool
) -> None:
    path = tmp_path / "a.cpp"
    block = f"{condition}\n#undef copysign\nint x;\n#endif  // there\n"
    path.write_text(f'{block}#define FIRST\n#include "a.h"\n')
    assert early_macros([str(path)]) == ({"FIRST", "copysign"} if counts else {"FIRST"})


def test_the_other_half_of_a_condition_counts(tmp_path: Path) -> None:
    path = tmp_path / "a.cpp"
    path.write_text('#ifdef _WIN32\n#define A\n#else\n#define B\n#endif\n#include "a.h"\n')
    assert early_macros([str(path)]) == {"A", "B"}

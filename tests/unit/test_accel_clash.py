"""Which file of a batch the compiler complains about: its words, as gcc 12 writes them."""

from __future__ import annotations

from pathlib import Path

import pytest

from torchsmith.toolchain.accel.clash import Clash, alike, find_clashes

pytestmark = pytest.mark.unit

MEMBERS = {
    "/s/a.cpp": "../a.cpp",
    "/s/b.cpp": "../b.cpp",
    "/s/c.cpp": "../c.cpp",
    "/b/k.cpp.DEFAULT.cpp": "k.cpp.DEFAULT.cpp",
    "/s/k.cpp": "k.cpp.DEFAULT.cpp",
}


def found(said: str) -> tuple[Clash, ...]:
    return tuple(Clash(clash.file, clash.other) for clash in find_clashes(said, MEMBERS, "/build"))


def test_the_later_of_two_definitions_is_at_fault_and_the_earlier_is_named() -> None:
    said = """\
In file included from /b/u.cpp:3:
/s/b.cpp:4:12: error: redefinition of ‘int helper()’
    4 | static int helper() { return 2; }
      |            ^~~~~~
In file included from /b/u.cpp:1:
/s/a.cpp:4:12: note: ‘int helper()’ previously defined here
"""
    assert found(said) == (Clash("../b.cpp", "../a.cpp"),)


def test_paths_are_said_relative_to_where_the_compiler_ran() -> None:
    said = """\
In file included from torchsmith-batches/u.cpp:3:
torchsmith-batches/../../s/b.cpp:4:12: error: redefinition of ‘int helper()’
In file included from torchsmith-batches/u.cpp:1:
torchsmith-batches/../../s/a.cpp:4:12: note: ‘int helper()’ previously defined here
"""
    assert found(said) == (Clash("../b.cpp", "../a.cpp"),)


def test_an_error_in_a_header_is_the_file_that_includes_it() -> None:
    said = """\
In file included from /s/twice.h:1,
                 from /s/c.cpp:2,
                 from /b/u.cpp:5:
/s/once.h:1:8: error: redefinition of ‘struct Once’
In file included from /s/a.cpp:1,
                 from /b/u.cpp:1:
/s/once.h:1:8: note: previous definition of ‘struct Once’
"""
    assert found(said) == (Clash("../c.cpp", None),)


def test_an_error_in_a_template_is_the_file_that_uses_it() -> None:
    said = """\
In file included from /s/a.cpp:1,
                 from /b/u.cpp:1:
/s/pointer.h: In instantiation of ‘Pointer<T>::Pointer(const Pointer<U>&) [with U = Tree]’:
/s/views.h:140:12:   required from ‘T Views<T>::operator*() const [with T = Tensor]’
/s/c.cpp:776:37:   required from here
/s/pointer.h:369:70: error: cannot convert ‘Tree* const’ to ‘Tensor*’
  369 |             assign(rhs.target)) {
/s/pointer.h:371:14: error: static assertion failed: pointer of wrong type
/s/b.cpp: In function ‘int other()’:
/s/b.cpp:7:3: error: ‘nothing’ was not declared in this scope
"""
    assert set(found(said)) == {Clash("../c.cpp", None), Clash("../b.cpp", None)}


def test_a_file_for_one_cpu_capability_is_known_by_what_it_includes() -> None:
    said = """\
In file included from /b/k.cpp.DEFAULT.cpp:1,
                 from /b/u.cpp:9:
/s/k.cpp:7:1: error: reference to ‘vec’ is ambiguous
"""
    assert found(said) == (Clash("k.cpp.DEFAULT.cpp", None),)


def test_every_file_at_fault_is_found_in_one_pass() -> None:
    said = """\
/s/b.cpp:4:12: error: redefinition of ‘int f()’
/s/a.cpp:4:12: note: ‘int f()’ previously defined here
/s/b.cpp:9:12: error: ‘g’ was not declared in this scope
/s/c.cpp:1:2: fatal error: no.h: No such file or directory
"""
    assert dict.fromkeys(found(said)) == {
        Clash("../b.cpp", "../a.cpp"): None,
        Clash("../c.cpp", None): None,
    }


def test_words_that_name_no_file_of_the_batch_find_nothing() -> None:
    said = "{standard input}:12: Error: symbol `f' is already defined\n/s/z.h:1:2: error: no\n"
    assert found(said) == ()


def test_colours_do_not_hide_a_file() -> None:
    said = (
        "In file included from \x1b[01m\x1b[K/b/u.cpp:3\x1b[m\x1b[K:\n"
        "\x1b[01m\x1b[K/s/b.cpp:4:12:\x1b[m\x1b[K \x1b[01;31m\x1b[Kerror: \x1b[m\x1b[Ktwice\n"
        "\x1b[01m\x1b[K/s/a.cpp:4:12:\x1b[m\x1b[K \x1b[01;36m\x1b[Knote: \x1b[m\x1b[Kpreviously\n"
    )
    assert found(said) == (Clash("../b.cpp", "../a.cpp"),)


def test_files_that_define_the_same_thing_clash_with_each_other_too() -> None:
    said = """\
/s/b.cpp:4:12: error: redefinition of ‘int f()’
/s/a.cpp:4:12: note: ‘int f()’ previously defined here
/s/c.cpp:4:12: error: redefinition of ‘int f()’
/s/a.cpp:4:12: note: ‘int f()’ previously defined here
/s/k.cpp:1:2: error: ‘g’ was not declared in this scope
"""
    (pair,) = alike(find_clashes(said, MEMBERS, "/build"))
    assert {pair.file, pair.other} == {"../b.cpp", "../c.cpp"}


def test_a_header_that_collides_with_itself_is_named() -> None:
    said = """\
In file included from /s/c.cpp:2,
                 from /b/u.cpp:5:
/s/walk.h:6:7: error: redefinition of ‘class Walk’
    6 | class Walk {
In file included from /s/a.cpp:3,
                 from /b/u.cpp:1:
/s/walk.h:6:7: note: previous definition of ‘class Walk’
/s/b.cpp:9:5: error: redefinition of ‘int helper()’
/s/other.h:9:5: note: ‘int helper()’ previously defined here
"""
    clashes = {clash.file: clash.header for clash in find_clashes(said, MEMBERS, "/build")}
    assert clashes == {"../c.cpp": "/s/walk.h", "../b.cpp": ""}


def test_a_chain_that_was_said_before_is_not_said_again() -> None:
    words = """
In file included from /s/deep.h:7,
                 from /s/deeper.h:1,
                 from /s/b.cpp:1,
                 from /b/u.cpp:3:
/s/deepest.h:48:11: note: what stands here
In file included from /s/deep.h:15:
/s/other.h:23:33: error: 'Common' is not a namespace-name
"""
    assert find_clashes(words, MEMBERS, "/b") == (
        Clash("../b.cpp", None, "'Common' is not a namespace-name"),
    )


def test_nvcc_names_the_file_of_the_earlier_definition_in_its_message() -> None:
    said = """\
/s/b.cpp(5): error: function "n::helper" has already been defined \
(previous definition at line 3 of /s/a.cpp)
  namespace n { static int helper() { return 2; } }
                           ^

../s/c.cpp(1): error: class template "n::<unnamed>::S" has already been defined \
(previous definition at line 5 of ../s/b.cpp)
  template<class T> struct S {T t;};
                           ^

2 errors detected in the compilation of "u.cu".
"""
    assert found(said) == (Clash("../b.cpp", "../a.cpp"), Clash("../c.cpp", "../b.cpp"))


def test_nvcc_blames_a_header_on_the_members_that_include_it(tmp_path: Path) -> None:
    (tmp_path / "one.h").touch()
    (tmp_path / "two.h").touch()
    members = {}
    for name, header in (("a.cu", "one.h"), ("b.cu", "folder/two.h"), ("c.cu", "vector")):
        (tmp_path / name).write_text(f"#include <{header}>\n")
        members[str(tmp_path / name)] = name
    said = (
        f'{tmp_path}/folder/two.h(36): error: class "at::clamp" has already been defined'
        f" (previous definition at line 109 of {tmp_path}/one.h)\n"
    )
    clashes = find_clashes(said, members, str(tmp_path))
    assert [(clash.file, clash.other) for clash in clashes] == [("b.cu", "a.cu")]


def test_nvcc_says_of_a_header_that_collides_with_itself_only_its_lines() -> None:
    said = (
        '/s/h.h(1): error: class "Once" has already been defined (previous definition at line 1)\n'
    )
    assert [clash.header for clash in find_clashes(said, MEMBERS, "/build")] == ["/s/h.h"]


def test_nvcc_says_for_which_member_a_template_was_instantiated() -> None:
    said = """\
/s/h.cuh(7): error: no operator "+" matches these operands
            operand types are: T + int
          detected during instantiation of "T twice(T) [with T=S]" at line 5 of /s/c.cpp
"""
    assert found(said) == (Clash("../c.cpp", None),)


def test_files_that_define_the_same_for_nvcc_all_clash_with_each_other() -> None:
    said = "".join(
        f'/s/{name}.cpp(5): error: function "n::helper" has already been defined '
        "(previous definition at line 3 of /s/a.cpp)\n"
        for name in "bc"
    )
    pairs = {
        frozenset((clash.file, clash.other)) for clash in alike(find_clashes(said, MEMBERS, "/"))
    }
    assert pairs == {frozenset(("../b.cpp", "../c.cpp"))}

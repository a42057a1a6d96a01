"""Functions that a file would call in a batch and would not by itself are found by their names."""

from __future__ import annotations

import pytest

from torchsmith.toolchain.accel.overloads import Function, functions, rivals, strangers

pytestmark = pytest.mark.unit

TEXT = r"""
#include <vector>
namespace lab { namespace jit {
// void commented(int) {
static const char* const name = "void quoted(int) {";
namespace {
template <typename T, typename = std::enable_if_t<(sizeof(T) > 1)>>
void clean(const Graph& graph, T value) { if (value) { inner(graph); } }
struct Pass { void run(int); };
std::vector<int> sizes{1, 2, 3};
auto handle = std::make_unique<int>(3);
}
static bool ready() { return true; }
LAB_API void clean(Module* module);
REGISTER(clean, &other);
void Pass::run(int) {}
} }
extern "C" { int plain(void); }
namespace a::b { inline char quote() { return '{'; } int after(int x = 1'000); }
"""


def test_functions_are_found_in_their_namespaces() -> None:
    jit = ("lab", "jit")
    assert functions(TEXT) == {
        Function(jit, "clean", local=True),
        Function(jit, "ready", local=True),
        Function(jit, "clean"),
        Function((), "plain"),
        Function(("a", "b"), "quote"),
        Function(("a", "b"), "after"),
    }


def test_files_with_a_function_of_one_name_each_are_rivals() -> None:
    one = frozenset([Function(("lab", "jit"), "clean", local=True)])
    inner = frozenset([Function(("lab", "jit", "passes"), "clean", local=True)])
    apart = frozenset([Function(("lab", "lazy"), "clean", local=True)])
    other = frozenset([Function(("lab", "jit"), "ready", local=True)])
    files = {"one": one, "inner": inner, "apart": apart, "other": other}
    assert rivals(files) == {frozenset(["one", "inner"])}


def test_a_function_is_strange_where_the_file_does_not_declare_it() -> None:
    mine = Function(("lab", "jit"), "clean", local=True)
    theirs = Function(("lab", "jit"), "clean")
    method = Function(("lab", "jit", "Pass"), "clean")
    by_argument = Function(("lab",), "clean")
    called = frozenset([theirs, method, by_argument, Function(("lab", "jit"), "ready")])
    assert strangers(frozenset([mine]), called, frozenset([mine])) == {theirs, by_argument}
    assert strangers(frozenset([mine]), called, frozenset([theirs, by_argument])) == frozenset()
    assert strangers(frozenset([mine, theirs]), called, frozenset()) == {by_argument}

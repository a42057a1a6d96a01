"""Of a long log, the few lines that say why are found."""

from __future__ import annotations

import pytest

from torchsmith.engine.failure import describe_exit, explain, ran_out_of_room

pytestmark = pytest.mark.unit

NOISE = [f"[{number}/900] Building CXX object c10/x{number}.o" for number in range(1, 900)]


def test_the_first_error_counts_and_not_what_followed() -> None:
    found = explain(
        [
            *NOISE,
            "FAILED: a.o",
            "/usr/bin/c++ -Werror=return-type -c a.cpp",
            "a.cpp: In function ‘int main()’:",
            "a.cpp:3:5: error: ‘x’ was not declared in this scope",
            "    3 |     x;",
            "      |     ^",
            "ninja: build stopped: subcommand failed.",
            "Traceback (most recent call last):",
            "subprocess.CalledProcessError: Command 'cmake' returned 1",
        ]
    )
    assert found[0] == "a.cpp: In function ‘int main()’:"
    assert "not declared" in found[1]
    assert not any("Traceback" in line or "ninja" in line for line in found)


def test_a_page_of_errors_stays_a_page() -> None:
    found = explain(f"a.cpp:{number}:1: error: number {number}" for number in range(1000))
    assert len(found) == 15
    assert found[0] == "a.cpp:0:1: error: number 0"


@pytest.mark.parametrize(
    "line",
    [
        "/usr/bin/ld: cannot find -lcudart",
        "main.o: in function `f': undefined reference to `g'",
        "CMake Error at CMakeLists.txt:3 (find_package):",
        "c++: fatal error: Killed signal terminated program cc1plus",
        'kernel.cu(12): error: identifier "x" is undefined',
        "nvcc fatal   : Unsupported gpu architecture 'compute_35'",
        "fatal: unable to access 'https://example.org/': Could not resolve host",
        "E: Unable to find a source package for pytorch",
        "curl: (22) The requested URL returned error: 404",
        "ninja: error: loading 'build.ninja': No such file or directory",
    ],
)
def test_each_tools_own_way_of_saying_so_is_known(line: str) -> None:
    assert line in explain([*NOISE, line, *NOISE])


def test_a_warning_about_nothing_is_no_error() -> None:
    found = explain(
        [
            "ERROR: pip's dependency resolver does not currently take into account all packages:",
            *NOISE,
            "Traceback (most recent call last):",
            '  File "setup.py", line 1, in <module>',
            "ModuleNotFoundError: No module named 'yaml'",
        ]
    )
    assert found[-1] == "ModuleNotFoundError: No module named 'yaml'"
    assert not any("resolver" in line for line in found)


def test_without_any_error_the_end_of_the_log_is_told() -> None:
    assert explain([*NOISE, "the build made no torch.whl"])[-1] == "the build made no torch.whl"
    assert explain([]) == ()


def test_colours_are_taken_out() -> None:
    line = "\x1b[1ma.cpp:1:1:\x1b[m \x1b[31merror: \x1b[mno"
    assert explain([line]) == ("a.cpp:1:1: error: no",)


def test_a_full_disk_is_recognised() -> None:
    found = explain(["a.cpp:1:1: fatal error: error writing to a.s: No space left on device"])
    assert ran_out_of_room(found)


def test_how_a_process_ended_is_said_in_words() -> None:
    assert "memory" in describe_exit(-9)
    assert "signal 11" in describe_exit(-11)
    assert "status 2" in describe_exit(2)


def test_an_error_is_found_where_pip_has_indented_it() -> None:
    log = [
        "  error: subprocess-exited-with-error",
        "      running build_ext",
        "      x.cpp: In function ‘int f()’:",
        "      x.cpp:3:48: error: ‘y’ was not declared in this scope",
        "      ninja: build stopped: subcommand failed.",
        "      [end of output]",
        "  ERROR: Failed building wheel for tiny",
    ]
    said = explain(log)
    assert said[0].endswith("In function ‘int f()’:")
    assert said[1].endswith("‘y’ was not declared in this scope")
    assert not any("ERROR: Failed building" in line for line in said)

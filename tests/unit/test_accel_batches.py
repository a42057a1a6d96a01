"""Which files are compiled together."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from torchsmith.toolchain.accel.batches import (
    LARGE,
    LARGE_KERNEL,
    File,
    Limits,
    form_batches,
    limits_for,
)
from torchsmith.toolchain.accel.lessons import (
    Lessons,
    keep_lessons,
    parse_profile,
    profile_name,
    read_lessons,
    shipped_lessons,
)

pytestmark = pytest.mark.unit


def files(*names: str, size: int = 5_000) -> list[File]:
    return [File(name, size, f"{name}.o") for name in names]


def numbered(count: int) -> list[File]:
    return files(*(f"../aten/file{number:03}.cpp" for number in range(count)))


def names(batches: tuple[tuple[File, ...], ...]) -> list[list[str]]:
    return [[file.name for file in batch] for batch in batches]


def test_neighbours_go_together_within_the_limits() -> None:
    batches = form_batches(numbered(100), Lessons(), Limits(files=10))
    assert all(2 <= len(batch) <= 10 for batch in batches)
    assert [name for batch in names(batches) for name in batch] == [
        file.name for file in numbered(100)
    ]


def test_a_large_file_is_compiled_by_itself() -> None:
    large = File("big.cpp", LARGE, "big.o")
    batches = form_batches([*files("a.cpp", "b.cpp"), large], Lessons(), Limits(files=8))
    assert names(batches) == [["a.cpp", "b.cpp"]]


def test_a_batch_is_bounded_by_weight_too() -> None:
    heavy = files("a.cpp", "b.cpp", "c.cpp", "d.cpp", size=90_000)
    batches = form_batches(heavy, Lessons(), Limits(files=8, weight=200_000))
    assert names(batches) == [["a.cpp", "b.cpp"], ["c.cpp", "d.cpp"]]


def test_files_that_clash_are_never_in_one_batch() -> None:
    lessons = Lessons(apart=frozenset([frozenset(("a.cpp", "b.cpp"))]))
    batches = form_batches(files("a.cpp", "b.cpp", "c.cpp"), lessons, Limits(files=8))
    assert names(batches) == [["a.cpp", "c.cpp"]]


def test_files_that_left_a_batch_form_another() -> None:
    lessons = Lessons(apart=frozenset(frozenset(("a.cpp", other)) for other in ("b.cpp", "c.cpp")))
    batches = form_batches(files("a.cpp", "b.cpp", "c.cpp", "d.cpp"), lessons, Limits(files=8))
    assert names(batches) == [["a.cpp", "d.cpp"], ["b.cpp", "c.cpp"]]


def test_a_file_that_goes_with_no_other_is_left_out() -> None:
    lessons = Lessons(alone=frozenset(["b.cpp"]))
    batches = form_batches(files("a.cpp", "b.cpp", "c.cpp"), lessons, Limits(files=8))
    assert names(batches) == [["a.cpp", "c.cpp"]]


@given(
    st.sets(st.integers(0, 60), min_size=2, max_size=40),
    st.sets(st.tuples(st.integers(0, 60), st.integers(0, 60)), max_size=30),
)
def test_every_file_is_in_one_batch_at_most_and_no_two_clash(
    chosen: set[int], pairs: set[tuple[int, int]]
) -> None:
    lessons = Lessons(
        apart=frozenset(frozenset((f"{a}.cpp", f"{b}.cpp")) for a, b in pairs if a != b)
    )
    batches = form_batches(files(*(f"{n}.cpp" for n in chosen)), lessons, Limits(files=6))
    every = [name for batch in names(batches) for name in batch]
    assert len(every) == len(set(every))
    assert not any(
        lessons.clash(one, other) for batch in names(batches) for one in batch for other in batch
    )


def test_a_new_file_changes_the_batches_around_it_only() -> None:
    limits = Limits(files=16)
    before = set(map(tuple, names(form_batches(numbered(400), Lessons(), limits))))
    more = [*numbered(400), *files("../aten/file200b.cpp")]
    after = set(map(tuple, names(form_batches(more, Lessons(), limits))))
    assert len(before - after) <= len(before) // 3


def test_few_files_make_small_batches_so_that_every_core_has_some() -> None:
    assert limits_for(numbered(43), cores=2).files == 6
    assert limits_for(numbered(1200), cores=2).files == 32
    assert limits_for(numbered(1200), cores=2).weight > limits_for(numbered(1200), cores=16).weight


@pytest.mark.parametrize(("gib", "files"), [(64, 32), (7, 32), (5, 16), (3, 16), (2, 8), (0.5, 4)])
def test_little_memory_makes_small_batches_so_that_every_core_has_one(
    gib: float, files: int
) -> None:
    full = limits_for(numbered(1200), cores=2)
    limits = limits_for(numbered(1200), cores=2, memory=int(gib * (1 << 30)))
    assert limits.files == files
    assert limits.weight == full.weight * files // 32


def test_a_kernel_for_one_kind_of_cpu_is_by_what_it_includes_small_or_large() -> None:
    sizes = {"a": 900, "b": 50_000, "c": 700, "d": LARGE_KERNEL}
    kernels = [File(f"{name}.cpp.AVX2.cpp", 100, f"{name}.o", sizes[name]) for name in sizes]
    batches = form_batches(kernels, Lessons(), Limits(files=8))
    assert names(batches) == [["a.cpp.AVX2.cpp", "c.cpp.AVX2.cpp"]]


def test_lessons_are_read_back_and_a_broken_line_is_passed_over(tmp_path: Path) -> None:
    path = tmp_path / "store" / "lessons.jsonl"
    apart = frozenset([frozenset(("a.cpp", "b.cpp"))])
    first = Lessons(apart, frozenset(["c.cpp"]), frozenset(["../walk.h"]))
    keep_lessons(path, first)
    with path.open("a") as file:
        file.write('{"apart": ["d.cpp"')
    assert read_lessons(path) == first
    assert read_lessons(tmp_path / "none") == Lessons()
    path.write_bytes(path.read_bytes() + b"\xff\n" + b"[" * 100_000 + b"\n")
    assert read_lessons(path) == first
    os.mkfifo(tmp_path / "pipe")
    assert read_lessons(tmp_path / "pipe") == Lessons()


def test_a_profile_keeps_every_two_of_a_group_apart() -> None:
    lessons = parse_profile('alone = ["x.cpp"]\napart = [["a.cpp", "b.cpp", "c.cpp"]]')
    assert lessons.alone == {"x.cpp"}
    assert len(lessons.apart) == 3
    assert lessons.clash("a.cpp", "c.cpp")


def test_a_release_nobody_built_in_batches_has_no_profile() -> None:
    assert shipped_lessons("torch", "0.1.0") == Lessons()


def test_a_lesson_on_a_kernel_holds_for_every_kind_of_cpu() -> None:
    pair = frozenset(("k/A.cpp.DEFAULT.cpp", "k/B.cpp.DEFAULT.cpp"))
    lessons = Lessons(frozenset([pair]), frozenset(["k/C.cpp.AVX2.cpp"]))
    assert lessons.clash("k/A.cpp.AVX512.cpp", "k/B.cpp.AVX512.cpp")
    assert not lessons.clash("k/A.cpp.AVX512.cpp", "k/D.cpp.AVX512.cpp")
    assert lessons.is_alone("k/C.cpp.DEFAULT.cpp")
    assert not lessons.is_alone("k/D.cpp")
    kernels = [f"k/{letter}.cpp.AVX2.cpp" for letter in "ABCD"]
    assert lessons.divide(kernels) == [
        [kernels[0], kernels[3]],
        [kernels[1]],
        [kernels[2]],
    ]


def test_what_is_known_is_kept_by_release() -> None:
    assert profile_name("torch", "2.6.0+cpu") == "torch-2.6"
    assert profile_name("torch", "") == ""
    assert shipped_lessons("torch", "2.6.0+cpu").alone
    assert shipped_lessons("torch", "1.13.1").alone
    assert shipped_lessons("torch", "") == Lessons()

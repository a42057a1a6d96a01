"""The radix sort that a patch brings to torch, compiled alone, against `std::stable_sort`."""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path

import pytest

from torchsmith.facts.files import DATA

pytestmark = pytest.mark.integration

PATCH = DATA / "patches" / "torch-2.6-radix-sort.patch"
HEADER = "aten/src/ATen/native/cpu/RadixSort.h"

# What the header takes from ATen: threads that split a range, as at::parallel_for does.
PARALLEL = """\
#pragma once
#include <omp.h>
#include <algorithm>
#include <cstdint>
namespace at {
inline bool in_parallel_region() { return omp_in_parallel(); }
inline int get_num_threads() { return omp_get_max_threads(); }
template <class F>
void parallel_for(int64_t begin, int64_t end, int64_t grain, const F& work) {
  if (begin >= end) return;
  if (end - begin <= grain || omp_in_parallel() || get_num_threads() == 1) {
    return work(begin, end);
  }
#pragma omp parallel
  {
    const int64_t most = (end - begin + grain - 1) / grain;
    const int64_t parts = std::min<int64_t>(omp_get_num_threads(), most);
    const int64_t length = (end - begin + parts - 1) / parts;
    const int64_t first = begin + omp_get_thread_num() * length;
    if (first < end) work(first, std::min(end, first + length));
  }
}
}
"""
IRANGE = """\
#pragma once
#include <cstdint>
#include <numeric>
#include <vector>
namespace c10 {
inline std::vector<int64_t> irange(int64_t first, int64_t last) {
  std::vector<int64_t> all(last > first ? last - first : 0);
  std::iota(all.begin(), all.end(), first);
  return all;
}
inline std::vector<int64_t> irange(int64_t last) { return irange(0, last); }
}
"""
PROGRAM = """\
#define CPU_CAPABILITY DEFAULT
#include <ATen/native/cpu/RadixSort.h>
#include <cstdio>
#include <cstdlib>
#include <limits>
#include <random>

static int sorted = 0;

template <class K>
void sort(std::mt19937_64& random, int64_t count, int64_t least, int64_t most, bool negative) {
  std::uniform_int_distribution<int64_t> draw(least, most);
  std::vector<K> keys(count), other_keys(count);
  for (auto& key : keys) key = static_cast<K>(draw(random));
  const std::vector<K> before = keys;
  std::vector<int64_t> values(count), other_values(count);
  std::iota(values.begin(), values.end(), 0);
  auto expected = values;
  std::stable_sort(expected.begin(), expected.end(), [&](int64_t a, int64_t b) {
    return before[a] < before[b];
  });
  const auto [by_key, by_value] = at::native::radix_sort_parallel(
      keys.data(), values.data(), other_keys.data(), other_values.data(), count, most, negative);
  for (int64_t i = 0; i < count; i++) {
    if (by_value[i] != expected[i] || by_key[i] != before[expected[i]]) {
      std::printf("%zu bytes, %ld of %ld keys, %ld to %ld\\n", sizeof(K), long(i), long(count),
                  long(least), long(most));
      std::exit(1);
    }
  }
  sorted++;
}

template <class K>
void sort_all(std::mt19937_64& random) {
  const int64_t most = std::numeric_limits<K>::max(), least = std::numeric_limits<K>::min();
  const std::vector<int64_t> highs{0, 1, 255, 256, 70000, most};
  for (const int64_t count : {0, 1, 2, 3, 255, 2047, 2048, 4096, 4097, 9001, 20001}) {
    for (const int64_t high : highs) {
      if (high > most) continue;
      sort<K>(random, count, 0, high, false);
      if (least == 0) continue;
      sort<K>(random, count, std::max(least, -high), high, true);
      sort<K>(random, count, least, -1, true);
    }
    sort<K>(random, count, most - 3, most, least < 0);
  }
}

int main() {
  std::mt19937_64 random(7);
  for (const int threads : {1, 2, 3, 7}) {
    omp_set_num_threads(threads);
    sort_all<uint8_t>(random);
    sort_all<int8_t>(random);
    sort_all<int16_t>(random);
    sort_all<int32_t>(random);
    sort_all<int64_t>(random);
  }
#pragma omp parallel num_threads(2)
  {
#pragma omp critical
    sort<int64_t>(random, 20000, -5, 1000000, true);
  }
  std::printf("%d\\n", sorted);
}
"""


def added(patch: str, path: str) -> str:
    """A file that a patch adds, as it will be."""
    (part,) = re.findall(
        rf"^--- /dev/null\n\+\+\+ b/{re.escape(path)}\n@@ [^\n]+ @@\n((?:\+[^\n]*\n)+)",
        patch,
        re.MULTILINE,
    )
    return re.sub(r"^\+", "", part, flags=re.MULTILINE)


def test_the_sort_is_right_and_stable_for_every_type_at_any_number_of_threads(
    tmp_path: Path,
) -> None:
    compiler = shutil.which("g++")
    assert compiler, "this test needs g++"
    for name, text in {
        "ATen/native/cpu/RadixSort.h": added(PATCH.read_text("utf-8"), HEADER),
        "ATen/Parallel.h": PARALLEL,
        "c10/util/irange.h": IRANGE,
        "main.cpp": PROGRAM,
    }.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text, encoding="utf-8")
    words = [compiler, "-std=gnu++17", "-O1", "-fopenmp", "-fsanitize=undefined"]
    words += ["-fno-sanitize-recover", "-Wall", "-Wextra", "-Werror", "-I", str(tmp_path)]
    words += [str(tmp_path / "main.cpp"), "-o", str(tmp_path / "sort")]
    subprocess.run(words, check=True)
    done = subprocess.run([tmp_path / "sort"], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert int(done.stdout) > 2000

"""A process is told what it may use, not what the machine has."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from torchsmith.host.limits import (
    control_groups,
    read_cores,
    read_disk_free,
    read_huge_pages,
    read_memory,
    read_shm,
)

pytestmark = pytest.mark.unit

GIB = 1 << 30
MEMINFO = "MemTotal:       67108864 kB\nMemFree: 1 kB\nMemAvailable:   33554432 kB\n"  # 64, 32 GiB
V2 = "32 23 0:28 / /sys/fs/cgroup rw,nosuid - cgroup2 cgroup2 rw,nsdelegate\n"
V1 = (
    "33 25 0:30 / /sys/fs/cgroup rw,relatime - tmpfs tmpfs rw,mode=755\n"
    "34 33 0:31 / /sys/fs/cgroup/cpu,cpuacct rw shared:9 - cgroup cgroup rw,cpu,cpuacct\n"
    "37 33 0:34 / /sys/fs/cgroup/memory rw,relatime - cgroup cgroup rw,memory\n"
)


@pytest.fixture(autouse=True)
def sixteen_cores(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(16)))


def tree(root: Path, **files: str) -> Path:
    """Write files, with / in their names as __."""
    for name, text in files.items():
        write(root, name.replace("__", "/"), text)
    return root


def write(root: Path, name: str, text: str) -> None:
    path = root / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)


def test_without_control_groups_all_of_the_machine_may_be_used(tmp_path: Path) -> None:
    tree(tmp_path, proc__meminfo=MEMINFO)
    assert read_memory(tmp_path) == (64 * GIB, 32 * GIB)
    assert read_cores(tmp_path) == 16


def test_a_machine_that_hides_everything_still_has_a_core(tmp_path: Path) -> None:
    assert read_memory(tmp_path) == (None, None)
    assert read_cores(tmp_path) == 16
    assert read_shm(tmp_path) is None
    assert read_huge_pages(tmp_path) == ""
    assert control_groups("memory", tmp_path) == []


def test_version_2_limits_hold_at_every_level(tmp_path: Path) -> None:
    tree(
        tmp_path,
        proc__meminfo=MEMINFO,
        proc__self__cgroup="0::/slurm/job/step\n",
        proc__self__mountinfo=V2,
    )
    write(tmp_path, "sys/fs/cgroup/slurm/job/step/memory.max", "max\n")
    write(tmp_path, "sys/fs/cgroup/slurm/job/step/cpu.max", "max 100000\n")
    write(tmp_path, "sys/fs/cgroup/slurm/job/memory.max", f"{8 * GIB}\n")
    write(tmp_path, "sys/fs/cgroup/slurm/job/memory.current", f"{6 * GIB}\n")
    write(tmp_path, "sys/fs/cgroup/slurm/job/memory.stat", f"anon 1\ninactive_file {GIB}\n")
    write(tmp_path, "sys/fs/cgroup/slurm/memory.max", f"{24 * GIB}\n")
    write(tmp_path, "sys/fs/cgroup/slurm/cpu.max", "250000 100000\n")
    assert read_memory(tmp_path) == (8 * GIB, 3 * GIB)
    assert read_cores(tmp_path) == 3


def test_a_neighbours_limit_does_not_count(tmp_path: Path) -> None:
    tree(
        tmp_path,
        proc__meminfo=MEMINFO,
        proc__self__cgroup="0::/mine\n",
        proc__self__mountinfo=V2,
        sys__fs__cgroup__other__memory="",
    )
    write(tmp_path, "sys/fs/cgroup/other/memory.max", "1\n")
    assert read_memory(tmp_path)[0] == 64 * GIB


def test_memory_that_would_be_throttled_is_not_counted(tmp_path: Path) -> None:
    tree(
        tmp_path,
        proc__meminfo=MEMINFO,
        proc__self__cgroup="0::/\n",
        proc__self__mountinfo=V2,
    )
    write(tmp_path, "sys/fs/cgroup/memory.max", f"{8 * GIB}\n")
    write(tmp_path, "sys/fs/cgroup/memory.high", f"{4 * GIB}\n")
    assert read_memory(tmp_path) == (4 * GIB, 4 * GIB)


def test_version_1_limits_are_of_the_process_own_group(tmp_path: Path) -> None:
    tree(
        tmp_path,
        proc__meminfo=MEMINFO,
        proc__self__cgroup="4:memory:/slurm/job\n1:cpu,cpuacct:/quota\n0::/\n",
        proc__self__mountinfo=V1,
    )
    write(tmp_path, "sys/fs/cgroup/memory/memory.limit_in_bytes", "9223372036854771712\n")
    write(tmp_path, "sys/fs/cgroup/memory/slurm/job/memory.limit_in_bytes", f"{2 * GIB}\n")
    write(tmp_path, "sys/fs/cgroup/memory/slurm/job/memory.usage_in_bytes", f"{GIB}\n")
    write(tmp_path, "sys/fs/cgroup/memory/slurm/job/memory.stat", "inactive_file 7\n")
    write(tmp_path, "sys/fs/cgroup/cpu,cpuacct/quota/cpu.cfs_quota_us", "400000\n")
    write(tmp_path, "sys/fs/cgroup/cpu,cpuacct/quota/cpu.cfs_period_us", "100000\n")
    write(tmp_path, "sys/fs/cgroup/cpu,cpuacct/cpu.cfs_quota_us", "-1\n")
    write(tmp_path, "sys/fs/cgroup/cpu,cpuacct/cpu.cfs_period_us", "100000\n")
    assert read_memory(tmp_path) == (2 * GIB, GIB)
    assert read_cores(tmp_path) == 4


def test_a_container_sees_its_group_where_only_its_own_part_is_mounted(tmp_path: Path) -> None:
    mounts = "37 33 0:34 /docker/abc /sys/fs/cgroup/memory ro - cgroup cgroup rw,memory\n"
    tree(
        tmp_path,
        proc__meminfo=MEMINFO,
        proc__self__cgroup="4:memory:/docker/abc\n",
        proc__self__mountinfo=mounts,
    )
    write(tmp_path, "sys/fs/cgroup/memory/memory.limit_in_bytes", f"{GIB}\n")
    assert read_memory(tmp_path)[0] == GIB


@pytest.mark.parametrize("group", ["/../../elsewhere", "/gone (deleted)", "", "not absolute"])
def test_a_group_that_cannot_be_seen_leaves_the_mounted_one(tmp_path: Path, group: str) -> None:
    tree(
        tmp_path,
        proc__meminfo=MEMINFO,
        proc__self__cgroup=f"0::{group}\n",
        proc__self__mountinfo=V2,
    )
    write(tmp_path, "sys/fs/cgroup/memory.max", f"{GIB}\n")
    assert read_memory(tmp_path)[0] == GIB


def test_a_mount_with_a_space_in_its_name_is_found(tmp_path: Path) -> None:
    mounts = "32 23 0:28 / /my\\040groups rw - cgroup2 cgroup2 rw\n"
    tree(tmp_path, proc__self__cgroup="0::/\n", proc__self__mountinfo=mounts)
    assert control_groups("memory", tmp_path) == [tmp_path / "my groups"]


def test_control_groups_are_looked_for_in_the_usual_place(tmp_path: Path) -> None:
    tree(tmp_path, proc__self__cgroup="0::/a\n2:memory:/b\n")
    assert control_groups("memory", tmp_path) == [
        tmp_path / "sys/fs/cgroup/a",
        tmp_path / "sys/fs/cgroup",
        tmp_path / "sys/fs/cgroup/memory/b",
        tmp_path / "sys/fs/cgroup/memory",
    ]


def test_part_of_a_core_is_a_core(tmp_path: Path) -> None:
    tree(tmp_path, proc__self__cgroup="0::/\n", proc__self__mountinfo=V2)
    write(tmp_path, "sys/fs/cgroup/cpu.max", "20000 100000\n")
    assert read_cores(tmp_path) == 1


@pytest.mark.parametrize("garbage", ["", "\0\1\2", "-5", "0 0", "1e9", "١٢٣", "9" * 400])
def test_garbage_limits_are_no_limits(tmp_path: Path, garbage: str) -> None:
    tree(
        tmp_path,
        proc__meminfo=MEMINFO,
        proc__self__cgroup="0::/\n" + garbage,
        proc__self__mountinfo=V2 + garbage,
    )
    for name in ("memory.max", "memory.high", "memory.current", "memory.stat", "cpu.max"):
        write(tmp_path, f"sys/fs/cgroup/{name}", garbage)
    assert read_memory(tmp_path) == (64 * GIB, 32 * GIB)
    assert read_cores(tmp_path) == 16


def test_garbage_in_proc_is_nothing(tmp_path: Path) -> None:
    tree(tmp_path, proc__meminfo="MemTotal: lots\n\0\n", proc__self__cgroup=":::\n\n0\n")
    assert read_memory(tmp_path) == (None, None)


def test_disk_is_that_of_the_nearest_folder_there_is(tmp_path: Path) -> None:
    free = read_disk_free(tmp_path / "not" / "yet" / "made")
    assert free is not None
    assert free > 0


def test_shared_memory_is_the_size_of_its_file_system(tmp_path: Path) -> None:
    (tmp_path / "dev/shm").mkdir(parents=True)
    size = os.statvfs(tmp_path)
    assert read_shm(tmp_path) == size.f_blocks * size.f_frsize


@pytest.mark.parametrize("when", ["always", "madvise", "never"])
def test_huge_pages_are_given_when_the_kernel_says_so(tmp_path: Path, when: str) -> None:
    words = "always madvise never\n".replace(when, f"[{when}]")
    write(tmp_path, "sys/kernel/mm/transparent_hugepage/enabled", words)
    assert read_huge_pages(tmp_path) == when

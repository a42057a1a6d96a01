"""The patches torchsmith ships are well-formed, and listed with the releases they are for."""

from __future__ import annotations

import re
import subprocess
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath

import pytest

from torchsmith.facts.cuda import archs_of
from torchsmith.facts.files import DATA, Facts
from torchsmith.facts.models import PatchFact, TorchRange
from torchsmith.facts.ranges import version_range
from torchsmith.facts.torch import entry_for

pytestmark = pytest.mark.unit

FACTS = Facts()
LISTED = FACTS.patches.patch
FILES = sorted(path.name for path in (DATA / "patches").iterdir())

_HUNK = re.compile(r"@@ -(\d+)(?:,(\d+))? \+(\d+)(?:,(\d+))? @@")


@dataclass
class FileDiff:
    """What a unified diff does to one file."""

    path: str
    new: bool = False
    context: list[str] = field(default_factory=list)
    removed: list[str] = field(default_factory=list)
    added: list[str] = field(default_factory=list)


def parse(text: str) -> list[FileDiff]:
    """Read a unified diff strictly: anything `patch` would have to guess at is an error."""
    diffs: list[FileDiff] = []
    lines = iter(text.splitlines())
    for line in lines:
        if line.startswith("--- "):
            before, after = line.removeprefix("--- "), next(lines).removeprefix("+++ ")
            assert after.startswith("b/")
            assert before in {f"a/{after[2:]}", "/dev/null"}
            diffs.append(FileDiff(after[2:], new=before == "/dev/null"))
            continue
        hunk = _HUNK.fullmatch(line)
        assert hunk, f"neither a file nor a hunk: {line!r}"
        old, new = int(hunk[2] or 1), int(hunk[4] or 1)
        while old or new:
            body = next(lines)
            kind, content = body[:1], body[1:]
            assert kind in {" ", "-", "+"}, f"not a line of a hunk: {body!r}"
            old -= kind in {" ", "-"}
            new -= kind in {" ", "+"}
            target = {" ": "context", "-": "removed", "+": "added"}[kind]
            getattr(diffs[-1], target).append(content)
        assert (old, new) == (0, 0)
    return diffs


def diffs_of(patch: PatchFact) -> dict[str, FileDiff]:
    text = (DATA / "patches" / patch.file).read_text(encoding="utf-8")
    return {diff.path: diff for diff in parse(text)}


def named(file: str) -> PatchFact:
    (patch,) = (patch for patch in LISTED if patch.file == file)
    return patch


def test_every_patch_file_is_listed_exactly_once_and_every_listed_file_exists() -> None:
    assert sorted(patch.file for patch in LISTED) == FILES


@pytest.mark.parametrize("patch", LISTED, ids=lambda patch: patch.file)
def test_a_patch_is_a_unified_diff_of_files_inside_the_tree(patch: PatchFact) -> None:
    diffs = diffs_of(patch)
    assert diffs
    for diff in diffs.values():
        path = PurePosixPath(diff.path)
        assert not path.is_absolute()
        assert ".." not in path.parts
        assert diff.added or diff.removed
        # What tells its place: `patch` looks for both.
        assert (not diff.new) == bool(diff.context or diff.removed)


@pytest.mark.parametrize("patch", LISTED, ids=lambda patch: patch.file)
def test_a_patch_is_named_for_a_release_in_its_range(patch: PatchFact) -> None:
    name = re.fullmatch(rf"{patch.project}-([\d.]+)-(.+)\.patch", patch.file)
    assert name
    assert name[1] in version_range(patch.releases)
    assert name[2] == patch.name


@pytest.mark.parametrize(
    "patch", [patch for patch in LISTED if patch.project == "torch"], ids=lambda patch: patch.file
)
def test_a_patch_for_torch_is_for_a_release_there_is(patch: PatchFact) -> None:
    span = version_range(patch.releases)
    assert any(release.version in span for release in FACTS.releases.release)


@pytest.mark.parametrize(
    "patch", [patch for patch in LISTED if patch.without], ids=lambda patch: patch.file
)
def test_a_patch_stands_in_for_a_feature_there_is(patch: PatchFact) -> None:
    assert patch.without in {feature.name for feature in FACTS.features.feature}


def test_no_release_has_two_patches_of_one_name() -> None:
    for release in FACTS.releases.release:
        names = [
            patch.name
            for patch in LISTED
            if patch.project == "torch" and release.version in version_range(patch.releases)
        ]
        assert len(names) == len(set(names)), release.version


@pytest.mark.parametrize("patch", LISTED, ids=lambda patch: patch.file)
def test_a_patch_of_a_submodule_changes_nothing_else(patch: PatchFact) -> None:
    inside = {path.startswith(f"{patch.submodule}/") for path in diffs_of(patch)}
    assert inside == {patch.submodule is not None}
    if patch.submodule is None:
        assert not any(path.startswith("third_party/") for path in diffs_of(patch))


# ------------------------------------------------------------------- the TX2's own two


def test_the_tx2_patch_sets_512_threads_in_the_four_places() -> None:
    diffs = diffs_of(named("torch-1.1-threads-512.patch"))
    wanted = {
        "aten/src/ATen/cuda/CUDAContext.cpp": ["  device_prop.maxThreadsPerBlock /= 2;"],
        "aten/src/ATen/cuda/detail/KernelUtils.h": ["constexpr int CUDA_NUM_THREADS = 512;"],
        "aten/src/THCUNN/common.h": ["const int CUDA_NUM_THREADS = 512;"],
        "aten/src/THCUNN/generic/SpatialUpSamplingBilinear.cu": [
            "  const int num_threads = 512;",
            "  const int num_threads = 512;",
        ],
    }
    assert set(diffs) == set(wanted)
    for path, lines in wanted.items():
        code = [line for line in diffs[path].added if not line.lstrip().startswith("//")]
        assert code == lines


def test_the_boards_of_the_threads_patches_are_those_that_need_512() -> None:
    needing = {board.name for board in FACTS.boards.board if board.max_threads_per_block == 512}
    for patch in LISTED:
        if patch.name == "threads-512":
            assert set(patch.boards) == needing


def test_every_board_named_is_known() -> None:
    known = {board.name for board in FACTS.boards.board}
    assert {board for patch in LISTED for board in patch.boards} <= known


def test_the_nccl_patch_leaves_both_flags_false() -> None:
    (diff,) = diffs_of(named("torch-1.1-nccl-off.patch")).values()
    assert list(diff.added) == ["USE_NCCL = False", "USE_SYSTEM_NCCL = False"]
    # The lines that first set them differ between the commits around the tag.
    assert list(diff.removed) == []


@pytest.mark.parametrize("lines_before", [1, 40, 70, 73, 90])
def test_the_nccl_patch_applies_wherever_the_file_ends(tmp_path: Path, lines_before: int) -> None:
    kept = [
        "    if NCCL_LIB_DIR is not None and NCCL_INCLUDE_DIR is not None:",
        "        USE_SYSTEM_NCCL = True",
        "        NCCL_ROOT_DIR = os.path.commonprefix((NCCL_LIB_DIR, NCCL_INCLUDE_DIR))",
    ]
    file = tmp_path / "tools/setup_helpers/nccl.py"
    file.parent.mkdir(parents=True)
    file.write_text("\n".join([*(f"# {number}" for number in range(lines_before)), *kept, ""]))
    patch = DATA / "patches" / "torch-1.1-nccl-off.patch"
    subprocess.run(["patch", "-p1", "-s", "-i", patch], cwd=tmp_path, check=True)
    assert file.read_text().endswith("USE_NCCL = False\nUSE_SYSTEM_NCCL = False\n")


# ------------------------------------------------------------- CUDA newer than the release


@pytest.mark.parametrize("known", FACTS.torch.patched_cuda, ids=lambda known: known.torch)
def test_a_toolkit_we_patch_for_is_not_upstreams_and_has_its_patches(known: TorchRange) -> None:
    toolkits = [
        item.version for item in FACTS.cuda.toolkit if item.version in version_range(known.value)
    ]
    assert toolkits
    for item in FACTS.releases.release:
        if item.version not in version_range(known.torch):
            continue
        upstream = entry_for(FACTS.torch.cuda, item.version)
        assert upstream is not None
        for cuda in toolkits:
            assert cuda not in version_range(upstream.value)
            assert any(
                patch.project == "torch"
                and item.version in version_range(patch.releases)
                and patch.cuda is not None
                and cuda in version_range(patch.cuda)
                and upstream.value.rpartition(":")[2] not in version_range(patch.cuda)
                for patch in LISTED
            )


def test_torch_2_6_names_for_cuda_13_what_cub_no_longer_has() -> None:
    diffs = diffs_of(named("torch-2.6-cuda-13.patch"))
    added = "\n".join(diffs["aten/src/ATen/cuda/cub.cuh"].added)
    # Whatever the sixteen files use of cub that CCCL 3 took out.
    for name in (
        "Equality",
        "Max",
        "Sum",
        "ConstantInputIterator",
        "CountingInputIterator",
        "TransformInputIterator",
    ):
        assert f"using {name} = " in added
    # Older toolkits have their own.
    assert "CUB_VERSION >= 300000" in added


# ------------------------------------------------------------------------------- MAGMA


def test_magma_for_cuda_11_0_is_2_5_2_and_has_its_pointer_patch() -> None:
    (magma,) = (magma for magma in FACTS.patches.magma if "11.0" in version_range(magma.cuda))
    assert magma.version == "2.5.2"
    patches = {
        patch.name
        for patch in LISTED
        if patch.project == "magma"
        and magma.version in version_range(patch.releases)
        and (patch.cuda is None or "11.0" in version_range(patch.cuda))
    }
    assert patches == {"cuda-pointer-attributes", "dense-only"}


@pytest.mark.parametrize(
    ("cuda", "archs"),
    [
        ("12.6", ["5.0", "6.0", "7.0", "8.0", "8.6", "9.0"]),
        ("12.8", ["5.0", "6.0", "7.0", "8.0", "8.6", "9.0", "10.0", "12.0"]),
        ("13.0", ["8.0", "8.6", "9.0", "10.0", "12.0"]),
        ("13.4", ["8.0", "8.6", "9.0", "10.0", "12.0"]),
    ],
)
def test_magma_from_cuda_12_on_is_the_last_release_every_torch_takes(
    cuda: str, archs: list[str]
) -> None:
    (magma,) = (magma for magma in FACTS.patches.magma if cuda in version_range(magma.cuda))
    assert (magma.version, magma.archs) == ("2.9.0", archs)
    usable = {item.arch for item in archs_of(FACTS, cuda)}
    assert usable.issuperset(archs)


def test_magma_for_cuda_13_does_without_the_clock_rate_that_is_gone() -> None:
    patch = named("magma-2.9.0-cuda-13.patch")
    assert patch.cuda is not None
    assert "13.0" in version_range(patch.cuda)
    assert "12.9" not in version_range(patch.cuda)
    (diff,) = diffs_of(patch).values()
    assert not any("clockRate" in line for line in diff.added)


def test_no_cuda_toolkit_has_two_magmas() -> None:
    for toolkit in FACTS.cuda.toolkit:
        spans = [
            magma for magma in FACTS.patches.magma if toolkit.version in version_range(magma.cuda)
        ]
        assert len(spans) <= 1, toolkit.version

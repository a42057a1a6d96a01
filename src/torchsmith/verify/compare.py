"""Holding a torch against what was asked for."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence

from packaging.version import InvalidVersion, Version

from torchsmith.checks import Check, Status, few, holds, rated
from torchsmith.plan.expects import LIBRARIES, Expects
from torchsmith.verify.binary import Library
from torchsmith.verify.fatbin import order
from torchsmith.verify.probing import TorchFacts

GROUP = "asked for"


def matching(variants: Sequence[Expects], version: str, python: str) -> Expects | None:
    """Return the variant a torch is most likely meant to be: by Python, then by version."""
    fitting = list(variants)
    for test in (
        lambda item: f"{python}.".startswith(f"{item.python.removesuffix('t')}."),
        lambda item: item.version == version,
        lambda item: _public(item.version) == _public(version),
    ):
        fitting = [item for item in fitting if test(item)] or fitting
    return fitting[0] if fitting else None


def compare(
    asked: Expects,
    facts: TorchFacts,
    python: str,
    libraries: Sequence[Library],
    installed: Mapping[str, str],
    tags: Collection[str] = (),
) -> list[Check]:
    """Every point of what is expected of a torch that can be seen in it.

    `libraries` are torch's own; `installed` holds the versions of what lies beside it; `tags`
    are those of its wheel, where it is one.
    """
    return [
        _version(asked, facts),
        *_tag(asked, tags),
        _python(asked, python),
        *_cuda(asked, facts),
        *_features(asked, facts),
        *_linking(asked, facts, libraries),
        *_companions(asked, installed),
    ]


def compare_companion(
    asked: Expects, python: str, installed: Mapping[str, str], tried: Sequence[Check]
) -> list[Check]:
    """Every point of what is expected of a library built against torch.

    `tried` is what came of using it.
    """
    checks = [_python(asked, python)]
    if asked.version:
        checks += _companion(asked.package, asked.version, installed.get(asked.package))
    for kind in asked.decodes:
        seen = next((check for check in tried if check.name == f"decode {kind}"), None)
        right = seen is not None and seen.status == "pass"
        outcome = "not tried" if seen is None else seen.detail or seen.found or seen.status
        cure = f"its headers were not found when it was compiled: install lib{kind}'s -dev package"
        checks.append(
            holds(
                GROUP,
                f"reads {kind}",
                right,
                found="yes" if right else outcome.strip().rpartition("\n")[2],
                wanted=f"torchvision.io reads {kind}",
                cure=cure,
            )
        )
    return checks


def _public(version: str) -> str:
    try:
        return Version(version).public
    except InvalidVersion:
        return version.partition("+")[0]


def _version(asked: Expects, facts: TorchFacts) -> Check:
    found = _public(facts.version) if asked.published else facts.version
    cure = "PYTORCH_BUILD_VERSION was not set for this build, or it is another wheel"
    return holds(
        GROUP,
        "version",
        found == asked.version,
        found=facts.version,
        wanted=asked.version,
        cure=cure,
    )


def _tag(asked: Expects, tags: Collection[str]) -> Iterator[Check]:
    if not asked.tag or not tags:
        return
    right = any(_same_tag(asked.tag, tag) for tag in tags)
    cure = "it was built with another Python, or for another machine"
    found = ", ".join(sorted(tags))
    yield holds(GROUP, "tag asked for", right, found=found, wanted=asked.tag, cure=cure)


def _same_tag(asked: str, found: str) -> bool:
    """Python, ABI and machine are the same; linux_x86_64 may have become manylinux_2_28_x86_64."""
    if asked == found:
        return True
    python, _, platform = asked.rpartition("-")
    have, _, repaired = found.rpartition("-")
    machine = platform.removeprefix("linux_")
    return have == python and repaired.startswith("manylinux") and repaired.endswith(f"_{machine}")


def _python(asked: Expects, python: str) -> Check:
    return holds(
        GROUP,
        "python",
        f"{python}.".startswith(f"{asked.python.removesuffix('t')}."),
        found=python,
        wanted=asked.python,
        cure="verify with a Python of that release, or build for this one",
    )


def _cuda(asked: Expects, facts: TorchFacts) -> Iterator[Check]:
    found = facts.cuda or "none"
    if not asked.cuda:
        cure = "USE_CUDA=0, and build again"
        yield holds(GROUP, "cuda", facts.cuda is None, found=found, wanted="none", cure=cure)
        return
    right = f"{found}.".startswith(f"{asked.cuda}.")
    cure = "CUDA_HOME pointed to another toolkit when it was configured"
    yield holds(GROUP, "cuda", right, found=found, wanted=asked.cuda, cure=cure)
    if facts.cuda is None:
        return
    due = asked.archs
    have = facts.compiled_for
    missing = set(due) - set(have)
    extra = set(have) - set(due)
    cure = f"TORCH_CUDA_ARCH_LIST={asked.arch_list!r}, and build again"
    status: Status = "fail" if missing else "warn" if extra else "pass"
    listed = " ".join(have) or "none"
    yield rated(GROUP, "architectures", status, listed, " ".join(due), cure)


def _features(asked: Expects, facts: TorchFacts) -> Iterator[Check]:
    firm = asked.decided
    for name, mode in asked.features:
        there = facts.has(name)
        title = f"feature {name}"
        if there is None:
            if name in firm:
                yield Check(GROUP, title, "info", "this torch cannot be asked about it", mode)
            continue
        found = "there" if there else "not there"
        if there == (mode != "off"):
            if name in firm:
                yield Check(GROUP, title, "pass", found)
        elif name not in firm or (name == "mkl" and mode == "off"):
            # No switch forbids MKL, and a default nobody asked for may differ by platform.
            yield Check(GROUP, title, "warn", found, mode)
        else:
            cure = "CMakeCache.txt and the first lines of the build's log say why"
            yield Check(GROUP, title, "fail", found, mode, cure=cure)


def _linking(asked: Expects, facts: TorchFacts, libraries: Sequence[Library]) -> Iterator[Check]:
    if not libraries:
        return
    needed = {name for library in libraries for name in library.needed}
    for name, way in asked.linking:
        if name == "cuda runtime" and not facts.cuda:
            continue
        dynamic = sorted(item for item in needed if item.startswith(LIBRARIES[name]))
        title = f"linking of {name}"
        found = ", ".join(dynamic) or "static"
        if way == "static":
            cure = f"a static {name} was not found when it was configured"
            yield holds(GROUP, title, not dynamic, found=found, wanted="static", cure=cure)
        else:
            # A system's library may be a static one, and so may what nobody decided about.
            missed: Status = "fail" if asked.must_be_shared(name) else "warn"
            wanted = "the system's" if way == "system" else "a shared library"
            yield Check(GROUP, title, "pass" if dynamic else missed, found, wanted)


def _companions(asked: Expects, installed: Mapping[str, str]) -> Iterator[Check]:
    for package, version in asked.companions:
        found = installed.get(package)
        if found is None:
            yield Check(GROUP, package, "absent", "not among what is verified")
        else:
            yield from _companion(package, version, found)


def _companion(package: str, version: str, found: str | None) -> Iterator[Check]:
    right = found is not None and _public(found) == _public(version)
    yield holds(GROUP, package, right, found=found or "not installed", wanted=version)


GPU_CODE = "GPU code"
_HAVE_SOME = ("torch", "torchvision")


def judge_gpu_code(
    name: str, libraries: Sequence[Library], asked: Expects | None = None
) -> Iterator[Check]:
    """Say which GPUs a package has code for; with `asked`, whether it is those and no others.

    Torch itself may hold more: where it is built for 9.0, one file is for sm_90a, too.
    https://github.com/pytorch/pytorch/blob/v2.6.0/cmake/Codegen.cmake
    """
    holding = [library for library in libraries if library.gpu]
    unread = [
        f"{library.path}: {library.gpu_unread}" for library in libraries if library.gpu_unread
    ]
    if unread:
        cure = "cuobjdump --list-elf --list-ptx FILE, of a newer CUDA, may know it"
        yield Check(GPU_CODE, name, "warn", few(unread, 2), "a form we know", cure=cure)
    found = sorted({code for library in holding for code in library.gpu}, key=order)
    there = " ".join(found) or "none"
    if asked is None or not asked.archs:
        if holding:
            yield Check(GPU_CODE, name, "info", f"{there}, in {few([i.name for i in holding])}")
        return
    wanted = sorted(asked.archs, key=order)
    missing = [code for code in wanted if code not in found]
    extra = [code for code in found if code not in wanted]
    cure = f"TORCH_CUDA_ARCH_LIST={asked.arch_list!r}, and build again"
    if name == "torch":
        extra = [code for code in extra if code.rstrip("af") not in wanted]
    status: Status = "fail" if missing or extra else "pass"
    # Torch may have a reason for more; an extension need not have any.
    if (name == "torch" and not missing and extra) or (name not in _HAVE_SOME and not found):
        status = "warn"
    yield rated(GPU_CODE, name, status, there, " ".join(wanted), cure)

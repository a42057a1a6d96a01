"""Holding a torch against what was asked for."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from packaging.version import InvalidVersion, Version

from torchsmith.facts.models import Mode
from torchsmith.resolve.models import Resolution
from torchsmith.verify.binary import Library
from torchsmith.verify.checks import Check, Status, holds
from torchsmith.verify.probing import TorchFacts

GROUP = "asked for"
# The start of the library's name, for features that can be linked either way.
_LIBRARIES = {
    "nccl": "libnccl",
    "cudnn": "libcudnn",
    "cupti": "libcupti",
    "mkl": "libmkl",
    "mpi": "libmpi",
    "ucc": "libucc",
    "numa": "libnuma",
    "gloo": "libgloo",
}


def matching(resolutions: Sequence[Resolution], version: str, python: str) -> Resolution | None:
    """Return the variant a torch is most likely meant to be: by Python, then by version."""
    fitting = list(resolutions)
    for test in (
        lambda item: f"{python}.".startswith(f"{item.python}."),
        lambda item: item.version == version,
        lambda item: _public(item.version) == _public(version),
    ):
        fitting = [item for item in fitting if test(item)] or fitting
    return fitting[0] if fitting else None


def compare(
    asked: Resolution,
    facts: TorchFacts,
    python: str,
    libraries: Sequence[Library],
    installed: Mapping[str, str],
) -> list[Check]:
    """Every point of a resolution that can be seen in the result.

    `libraries` are torch's own; `installed` holds the versions of what lies beside it.
    """
    return [
        _version(asked, facts),
        holds(
            GROUP,
            "python",
            f"{python}.".startswith(f"{asked.python}."),
            found=python,
            wanted=asked.python,
            cure="verify with a Python of that release, or build for this one",
        ),
        *_cuda(asked, facts),
        *_features(asked, facts),
        *_linking(asked, facts, libraries),
        *_companions(asked, installed),
    ]


def _public(version: str) -> str:
    try:
        return Version(version).public
    except InvalidVersion:
        return version.partition("+")[0]


def _version(asked: Resolution, facts: TorchFacts) -> Check:
    # A published wheel has a label of its publisher's choosing.
    published = asked.use == "wheel"  # an installed one was read, label and all
    wanted = asked.torch if published else asked.version
    found = _public(facts.version) if published else facts.version
    cure = "PYTORCH_BUILD_VERSION was not set for this build, or it is another wheel"
    return holds(GROUP, "version", found == wanted, found=facts.version, wanted=wanted, cure=cure)


def _cuda(asked: Resolution, facts: TorchFacts) -> Iterator[Check]:
    wanted = asked.cuda
    found = facts.cuda or "none"
    if wanted is None:
        cure = "USE_CUDA=0, and build again"
        yield holds(GROUP, "cuda", facts.cuda is None, found=found, wanted="none", cure=cure)
        return
    right = f"{found}.".startswith(f"{wanted.version}.")
    cure = "CUDA_HOME pointed to another toolkit when it was configured"
    yield holds(GROUP, "cuda", right, found=found, wanted=wanted.version, cure=cure)
    if facts.cuda is None:
        return
    due = [f"sm_{arch.number}" for arch in wanted.archs]
    due += [f"compute_{arch.number}" for arch in wanted.archs if arch.ptx]
    have = facts.compiled_for
    missing = [name for name in due if name not in have]
    extra = [name for name in have if name not in due]
    cure = f"TORCH_CUDA_ARCH_LIST={wanted.arch_list!r}, and build again"
    listed = " ".join(have) or "none"
    if missing:
        yield Check(GROUP, "architectures", "fail", listed, " ".join(due), cure=cure)
    elif extra:
        yield Check(GROUP, "architectures", "warn", listed, " ".join(due), cure=cure)
    else:
        yield Check(GROUP, "architectures", "pass", listed)


def decided(asked: Resolution) -> frozenset[str]:
    """Features somebody decided about: the others are as the release or the platform has them."""
    start = "feature "
    # A profile is a wish about what we build; a published wheel knows nothing of it.
    whose = ("the recipe",) if asked.use != "source" else ("the recipe", "profile")
    return frozenset(
        choice.subject.removeprefix(start)
        for choice in asked.choices
        if choice.subject.startswith(start) and choice.reason.startswith(whose)
    )


def _features(asked: Resolution, facts: TorchFacts) -> Iterator[Check]:
    firm = decided(asked)
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


def _linking(asked: Resolution, facts: TorchFacts, libraries: Sequence[Library]) -> Iterator[Check]:
    if not libraries:
        return
    needed = {name for library in libraries for name in library.needed}
    modes: list[tuple[str, str, Mode]] = [
        (name, _LIBRARIES[name], mode) for name, mode in asked.features if name in _LIBRARIES
    ]
    if asked.cuda is not None and facts.cuda:
        state = asked.feature("static_cuda")
        modes.append(("cuda runtime", "libcudart", "static" if state == "on" else "on"))
    for name, start, mode in modes:
        dynamic = sorted(item for item in needed if item.startswith(start))
        title = f"linking of {name}"
        if mode == "static":
            cure = f"a static {name} was not found when it was configured"
            yield holds(
                GROUP,
                title,
                not dynamic,
                found=", ".join(dynamic) or "static",
                wanted="static",
                cure=cure,
            )
        elif mode == "system":
            # A system's library may be a static one.
            status: Status = "pass" if dynamic else "warn"
            yield Check(GROUP, title, status, ", ".join(dynamic) or "static", "the system's")


def _companions(asked: Resolution, installed: Mapping[str, str]) -> Iterator[Check]:
    for companion in asked.companions:
        found = installed.get(companion.package)
        if found is None:
            yield Check(GROUP, companion.package, "absent", "not among what is verified")
            continue
        right = _public(found) == _public(companion.version)
        yield holds(GROUP, companion.package, right, found=found, wanted=companion.version)

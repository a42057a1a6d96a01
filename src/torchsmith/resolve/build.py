"""Deciding how the build is called: its environment, flags, Python packages and base image."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

from torchsmith.facts.files import Facts, addresses
from torchsmith.facts.models import Board, DebianBuild, VendoredFile
from torchsmith.facts.ranges import python_release, requirement, version_range
from torchsmith.facts.torch import entry_for
from torchsmith.names import did_you_mean
from torchsmith.recipe.models import Recipe
from torchsmith.resolve.models import (
    Caution,
    Choice,
    Conflict,
    CudaChoice,
    Evidence,
    SourceChoice,
    VendoredChoice,
)
from torchsmith.resolve.target import Target
from torchsmith.resolve.toolchain import Decided


def board_notes(facts: Facts, recipe: Recipe, torch: str, board: Board, decided: Decided) -> None:
    """What the board cannot have, as cautions."""
    needed = max(
        (
            entry.disk_mb // 1000
            for entry in facts.costs.compile
            if (entry.project, entry.profile) == ("torch", recipe.profile)
            and torch in version_range(entry.torch)
        ),
        default=0,
    )
    if recipe.torch.use == "source" and board.storage_gb and needed > board.storage_gb:
        decided.cautions.append(
            Caution(
                f"compiling takes about {needed} GB, and the {board.title} has "
                f"{board.storage_gb} GB of its own",
                "compile on a disk that is plugged in: WORK of the script",
            )
        )
    for lack in board.lacks:
        decided.cautions.append(
            Caution(
                f"the {board.title} has no {lack.feature}: {lack.reason.rstrip('.')}",
                lack.instead.rstrip("."),
            )
        )


def debian_build(
    facts: Facts, torch: str, source: SourceChoice, decided: Decided
) -> DebianBuild | None:
    """What Debian's source needs that upstream's does not, if that is where it comes from."""
    if source.kind != "debian":
        return None
    found = entry_for(facts.systems.debian_build, torch)
    if found is None:
        decided.cautions.append(
            Caution(
                f"how to build Debian's source of torch {torch} is not known: it comes without the "
                "libraries upstream bundles",
                "source.kind = 'git'; or say in [build.env] and build.apt what it needs",
            )
        )
        return None
    decided.choices.append(
        Choice(
            "libraries",
            "the system's",
            "Debian's source comes without the ones upstream bundles",
            addresses(facts.systems.sources, found),
        )
    )
    return found


def vendored_files(
    debian: DebianBuild | None, cuda: str, features: Mapping[str, str]
) -> tuple[VendoredChoice, ...]:
    """What other packages lend, each lender asked once for all of it."""
    wanted = [
        item
        for item in (debian.vendored if debian is not None else ())
        if (item.cuda is None or (cuda and cuda in version_range(item.cuda)))
        and (not item.feature or features.get(item.feature, "off") != "off")
    ]
    lent: dict[tuple[str, str, str], list[VendoredFile]] = {}
    for item in wanted:
        lent.setdefault((item.suite, item.package, item.version), []).append(item)
    lenders = {
        key: SourceChoice(
            "debian" if key[0] else "pool" if items[0].pool else "wheel",
            suite=key[0],
            package=key[1],
            ref=key[2],
            url=items[0].pool,
            sha256="" if key[0] else items[0].sha256,
            files=tuple(sorted(item.file for item in items)),
        )
        for key, items in lent.items()
    }
    return tuple(
        VendoredChoice(
            item.path, lenders[item.suite, item.package, item.version], item.file, item.sha256
        )
        for item in wanted
    )


def build_env(
    facts: Facts,
    recipe: Recipe,
    torch: str,
    target: Target,
    cuda: CudaChoice | None,
    version: str,
    debian: DebianBuild | None,
    features: Mapping[str, str],
) -> dict[str, str]:
    """The environment of the build beside that of its features; the recipe's own wins."""
    env: dict[str, str] = {}
    for switch in facts.torch.switch:
        if torch in version_range(switch.torch) and switch.platform in (None, target.platform):
            env.update(switch.env)
    env.update(debian.env if debian else {})
    # The BLAS that a feature names is not the one that Debian's source takes by default.
    env = {name: value for name, value in env.items() if name not in features}
    if target.board is not None:
        env.update(target.board.env)
    if cuda is not None:
        env["TORCH_CUDA_ARCH_LIST"] = cuda.arch_list
        if cuda.nvcc_flags:
            env["TORCH_NVCC_FLAGS"] = " ".join(cuda.nvcc_flags)
    if recipe.profile == "debug":
        env["DEBUG"] = "1"
    env["PYTORCH_BUILD_VERSION"] = version
    env["PYTORCH_BUILD_NUMBER"] = "1"
    env.update(recipe.build.env)
    return env


def cpu_flags(facts: Facts, recipe: Recipe, target: Target, decided: Decided) -> str:
    """The compiler flag for the CPU; none for a portable build."""
    wish = recipe.cpu
    if wish == "portable":
        if target.board is not None:
            flags = f"-mcpu={target.board.cpu}"
            decided.choices.append(Choice("CPU", flags, f"the {target.board.title}'s cores"))
            return flags
        return ""
    if wish.startswith("-m"):
        flags = wish
    elif target.platform == "linux-aarch64":
        flags = f"-mcpu={wish}"
    else:
        flags = f"-march={wish}"
    decided.choices.append(
        Choice("CPU", flags, "the recipe says so; the result may not start on an older CPU")
    )
    name = flags.partition("=")[2].partition("+")[0]
    known = facts.systems.cpus.get(target.platform, [])
    if not flags.startswith("-mtune=") and name not in known:
        decided.cautions.append(
            Caution(
                f"gcc is not known to have a CPU {name!r} on {target.platform}",
                did_you_mean(name, known),
            )
        )
    return flags


def base_image(recipe: Recipe, cuda: CudaChoice | None, plain: str) -> str:
    """What an image is built on: the recipe's own, NVIDIA's, or the bare distribution."""
    if recipe.image is not None and recipe.image.foundation is not None:
        return recipe.image.foundation.name
    if recipe.image is not None and recipe.image.base is not None:
        return recipe.image.base
    if cuda is not None and cuda.image:
        return cuda.image
    return plain


def span_of(facts: Facts, what: str, torch: str) -> str:
    """The range of something this torch needs; any if nothing is known."""
    entry = entry_for(getattr(facts.torch, what), torch)
    return entry.value if entry is not None else ":"


def has_cmake_wheels(python: str) -> bool:
    """Whether PyPI has CMake for this Python."""
    return python_release(python) >= (3, 7)


def needs_cmake(recipe: Recipe) -> bool:
    """Whether CMake may be called: torchvision alone is built by setuptools and Ninja."""
    beside = recipe.companions
    wishes = (beside.audio, beside.text, beside.codec)
    others = any(wish != "none" for wish in wishes) or beside.extension
    return recipe.torch.use == "source" or recipe.packages.magma or bool(others)


def build_requires(
    facts: Facts, torch: str, python: str, packages: list[str], own: Sequence[str], *, cmake: bool
) -> tuple[str, ...]:
    """The Python packages the build needs, as pip requirements; `own` are the recipe's."""
    spans = {
        "setuptools": span_of(facts, "setuptools", torch),
        "numpy": span_of(facts, "numpy", torch),
        "cmake": span_of(facts, "cmake", torch),
    }
    wanted: dict[str, str] = {}
    for text in packages:
        name = _name(text)
        wanted[name] = requirement(name, version_range(spans[name])) if name in spans else text
    wanted.setdefault("setuptools", requirement("setuptools", version_range(spans["setuptools"])))
    wanted.setdefault("wheel", "wheel")
    if has_cmake_wheels(python):
        wanted["ninja"] = "ninja"
        if cmake:
            wanted["cmake"] = requirement("cmake", version_range(spans["cmake"]))
    else:
        wanted.pop("cmake", None)
        wanted.pop("ninja", None)
    known = (item.pins for item in facts.systems.pinned if item.python == python)
    pins = {_name(pin): pin for pin in next(known, [])}
    needed = {name: pins.get(name, text) for name, text in wanted.items()}
    both: list[str] = []
    for text in own:
        name = _name(text)
        if name in spans and text != name:
            # pip takes what fits both, or says that nothing does.
            both.append(text)
        elif text != name or name not in needed:
            needed[name] = text
    return tuple(sorted({*needed.values(), *both}))


def check_pip(facts: Facts, recipe: Recipe, torch: str, decided: Decided) -> None:
    """Refuse what pip could not install beside what this torch takes."""
    tables = {
        "setuptools": facts.torch.setuptools,
        "numpy": facts.torch.numpy,
        "cmake": facts.torch.cmake,
    }
    for text in recipe.build.pip:
        name = _name(text)
        entry = entry_for(tables[name], torch) if name in tables else None
        if entry is None or _together(text, requirement(name, version_range(entry.value))):
            continue
        decided.conflicts.append(
            Conflict(
                "build-pip",
                f"torch {torch} does not build with {text}",
                Evidence(f"asked for: {text} in build.pip"),
                Evidence(
                    f"torch {torch} takes {name} {version_range(entry.value)}",
                    addresses(facts.torch.sources, entry),
                ),
                f"leave {name} out of build.pip",
            )
        )


def _together(*texts: str) -> bool:
    """Whether some version fits all of these requirements on one package."""
    from packaging.requirements import Requirement  # Few recipes have any.
    from packaging.version import Version

    both = [Requirement(text).specifier for text in texts]
    named = [one.version.removesuffix(".*") for item in both for one in item]
    ends = [Version(text).release for text in named]
    # At an end of a range, right after it, or right before it.
    tried = [[*end, 0, 1] for end in ends]
    tried += [[*end[:at], end[at] - 1, 9999] for end in ends for at in range(len(end)) if end[at]]
    versions = [*named, *(".".join(map(str, numbers)) for numbers in tried)] or ["1"]
    return any(all(item.contains(one, prereleases=True) for item in both) for one in versions)


def _name(text: str) -> str:
    found = re.match(r"[\w.-]+", text)
    return found[0] if found else text

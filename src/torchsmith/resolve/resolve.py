"""The door of this room: one variant in, a resolution or every conflict out."""

from __future__ import annotations

from collections.abc import Mapping

from msgspec import Struct
from msgspec.structs import replace

from torchsmith.facts.cuda import archs_of, compiles, find_toolkit, toolkits
from torchsmith.facts.files import Facts, addresses
from torchsmith.facts.models import Board, Jetpack, Mode
from torchsmith.facts.ranges import dotted, release, requirement, version_range
from torchsmith.facts.torch import companion_for, entry_for, find_release, releases
from torchsmith.host.models import Host
from torchsmith.recipe.gpus import gpu_wish
from torchsmith.recipe.matrix import Variant
from torchsmith.recipe.models import Recipe
from torchsmith.resolve.archs import ArchDecisions, decide_archs
from torchsmith.resolve.combination import Combination, clashes
from torchsmith.resolve.features import decide_features
from torchsmith.resolve.models import (
    Arch,
    Caution,
    Choice,
    CompanionChoice,
    Conflict,
    CudaChoice,
    Evidence,
    ExtensionChoice,
    MagmaChoice,
    Outcome,
    Refusal,
    Resolution,
)
from torchsmith.resolve.naming import conda_build_string, version_label, wheel_name
from torchsmith.resolve.nearest import cures, nearest_working
from torchsmith.resolve.sources import decide_patches, decide_source
from torchsmith.resolve.toolchain import (
    Decided,
    decide_compiler,
    decide_toolkit,
    default_system,
    find_system,
    image_tag,
)


class _Target(Struct):
    """Where the result will run."""

    platform: str
    board: Board | None
    jetpack: Jetpack | None
    system: str
    container: bool


def resolve(
    variant: Variant, facts: Facts, host: Host, files: Mapping[str, bytes] | None = None
) -> Outcome:
    """Make every choice for a variant, or say every reason why it cannot exist."""
    recipe = variant.recipe
    decided = Decided()
    found = find_release(facts, recipe.torch.release)
    if found is None:
        return Refusal(variant.name, (_unknown_torch(facts, recipe.torch.release),))
    torch = found.version
    if torch != recipe.torch.release:
        decided.choices.append(
            Choice("torch", torch, f"the newest {recipe.torch.release} release", "")
        )
    target = _decide_target(facts, recipe, host, decided)
    python, python_from = _decide_python(facts, variant.python, target, host, decided)
    cuda = _decide_cuda(facts, recipe, torch, target, host, decided)
    if cuda and not target.system and recipe.image is not None:
        target.system = default_system(facts, cuda, torch)
        target.container = True
    system = find_system(facts, target.system) if target.system else None

    arch_list = ArchDecisions()
    compiled = _compiles(recipe)
    if cuda and compiled:
        arch_list = decide_archs(
            facts,
            torch=torch,
            cuda=cuda,
            platform=target.platform,
            board=target.board,
            gpus=recipe.gpus,
            host=host,
            compressed="-compress-all" in " ".join(recipe.cuda.nvcc_flags),
        )
    elif recipe.gpus != ["published"] and not cuda:
        decided.conflicts.append(_gpu_without_cuda(recipe))
    decided.choices += arch_list.choices
    decided.cautions += arch_list.cautions
    decided.conflicts += arch_list.conflicts

    compiler = decide_compiler(
        facts,
        needed=compiled,
        torch=torch,
        cuda=cuda if find_toolkit(facts, cuda or "0") else "",
        asked=recipe.build.compiler,
        system=system,
        host=host,
        decided=decided,
    )
    cudnn = _decide_cudnn(facts, recipe, torch, cuda, target, decided)
    asked = Combination(
        torch=torch,
        python=python,
        cuda=cuda,
        archs=tuple(item.arch for item in arch_list.archs) if arch_list.explicit else (),
        cudnn=cudnn,
        compiler=(compiler.kind, compiler.version) if recipe.build.compiler else None,
        companions=_asked_companions(recipe),
        board=target.board.name if target.board else "",
        from_source=recipe.torch.use == "source",
    )
    broken = clashes(facts, asked)
    decided.conflicts += [
        replace(clash.conflict, cure=cures(facts, asked, clash)) for clash in broken
    ]
    wishes: dict[str, Mode] = dict(recipe.features)
    _check_cuda_wish(wishes, cuda, decided)
    features = decide_features(
        facts,
        torch=torch,
        platform=target.platform,
        board=target.board,
        cuda=cuda,
        profile=recipe.profile,
        asked={**wishes, "cuda": "on" if cuda else "off"},
    )
    decided.choices += features.choices
    decided.conflicts += features.conflicts
    source = decide_source(facts, recipe, found, decided)
    if decided.conflicts:
        near = nearest_working(facts, asked) if broken else None
        return Refusal(
            variant.name, _unique(decided.conflicts), near.shown() if near is not None else ""
        )

    cuda_choice = _cuda_choice(facts, recipe, torch, cuda, arch_list, cudnn, target, host, decided)
    if decided.conflicts:
        return Refusal(variant.name, _unique(decided.conflicts))
    companions = _companions(facts, recipe, torch, decided)
    magma = _magma(facts, recipe, cuda_choice, decided)
    if decided.conflicts:
        return Refusal(variant.name, _unique(decided.conflicts))
    versions = {"torch": torch, **{item.name: item.version for item in companions}}
    if magma is not None:
        versions["magma"] = magma.version
    patches = decide_patches(facts, recipe, versions, cuda, compiler, source, files or {}, decided)
    if target.board is not None:
        _board_notes(target.board, decided)

    label = version_label(recipe.packages.label, cuda, arch_list.archs, explicit=arch_list.explicit)
    if recipe.torch.use == "wheel":
        label = ""
    version = recipe.torch.version or (f"{torch}+{label}" if label else torch)
    frontend = entry_for(facts.torch.frontend, torch)
    env = _build_env(recipe, target, cuda_choice, version)
    if not _python_has_cmake_wheels(python):
        decided.choices.append(
            Choice("CMake", "system", f"PyPI has no CMake wheels for Python {python}")
        )
    return Resolution(
        variant=variant.name,
        torch=torch,
        use=recipe.torch.use,
        version=version,
        build_number=recipe.torch.build_number,
        python=python,
        python_from=python_from,
        platform=target.platform,
        board=target.board.name if target.board else "",
        jetpack=target.jetpack.version if target.jetpack else "",
        system=target.system,
        container=target.container,
        base_image=_base_image(recipe, cuda_choice, system.image if system else ""),
        cuda=cuda_choice,
        cpu_flags=_cpu_flags(recipe, target, decided),
        profile=recipe.profile,
        features=tuple(features.modes.items()),
        feature_env=tuple(features.env.items()),
        expected_cache=tuple(sorted(features.cache.items())),
        env=tuple(env.items()),
        cmake=tuple(recipe.build.cmake.items()),
        compiler=compiler,
        cmake_range=_span(facts, "cmake", torch),
        requires=_requires(
            facts, torch, python, [*(frontend.requires if frontend else []), *recipe.build.pip]
        ),
        frontend=frontend.command if frontend else "setup.py",
        cmake_only=frontend.cmake_only if frontend else False,
        source=source,
        patches=patches,
        companions=companions,
        extensions=tuple(
            ExtensionChoice(
                item.name,
                sdist=item.sdist or "",
                git_url=item.git.url if item.git else "",
                git_ref=item.git.ref if item.git else "",
                folder=item.folder or "",
                env=tuple(item.env.items()),
            )
            for item in recipe.companions.extension
        ),
        magma=magma,
        apt=tuple(dict.fromkeys([*features.apt, *recipe.build.apt])),
        wheel=wheel_name("torch", version, python, target.platform),
        conda_build=conda_build_string(
            python, cuda_choice.build if cuda_choice else "", cudnn, recipe.torch.build_number
        ),
        choices=tuple(decided.choices),
        cautions=tuple(decided.cautions),
    )


def _unique(conflicts: list[Conflict]) -> tuple[Conflict, ...]:
    return tuple(dict.fromkeys(conflicts))


def _unknown_torch(facts: Facts, asked: str) -> Conflict:
    numbers = release(asked)
    every = releases(facts)
    below = [item.version for item in every if release(item.version) < numbers][-1:]
    above = [item.version for item in every if release(item.version) > numbers][:1]
    return Conflict(
        "torch-unknown",
        f"there is no torch {asked} that we know of",
        Evidence(f"asked for: torch {asked}"),
        Evidence(
            f"releases known: {every[0].version} to {every[-1].version}",
            addresses(facts.releases.sources, every[-1]),
        ),
        " or ".join(f"torch {version}" for version in below + above),
    )


def _gpu_without_cuda(recipe: Recipe) -> Conflict:
    return Conflict(
        "gpu-without-cuda",
        "GPUs are asked for, but no CUDA",
        Evidence(f"asked for: gpus = {', '.join(recipe.gpus)}"),
        Evidence("asked for: cuda = 'none' (the default)"),
        "cuda = a version such as '12.6'; or leave gpus out",
    )


def _check_cuda_wish(wishes: dict[str, Mode], cuda: str, decided: Decided) -> None:
    mode = wishes.pop("cuda", None)
    if mode is not None and (mode != "off") != bool(cuda):
        decided.conflicts.append(
            Conflict(
                "cuda-twice",
                "the recipe says two different things about CUDA",
                Evidence(f"features.cuda = {mode!r}"),
                Evidence(f"cuda = {cuda or 'none'!r}"),
                "leave features.cuda out: `cuda` decides",
            )
        )


def _decide_target(facts: Facts, recipe: Recipe, host: Host, decided: Decided) -> _Target:
    board = next((item for item in facts.boards.board if item.name == recipe.board), None)
    platform: str = recipe.platform
    if platform == "host":
        platform = board.platform if board else host.platform
        reason = f"the {board.title}'s" if board else "this machine's"
        decided.choices.append(Choice("platform", platform, reason))
    elif board is not None and platform != board.platform:
        decided.conflicts.append(
            Conflict(
                "board-platform",
                f"the {board.title} is not {platform}",
                Evidence(f"asked for: platform = {platform!r}"),
                Evidence(
                    f"{board.title} is {board.platform}", addresses(facts.boards.sources, board)
                ),
                "leave platform out: the board decides",
            )
        )
    if platform not in ("linux-x86_64", "linux-aarch64"):
        decided.conflicts.append(
            Conflict(
                "platform",
                f"torchsmith does not build for {platform}",
                Evidence(f"this machine is {platform}"),
                Evidence("linux-x86_64 and linux-aarch64 can be built for"),
                "platform = 'linux-x86_64' or 'linux-aarch64'",
            )
        )
    jetpack = _decide_jetpack(facts, recipe, board, decided)
    system = recipe.system or (jetpack.system if jetpack else "")
    on_board = board is not None and recipe.image is None
    container = recipe.system is not None and not on_board
    return _Target(platform, board, jetpack, system, container)


def _decide_jetpack(
    facts: Facts, recipe: Recipe, board: Board | None, decided: Decided
) -> Jetpack | None:
    if recipe.jetpack is None and board is None:
        return None
    offered = board.jetpack if board else []
    if recipe.jetpack is not None:
        match = [item for item in offered if item.version in version_range(recipe.jetpack)]
        if not match:
            name = board.title if board else "no board"
            decided.conflicts.append(
                Conflict(
                    "jetpack",
                    f"JetPack {recipe.jetpack} does not go with {name}",
                    Evidence(f"asked for: jetpack = {recipe.jetpack!r}"),
                    Evidence(
                        f"JetPacks for it: {', '.join(item.version for item in offered) or 'none'}",
                        addresses(facts.boards.sources, board),
                    ),
                    "one of these" if offered else "board = 'jetson-…'",
                )
            )
            return None
        decided.choices.append(Choice("JetPack", match[-1].version, "the recipe says so"))
        return match[-1]
    wanted = recipe.cuda.version
    fitting = [
        item
        for item in offered
        if wanted in ("none", "host") or release(item.cuda)[:2] == release(wanted)[:2]
    ]
    if not fitting:
        return None
    decided.choices.append(
        Choice("JetPack", fitting[-1].version, f"the newest for it with CUDA {fitting[-1].cuda}")
    )
    return fitting[-1]


def _decide_python(
    facts: Facts, asked: str, target: _Target, host: Host, decided: Decided
) -> tuple[str, str]:
    system = find_system(facts, target.system) if target.system else None
    if asked == "host":
        if target.jetpack is not None:
            asked, reason = target.jetpack.python, f"JetPack {target.jetpack.version}'s own"
        elif target.container and system is not None:
            asked, reason = dotted(release(system.python)[:2]), f"{system.name}'s own"
        elif host.pythons:
            asked, reason = dotted(release(host.pythons[0].version)[:2]), "the one running here"
        else:
            asked, reason = "3.11", "no Python was seen on this host"
        decided.choices.append(Choice("Python", asked, reason))
    wanted = release(asked)
    if system is not None:
        own = release(system.python)[:2] == wanted
        return asked, "system" if own else "uv"
    have = any(release(item.version)[:2] == wanted and item.headers for item in host.pythons)
    if not have:
        decided.choices.append(
            Choice("Python from", "uv", f"CPython {asked} with headers is not installed here")
        )
    return asked, "system" if have else "uv"


def _decide_cuda(
    facts: Facts, recipe: Recipe, torch: str, target: _Target, host: Host, decided: Decided
) -> str:
    asked = recipe.cuda.version
    if asked == "none":
        return ""
    if asked == "host":
        if target.jetpack is not None:
            decided.choices.append(
                Choice("CUDA", target.jetpack.cuda, f"JetPack {target.jetpack.version}'s")
            )
            return dotted(release(target.jetpack.cuda)[:2])
        span = entry_for(facts.torch.cuda, torch)
        fitting = [
            item
            for item in host.cuda
            if span is None or dotted(release(item.version)[:2]) in version_range(span.value)
        ]
        if fitting:
            best = max(fitting, key=lambda item: release(item.version))
            version = dotted(release(best.version)[:2])
            decided.choices.append(Choice("CUDA", version, f"installed at {best.path}"))
            return version
        have = ", ".join(item.version for item in host.cuda) or "none"
        offers = [
            item.version
            for item in toolkits(facts)
            if span is not None and item.version in version_range(span.value)
        ]
        decided.conflicts.append(
            Conflict(
                "cuda-host",
                f"this machine has no CUDA toolkit that torch {torch} builds with",
                Evidence(f"toolkits here: {have}"),
                Evidence(
                    f"torch {torch} builds with CUDA {version_range(span.value) if span else '?'}",
                    addresses(facts.torch.sources, span),
                ),
                f"cuda = '{offers[-1]}'" if offers else "",
            )
        )
        return ""
    toolkit = find_toolkit(facts, asked)
    return toolkit.version if toolkit else dotted(release(asked)[:2])


def _decide_cudnn(
    facts: Facts, recipe: Recipe, torch: str, cuda: str, target: _Target, decided: Decided
) -> str:
    if not cuda or recipe.features.get("cudnn") == "off":
        if recipe.cuda.cudnn and recipe.features.get("cudnn") == "off":
            decided.conflicts.append(
                Conflict(
                    "cudnn-twice",
                    "the recipe asks for a cuDNN release and turns cuDNN off",
                    Evidence(f"cuda.cudnn = {recipe.cuda.cudnn!r}"),
                    Evidence("features.cudnn = 'off'"),
                    "keep one of the two",
                )
            )
        return ""
    if recipe.cuda.cudnn:
        return recipe.cuda.cudnn
    if target.jetpack is not None:
        decided.choices.append(
            Choice("cuDNN", target.jetpack.cudnn, f"JetPack {target.jetpack.version}'s")
        )
        return target.jetpack.cudnn
    return ""


def _asked_companions(recipe: Recipe) -> tuple[tuple[str, str], ...]:
    wishes = (
        ("vision", recipe.companions.vision),
        ("audio", recipe.companions.audio),
        ("text", recipe.companions.text),
    )
    return tuple((name, version) for name, version in wishes if version != "none")


def _companions(
    facts: Facts, recipe: Recipe, torch: str, decided: Decided
) -> tuple[CompanionChoice, ...]:
    chosen: list[CompanionChoice] = []
    for name, wish in _asked_companions(recipe):
        project = next(item for item in facts.companions.project if item.name == name)
        entry = (
            companion_for(facts, name, torch)
            if wish == "match"
            else next(
                item
                for item in facts.companions.release
                if item.name == name and item.version == wish
            )
        )
        assert entry is not None, name
        decided.choices.append(
            Choice(
                project.package,
                entry.version,
                f"{'the release' if wish == 'match' else 'asked for; it is'} built against torch "
                f"{version_range(entry.torch)}",
                addresses(facts.companions.sources, entry),
            )
        )
        chosen.append(
            CompanionChoice(
                name,
                project.package,
                entry.version,
                entry.tag,
                project.repository,
                entry.commit or "",
            )
        )
    return tuple(chosen)


def _cuda_choice(
    facts: Facts,
    recipe: Recipe,
    torch: str,
    cuda: str,
    archs: ArchDecisions,
    cudnn: str,
    target: _Target,
    host: Host,
    decided: Decided,
) -> CudaChoice | None:
    if not cuda:
        return None
    known = find_toolkit(facts, cuda)
    assert known is not None, cuda
    system = find_system(facts, target.system) if target.system and target.container else None
    if not _compiles(recipe):
        decided.choices.append(Choice("CUDA toolkit", "none", "nothing is compiled"))
        return CudaChoice(cuda, cuda, "none", tuple(archs.archs), cudnn)
    toolkit = decide_toolkit(
        facts,
        asked=recipe.cuda,
        cuda=cuda,
        torch=torch,
        system=system,
        board=target.board.name if target.board else "",
        host=host,
        decided=decided,
    )
    asked = recipe.cuda.version
    exact = [build for build in known.builds if build == asked]
    build = exact[0] if exact else (known.builds[-1] if known.builds else cuda)
    image = ""
    if toolkit == "image" and system is not None:
        image = image_tag(known, system.name.replace("-", ""), cudnn)
    return CudaChoice(
        version=cuda,
        build=build,
        toolkit=toolkit,
        archs=tuple(archs.archs),
        cudnn=cudnn,
        nccl=recipe.cuda.nccl or "",
        image=image,
        nvcc_flags=tuple(recipe.cuda.nvcc_flags),
    )


def _compiles(recipe: Recipe) -> bool:
    return bool(
        recipe.torch.use == "source" or _asked_companions(recipe) or recipe.companions.extension
    )


def _magma(
    facts: Facts, recipe: Recipe, cuda: CudaChoice | None, decided: Decided
) -> MagmaChoice | None:
    if not recipe.packages.magma:
        return None
    entry = next(
        (
            item
            for item in facts.patches.magma
            if cuda is not None and cuda.version in version_range(item.cuda)
        ),
        None,
    )
    if cuda is None or entry is None:
        decided.cautions.append(
            Caution(
                "packages.magma is asked for, but "
                + (
                    "there is no CUDA in this build" if cuda is None else "no MAGMA is known for it"
                ),
                "give a cuda version, or packages.magma = false",
            )
        )
        return None
    archs = list(entry.archs)
    if recipe.packages.magma_gpus:
        archs = [gpu_wish(text).arch for text in recipe.packages.magma_gpus]
        for arch in archs:
            if not compiles(facts, cuda.version, arch):
                decided.conflicts.append(
                    Conflict(
                        "magma-arch",
                        f"CUDA {cuda.version} cannot compile MAGMA for {arch or 'that GPU'}",
                        Evidence(f"asked for: packages.magma_gpus with {arch}"),
                        Evidence(
                            f"CUDA {cuda.version} compiles for "
                            + ", ".join(item.arch for item in archs_of(facts, cuda.version))
                        ),
                        "compute capabilities from that list",
                    )
                )
    decided.choices.append(
        Choice(
            "MAGMA",
            entry.version,
            f"the release PyTorch's own builds use with CUDA {cuda.version}",
            addresses(facts.patches.sources, entry),
        )
    )
    return MagmaChoice(
        entry.version,
        entry.url,
        entry.sha256,
        f"magma-cuda{cuda.short}",
        tuple(Arch(arch).number for arch in archs),
    )


def _board_notes(board: Board, decided: Decided) -> None:
    for lack in board.lacks:
        decided.cautions.append(
            Caution(f"the {board.title} has no {lack.feature}: {lack.reason}", lack.instead)
        )


def _build_env(
    recipe: Recipe, target: _Target, cuda: CudaChoice | None, version: str
) -> dict[str, str]:
    env: dict[str, str] = {}
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


def _cpu_flags(recipe: Recipe, target: _Target, decided: Decided) -> str:
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
    return flags


def _base_image(recipe: Recipe, cuda: CudaChoice | None, plain: str) -> str:
    if recipe.image is not None and recipe.image.foundation is not None:
        return recipe.image.foundation.name
    if recipe.image is not None and recipe.image.base is not None:
        return recipe.image.base
    if cuda is not None and cuda.image:
        return cuda.image
    return plain


def _span(facts: Facts, what: str, torch: str) -> str:
    entry = entry_for(getattr(facts.torch, what), torch)
    return entry.value if entry is not None else ":"


def _python_has_cmake_wheels(python: str) -> bool:
    return release(python) >= (3, 7)


def _requires(facts: Facts, torch: str, python: str, packages: list[str]) -> tuple[str, ...]:
    spans = {
        "setuptools": _span(facts, "setuptools", torch),
        "numpy": _span(facts, "numpy", torch),
        "cmake": _span(facts, "cmake", torch),
    }
    wanted: dict[str, str] = {}
    for text in packages:
        name = text.split(">")[0].split("=")[0].split("<")[0].split(";")[0].strip()
        wanted[name] = requirement(name, version_range(spans[name])) if name in spans else text
    wanted.setdefault("setuptools", requirement("setuptools", version_range(spans["setuptools"])))
    wanted.setdefault("wheel", "wheel")
    if _python_has_cmake_wheels(python):
        wanted["cmake"] = requirement("cmake", version_range(spans["cmake"]))
        wanted["ninja"] = "ninja"
    else:
        wanted.pop("cmake", None)
        wanted.pop("ninja", None)
    return tuple(sorted(wanted.values()))

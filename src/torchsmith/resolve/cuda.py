"""Deciding which CUDA, with which cuDNN, for which machine."""

from __future__ import annotations

from collections.abc import Sequence

from torchsmith.facts.cuda import compiles, find_toolkit, toolkits
from torchsmith.facts.files import Facts, addresses
from torchsmith.facts.models import Mode
from torchsmith.facts.models import Toolkit as KnownToolkit
from torchsmith.facts.ranges import dotted, release, version_range
from torchsmith.facts.torch import entry_for, patched_cuda, published_archs
from torchsmith.host.models import Host
from torchsmith.recipe.models import Recipe
from torchsmith.resolve.archs import MANY_ARCHS, ArchDecisions, named_archs
from torchsmith.resolve.build_rules import find_system
from torchsmith.resolve.models import Caution, Change, Choice, Conflict, CudaChoice, Evidence
from torchsmith.resolve.target import Target
from torchsmith.resolve.toolchain import Decided, decide_toolkit, image_tag

# What the project's own builds compile with; see pytorch/builder, manywheel/build_cuda.sh.
COMPRESSED = ("-Xfatbin", "-compress-all")


def suggested_cuda(facts: Facts, torch: str, archs: Sequence[str] = ()) -> str:
    """The newest toolkit for this torch that compiles for these; published ones first."""
    span = entry_for(facts.torch.cuda, torch)
    fitting = [
        item.version
        for item in toolkits(facts)
        if (span is None or item.version in version_range(span.value))
        and all(compiles(facts, item.version, arch) for arch in archs)
    ]
    published = [
        version for version in fitting if published_archs(facts, torch, version, "linux-x86_64")
    ]
    return (published or fitting or [""])[-1]


def decide_cuda(
    facts: Facts, recipe: Recipe, torch: str, target: Target, host: Host, decided: Decided
) -> str:
    """The toolkit as major.minor; empty for none."""
    asked = recipe.cuda.version
    if asked == "none":
        return ""
    if asked == "host":
        return _hosts_cuda(facts, recipe, torch, target, host, decided)
    if "." not in asked:
        return _newest_of_major(facts, recipe, torch, asked, decided)
    toolkit = find_toolkit(facts, asked)
    return toolkit.version if toolkit else dotted(release(asked)[:2])


def _patched(facts: Facts, recipe: Recipe, torch: str, versions: Sequence[str]) -> list[str]:
    """Those of these toolkits that patches let this torch be built with."""
    if recipe.torch.use != "source":
        return []
    return [version for version in versions if patched_cuda(facts, torch, version)]


def _newest_of_major(facts: Facts, recipe: Recipe, torch: str, major: str, decided: Decided) -> str:
    span = entry_for(facts.torch.cuda, torch)
    mine = [item.version for item in toolkits(facts) if item.version in version_range(major)]
    fitting = [item for item in mine if span is None or item in version_range(span.value)]
    published = [item for item in fitting if published_archs(facts, torch, item, "linux-x86_64")]
    if not mine:
        return f"{major}.0"
    version = (published or fitting or _patched(facts, recipe, torch, mine) or mine)[-1]
    reason = f"the newest CUDA {major}"
    if published:
        reason += f" that PyTorch publishes torch {torch} for"
    elif fitting:
        reason += f" that torch {torch} builds with"
    decided.choices.append(Choice("CUDA", version, reason))
    return version


def _hosts_cuda(
    facts: Facts, recipe: Recipe, torch: str, target: Target, host: Host, decided: Decided
) -> str:
    if target.jetpack is not None:
        version = dotted(release(target.jetpack.cuda)[:2])
        decided.choices.append(Choice("CUDA", version, f"JetPack {target.jetpack.version}'s"))
        return version
    span = entry_for(facts.torch.cuda, torch)
    here = {dotted(release(item.version)[:2]): item for item in reversed(host.cuda)}
    fitting = [
        version
        for version in here
        if find_toolkit(facts, version) and (span is None or version in version_range(span.value))
    ]
    if fitting := fitting or _patched(facts, recipe, torch, list(here)):
        version = max(fitting, key=release)
        decided.choices.append(Choice("CUDA", version, f"installed at {here[version].path}"))
        return version
    offer = suggested_cuda(facts, torch)
    strange = [version for version in here if not find_toolkit(facts, version)]
    have = ", ".join(item.version for item in host.cuda) or "none"
    if strange:
        have += f" (CUDA {', '.join(strange)} is none we know)"
    decided.conflicts.append(
        Conflict(
            "cuda-host",
            f"this machine has no CUDA toolkit that torch {torch} builds with",
            Evidence(f"toolkits here: {have}"),
            Evidence(
                f"torch {torch} builds with CUDA {version_range(span.value) if span else '?'}",
                addresses(facts.torch.sources, span),
            ),
            f"cuda = '{offer}'",
            (Change("cuda", offer),),
        )
    )
    # The rest is judged as if that were mended, so that no conflict follows from this one.
    return offer


def decide_cudnn(recipe: Recipe, cuda: str, target: Target, decided: Decided) -> str:
    """The cuDNN asked for, or JetPack's."""
    off = recipe.features.get("cudnn") == "off"
    if not cuda or off:
        return ""
    if recipe.cuda.cudnn:
        return recipe.cuda.cudnn
    if target.jetpack is not None:
        decided.choices.append(
            Choice("cuDNN", target.jetpack.cudnn, f"JetPack {target.jetpack.version}'s")
        )
        return target.jetpack.cudnn
    return ""


def check_cuda_wishes(
    facts: Facts, recipe: Recipe, torch: str, cuda: str, decided: Decided
) -> None:
    """What a recipe may say twice, and differently: CUDA, its parts, GPUs."""
    for name, version in (("cudnn", recipe.cuda.cudnn), ("nccl", recipe.cuda.nccl)):
        if not version:
            continue
        first = Evidence(f"cuda.{name} = {version!r}")
        if not cuda:
            decided.conflicts.append(
                Conflict(
                    "cuda-parts",
                    f"a release of {name} is asked for, but no CUDA",
                    first,
                    Evidence("cuda.version = 'none'"),
                    f"cuda.version = '{suggested_cuda(facts, torch)}'; or leave cuda.{name} out",
                    (Change(f"cuda.{name}", ""),),
                )
            )
        elif recipe.features.get(name) == "off":
            decided.conflicts.append(
                Conflict(
                    f"{name}-twice",
                    f"the recipe asks for a release of {name} and turns {name} off",
                    first,
                    Evidence(f"features.{name} = 'off'"),
                    f"leave features.{name} out; or leave cuda.{name} out",
                    (Change(f"features.{name}", ""),),
                )
            )
    if recipe.gpus != ["published"] and not cuda:
        wanted = named_archs(facts, recipe.gpus)
        offer = suggested_cuda(facts, torch, wanted) or suggested_cuda(facts, torch)
        decided.conflicts.append(
            Conflict(
                "gpu-without-cuda",
                "GPUs are asked for, but no CUDA",
                Evidence(f"asked for: gpus = {', '.join(recipe.gpus)}"),
                Evidence("cuda = 'none', which is the default"),
                f"cuda = '{offer}'; or leave gpus out",
                (Change("cuda", offer),),
            )
        )


def check_cuda_feature(facts: Facts, wishes: dict[str, Mode], cuda: str, decided: Decided) -> None:
    """`features.cuda` may repeat what `cuda` says, and nothing else."""
    mode = wishes.pop("cuda", None)
    if mode is None or (mode == "on" and cuda) or (mode == "off" and not cuda):
        return
    feature = next(item for item in facts.features.feature if item.name == "cuda")
    known = mode in feature.modes
    decided.conflicts.append(
        Conflict(
            "cuda-twice" if known else "feature-mode",
            "the recipe says two different things about CUDA"
            if known
            else f"cuda cannot be {mode!r}",
            Evidence(f"features.cuda = {mode!r}"),
            Evidence(f"cuda = {cuda or 'none'!r}")
            if known
            else Evidence(
                f"cuda can be {' or '.join(feature.modes)}; features.static_cuda links its "
                "libraries statically",
                addresses(facts.features.sources, feature),
            ),
            "leave features.cuda out: `cuda` decides",
            (Change("features.cuda", ""),),
        )
    )


def cuda_choice(
    facts: Facts,
    recipe: Recipe,
    torch: str,
    cuda: str,
    archs: ArchDecisions,
    cudnn: str,
    target: Target,
    host: Host,
    decided: Decided,
) -> CudaChoice | None:
    """The toolkit in full: its build, where it comes from, its flags."""
    if not cuda:
        return None
    known = find_toolkit(facts, cuda)
    assert known is not None, cuda
    if not compiled(recipe):
        decided.choices.append(Choice("CUDA toolkit", "none", "nothing is compiled"))
        return CudaChoice(cuda, cuda, "none", tuple(archs.archs), cudnn)
    if _patched(facts, recipe, torch, [cuda]):
        decided.cautions.append(
            Caution(
                f"torch {torch} with CUDA {cuda} is not upstream's: PyTorch never published it, "
                "and it compiles here only with torchsmith's own patches",
                f"cuda = '{suggested_cuda(facts, torch)}'; or a newer torch",
            )
        )
    system = find_system(facts, target.system) if target.system and target.container else None
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
    image = ""
    if toolkit == "image" and system is not None:
        image = image_tag(known, system.name.replace("-", ""), cudnn)
    return CudaChoice(
        version=cuda,
        build=_build(known, recipe.cuda.version, decided),
        toolkit=toolkit,
        archs=tuple(archs.archs),
        cudnn=cudnn,
        nccl=recipe.cuda.nccl or "",
        image=image,
        nvcc_flags=_nvcc_flags(facts, recipe, torch, cuda, archs, target, decided),
    )


def _build(known: KnownToolkit, asked: str, decided: Decided) -> str:
    newest = known.builds[-1] if known.builds else known.version
    if asked in known.builds:
        return asked
    if asked.count(".") > 1:
        decided.choices.append(
            Choice("CUDA", newest, f"the newest compiler of CUDA {known.version} we know")
        )
    return newest


def _nvcc_flags(
    facts: Facts,
    recipe: Recipe,
    torch: str,
    cuda: str,
    archs: ArchDecisions,
    target: Target,
    decided: Decided,
) -> tuple[str, ...]:
    if recipe.cuda.nvcc_flags or archs.explicit or len(archs.archs) < MANY_ARCHS:
        return tuple(recipe.cuda.nvcc_flags)
    decided.choices.append(
        Choice(
            "nvcc flags",
            " ".join(COMPRESSED),
            f"{len(archs.archs)} architectures pass 2 GiB uncompressed; PyTorch's own builds do so",
            addresses(facts.torch.sources, published_archs(facts, torch, cuda, target.platform)),
        )
    )
    return COMPRESSED


def compiled(recipe: Recipe) -> bool:
    """Whether anything is compiled, torch itself or what is built against it."""
    wishes = (recipe.companions.vision, recipe.companions.audio, recipe.companions.text)
    return bool(
        recipe.torch.use == "source"
        or any(wish != "none" for wish in wishes)
        or recipe.companions.extension
    )

"""From GPUs as people name them to the list of architectures to compile for."""

from __future__ import annotations

from collections.abc import Sequence

from msgspec import field

from torchsmith.facts.cuda import TEGRA_ARCHS, arch_number, archs_of, renamed_arch
from torchsmith.facts.files import Facts, addresses
from torchsmith.facts.gpus import find_gpu
from torchsmith.facts.models import Board
from torchsmith.facts.torch import entry_for, published_archs
from torchsmith.host.models import Host, InstalledGpu
from torchsmith.recipe.gpus import gpu_wish, split_arch_list
from torchsmith.resolve.models import Arch, Case, Decided, Evidence
from torchsmith.resolve.target import Target

# With too many kernels in one library torch_cuda's code and data drift more than 2 GiB apart, and
# the linker stops with "relocation truncated to fit: R_X86_64_GOTPCREL". Where exactly depends on
# the release and its features: these are the numbers from which a word of caution is worth it, a
# judgement from the lists upstream publishes (up to 8, compressed), not a measured limit.
MANY_ARCHS = 7
MANY_COMPRESSED = 10
# CUDA's own libraries, linked in, hold kernels for as many again.
FEWER_WITH_STATIC = 3


class ArchDecisions(Decided):
    """The arch list with what was decided on the way."""

    archs: list[Arch] = field(default_factory=list)
    explicit: bool = False
    # What each architecture was asked for as.
    names: dict[str, str] = field(default_factory=dict)

    def add(self, arch: str, *, ptx: bool) -> None:
        """Add an architecture once; PTX asked for once is kept."""
        for index, have in enumerate(self.archs):
            if have.arch == arch:
                self.archs[index] = Arch(arch, have.ptx or ptx)
                return
        self.archs.append(Arch(arch, ptx))


def decide_archs(case: Case, target: Target, cuda: str) -> ArchDecisions:
    """Translate the wish for GPUs; unknown names were refused when the recipe was read."""
    facts, recipe = case.facts, case.recipe
    platform, board = target.platform, target.board
    made = ArchDecisions()
    for text in recipe.gpus:
        wish = gpu_wish(text)
        if wish.word == "native":
            made.explicit = True
            _native(made, facts, case.host, ptx=wish.ptx)
        elif wish.word == "published":
            _published(made, facts, case.torch, cuda, platform, board)
        elif wish.arch:
            made.explicit = True
            made.add(wish.arch, ptx=wish.ptx)
            made.choose("GPU", wish.arch, "the recipe names the compute capability")
        else:
            made.explicit = True
            gpu = find_gpu(facts, wish.name)
            assert gpu is not None, wish.name
            if gpu.platform is not None and gpu.platform != platform and board is None:
                made.caution(
                    f"the {gpu.name} sits on one board with an Arm CPU, but the platform is "
                    f"{platform}",
                    f"platform = '{gpu.platform}'",
                    source=addresses(facts.gpus.sources, gpu),
                )
            arch = renamed_arch(cuda, gpu.arch)
            called = f", which CUDA {cuda} calls {arch}" if arch != gpu.arch else ""
            made.add(arch, ptx=wish.ptx)
            made.names.setdefault(arch, gpu.name)
            made.choose(
                "GPU",
                arch,
                f"the {gpu.name} has compute capability {gpu.arch}{called}",
                addresses(facts.gpus.sources, gpu),
            )
    made.archs.sort(key=lambda item: arch_number(item.arch))
    _consider(made, facts, board, platform, case.host)
    # How kernels and CUDA's own libraries are put into torch's.
    compressed = "-compress-all" in " ".join(recipe.cuda.nvcc_flags) or not made.explicit
    features = recipe.features
    static = "static" in features.values() or features.get("static_cuda") == "on"
    _consider_size(made, compressed=compressed, static=static)
    return made


def named_archs(facts: Facts, gpus: Sequence[str]) -> list[str]:
    """The compute capabilities a wish names, `native` and `published` aside."""
    wishes = [gpu_wish(text) for text in gpus]
    found = [find_gpu(facts, wish.name) if wish.name else None for wish in wishes]
    named = [gpu.arch if gpu else wish.arch for wish, gpu in zip(wishes, found, strict=True)]
    return [arch for arch in named if arch]


def wanted_archs(facts: Facts, host: Host, gpus: Sequence[str]) -> list[str]:
    """The compute capabilities a wish names; `native` stands for those of this machine."""
    native = any(gpu_wish(text).word == "native" for text in gpus)
    here = (arch_of_installed(facts, gpu) for gpu in host.gpus if native)
    return [*named_archs(facts, gpus), *dict.fromkeys(filter(None, here))]


def arch_of_installed(facts: Facts, gpu: InstalledGpu) -> str:
    """What the driver tells, or what the name says where the driver is too old to tell."""
    known = find_gpu(facts, gpu.name) if gpu.arch is None else None
    return gpu.arch or (known.arch if known else "")


def _native(made: ArchDecisions, facts: Facts, host: Host, *, ptx: bool) -> None:
    installed = [(gpu.name, arch_of_installed(facts, gpu)) for gpu in host.gpus]
    silent = ", ".join(dict.fromkeys(name for name, arch in installed if not arch))
    found = sorted({arch for _, arch in installed if arch}, key=arch_number)
    if not found:
        made.refuse(
            "native-none",
            f"the driver does not tell the compute capability of this machine's {silent}"
            if silent
            else "gpus = 'native' asks for this machine's GPUs, and none can be seen",
            Evidence("asked for: gpus = 'native'"),
            Evidence(
                f"drivers before 510 tell the name only, and {silent} is none we know"
                if silent
                else "nvidia-smi reports no GPU on this machine"
            ),
            "name the GPU or its compute capability, such as gpus = ['RTX 3090'] or ['8.6']; "
            "or plan on the machine that has it",
        )
    elif silent:
        made.caution(
            f"the driver does not tell the compute capability of the {silent}",
            "add it to gpus by its number, such as '8.6'",
        )
    for arch in found:
        names = ", ".join(sorted({name for name, mine in installed if mine == arch}))
        made.add(arch, ptx=ptx)
        made.names.setdefault(arch, names)
        made.choose("GPU", arch, f"native: this machine has {names}")


def _published(
    made: ArchDecisions, facts: Facts, torch: str, cuda: str, platform: str, board: Board | None
) -> None:
    if board is not None:
        arch = renamed_arch(cuda, board.arch)
        made.add(arch, ptx=False)
        made.names.setdefault(arch, f"GPU of the {board.title}")
        made.choose(
            "GPU", arch, f"the GPU of the {board.title}", addresses(facts.boards.sources, board)
        )
        return
    entry = published_archs(facts, torch, cuda, platform)
    if entry is not None and entry.archs:
        for text in split_arch_list(entry.archs):
            wish = gpu_wish(text)
            made.add(wish.arch, ptx=wish.ptx)
        made.choose(
            "GPU",
            entry.archs,
            f"the arch list of the wheels PyTorch publishes for {torch} with CUDA {cuda}",
            addresses(facts.torch.sources, entry),
        )
        return
    known = entry_for(facts.torch.archs, torch)
    usable = [
        item.arch
        for item in archs_of(facts, cuda)
        if (known is None or item.arch in known.known)
        and item.arch not in TEGRA_ARCHS
        and not arch_number(item.arch)[2]
    ]
    # No published list: the first code of each generation runs on all its GPUs, and PTX covers
    # what comes after.
    firsts: dict[int, str] = {}
    for arch in sorted(usable, key=arch_number):
        firsts.setdefault(arch_number(arch)[0], arch)
    chosen = list(firsts.values())
    for arch in chosen:
        made.add(arch, ptx=arch == chosen[-1])
    made.choose(
        "GPU",
        ";".join(map(str, made.archs)),
        f"no arch list of a published torch {torch} with CUDA {cuda} on {platform} is known: "
        "one architecture for each GPU generation that both know",
    )


def _consider(
    made: ArchDecisions,
    facts: Facts,
    board: Board | None,
    platform: str,
    host: Host,
) -> None:
    archs = [item.arch for item in made.archs]
    for item in made.archs:
        _consider_specific(made, item, archs)
        if item.arch.rstrip("af") in TEGRA_ARCHS and platform == "linux-x86_64" and board is None:
            made.caution(
                f"{item.arch} is a Jetson's GPU, but the platform is {platform}",
                "platform = 'linux-aarch64', or board = 'jetson-…'",
            )
    if board is not None and archs and board.arch not in archs:
        made.caution(
            f"the arch list {', '.join(archs)} leaves out the {board.title}'s own {board.arch}",
            f"add {board.arch}, or leave gpus out",
        )
    if made.explicit and archs:
        here = {arch_of_installed(facts, gpu) for gpu in host.gpus}
        absent = [arch for arch in archs if arch.rstrip("af") not in here]
        reason = (
            "not in this machine: it can be built here, and verified only where such a GPU is"
            if absent
            else "in this machine: it can be built and verified here"
        )
        made.choose("GPU of this machine", ", ".join(absent or archs), reason)
    marked = [item for item in made.archs if item.ptx]
    if made.explicit and marked and made.archs[-1] not in marked:
        made.caution(
            f"+PTX stands on {marked[-1].arch}, which is not the newest of the list",
            f"put it on {made.archs[-1].arch}: newer GPUs translate the newest PTX best",
        )


def _consider_size(made: ArchDecisions, *, compressed: bool, static: bool) -> None:
    count = len(made.archs)
    many = MANY_COMPRESSED if compressed else MANY_ARCHS
    if count < many - (FEWER_WITH_STATIC if static else 0):
        return
    cures = ["fewer GPUs in one build (a matrix over gpus gives each set its own package)"]
    if not compressed:
        cures.insert(0, "cuda.nvcc_flags = ['-Xfatbin', '-compress-all']")
    if static:
        cures.append("cuDNN and NCCL not static")
    beside = " with CUDA's own libraries in it" if static else ""
    made.caution(
        f"{count} architectures in one library{beside} may pass the 2 GiB that relative "
        'addressing reaches: the link then fails with "relocation truncated to fit: '
        'R_X86_64_GOTPCREL"',
        "; or ".join(cures),
    )


def _consider_specific(made: ArchDecisions, item: Arch, archs: Sequence[str]) -> None:
    """9.0a runs on 9.0 alone; 10.0f on 10.x."""
    major, minor, suffix = arch_number(item.arch)
    if not suffix:
        return
    plain = f"{major}.{minor}"
    reach = (
        f"GPUs of exactly compute capability {plain}"
        if suffix == "a"
        else f"GPUs of compute capability {plain} and later ones of {major}.x"
    )
    also = "" if plain in archs else f"; add {plain} (or {plain}+PTX) for other GPUs"
    made.caution(
        f"code for {item.arch} runs only on {reach}"
        + (", and its PTX is for no other either" if item.ptx else ""),
        f"keep it for kernels that need it{also}",
    )

"""From GPUs as people name them to the list of architectures to compile for."""

from __future__ import annotations

from collections.abc import Sequence

from torchsmith.facts.cuda import arch_number, archs_of
from torchsmith.facts.files import Facts, addresses
from torchsmith.facts.gpus import find_gpu
from torchsmith.facts.models import Board
from torchsmith.facts.ranges import release
from torchsmith.facts.torch import entry_for, published_archs
from torchsmith.host.models import Host
from torchsmith.recipe.gpus import gpu_wish, split_arch_list
from torchsmith.resolve.models import Arch, Caution, Choice, Conflict, Evidence

# Past this many kernels-for-one-GPU, torch_cuda's code and data drift more than 2 GiB apart and
# the linker stops with "relocation truncated to fit: R_X86_64_GOTPCREL". The published wheels of
# CUDA 11 carried 7 and 8 and needed -Xfatbin -compress-all for it; 6 without compression is the
# most that is known to link.
MANY_ARCHS = 7
MANY_COMPRESSED = 10
# Tegra's own; desktops and servers have no such GPU.
JETSON_ARCHS = ("3.2", "5.3", "6.2", "7.2", "8.7")


class ArchDecisions:
    """The arch list with what was decided on the way."""

    def __init__(self) -> None:
        self.archs: list[Arch] = []
        self.explicit = False
        self.choices: list[Choice] = []
        self.cautions: list[Caution] = []
        self.conflicts: list[Conflict] = []

    def add(self, arch: str, *, ptx: bool) -> None:
        """Add an architecture once; PTX asked for once is kept."""
        for index, have in enumerate(self.archs):
            if have.arch == arch:
                self.archs[index] = Arch(arch, have.ptx or ptx)
                return
        self.archs.append(Arch(arch, ptx))


def decide_archs(
    facts: Facts,
    *,
    torch: str,
    cuda: str,
    platform: str,
    board: Board | None,
    gpus: Sequence[str],
    host: Host,
    compressed: bool,
) -> ArchDecisions:
    """Translate the wish for GPUs; unknown names were refused when the recipe was read."""
    made = ArchDecisions()
    for text in gpus:
        wish = gpu_wish(text)
        if wish.word == "native":
            made.explicit = True
            _native(made, host, ptx=wish.ptx)
        elif wish.word == "published":
            _published(made, facts, torch, cuda, platform, board)
        elif wish.arch:
            made.explicit = True
            made.add(wish.arch, ptx=wish.ptx)
            made.choices.append(Choice("GPU", wish.arch, "the recipe names the compute capability"))
        else:
            made.explicit = True
            gpu = find_gpu(facts, wish.name)
            assert gpu is not None, wish.name
            arch = gpu.arch
            if arch == "11.0" and release(cuda) < (13,):
                arch = "10.1"
                made.choices.append(Choice("GPU", "10.1", "CUDA 13 renamed Thor's 10.1 to 11.0"))
            made.add(arch, ptx=wish.ptx)
            made.choices.append(
                Choice(
                    "GPU",
                    arch,
                    f"{gpu.name} has compute capability {gpu.arch}",
                    addresses(facts.gpus.sources, gpu),
                )
            )
    made.archs.sort(key=lambda item: arch_number(item.arch))
    _consider(made, facts, board, platform, host, compressed=compressed)
    return made


def _native(made: ArchDecisions, host: Host, *, ptx: bool) -> None:
    found = sorted({gpu.arch for gpu in host.gpus if gpu.arch})
    if not found:
        made.conflicts.append(
            Conflict(
                "native-none",
                "gpus = 'native' asks for this machine's GPUs, and none can be seen",
                Evidence("asked for: native"),
                Evidence("nvidia-smi reports no GPU on this machine"),
                "name the GPU, such as gpus = ['RTX 3090']; or plan on the machine that has it",
            )
        )
    for arch in found:
        names = ", ".join(sorted({gpu.name for gpu in host.gpus if gpu.arch == arch}))
        made.add(arch, ptx=ptx)
        made.choices.append(Choice("GPU", arch, f"native: this machine has {names}"))


def _published(
    made: ArchDecisions, facts: Facts, torch: str, cuda: str, platform: str, board: Board | None
) -> None:
    if board is not None:
        made.add(board.arch, ptx=False)
        made.choices.append(
            Choice(
                "GPU",
                board.arch,
                f"the GPU of the {board.title}",
                addresses(facts.boards.sources, board),
            )
        )
        return
    entry = published_archs(facts, torch, cuda, platform)
    if entry is not None:
        for text in split_arch_list(entry.archs):
            wish = gpu_wish(text)
            made.add(wish.arch, ptx=wish.ptx)
        made.choices.append(
            Choice(
                "GPU",
                entry.archs,
                f"the arch list of the wheels PyTorch publishes for {torch} with CUDA {cuda}",
                addresses(facts.torch.sources, entry),
            )
        )
        return
    known = entry_for(facts.torch.archs, torch)
    usable = [
        item.arch
        for item in archs_of(facts, cuda)
        if (known is None or item.arch in known.known)
        and item.arch not in JETSON_ARCHS
        and not arch_number(item.arch)[2]
    ]
    # No published list: the newest code of each generation runs on all GPUs of that generation
    # from there up, and PTX covers what comes after.
    firsts: dict[int, str] = {}
    for arch in sorted(usable, key=arch_number):
        firsts.setdefault(arch_number(arch)[0], arch)
    chosen = list(firsts.values())
    for arch in chosen:
        made.add(arch, ptx=arch == chosen[-1])
    made.choices.append(
        Choice(
            "GPU",
            ";".join(map(str, made.archs)),
            f"no wheel of torch {torch} for CUDA {cuda} was published on {platform}: one "
            "architecture for each GPU generation that both know",
        )
    )


def _consider(
    made: ArchDecisions,
    facts: Facts,
    board: Board | None,
    platform: str,
    host: Host,
    *,
    compressed: bool,
) -> None:
    archs = [item.arch for item in made.archs]
    limit = MANY_COMPRESSED if compressed else MANY_ARCHS
    if len(archs) >= limit:
        cures = ["fewer GPUs in one build (a matrix over gpus gives each set its own package)"]
        if not compressed:
            cures.append("cuda.nvcc_flags = ['-Xfatbin', '-compress-all']")
        made.cautions.append(
            Caution(
                f"{len(archs)} architectures in one library may pass the 2 GiB that relative "
                'addressing reaches: the link then fails with "relocation truncated to fit: '
                'R_X86_64_GOTPCREL"',
                "; or ".join(cures),
            )
        )
    for arch in archs:
        if arch.endswith("a"):
            plain = arch[:-1]
            also = "" if plain in archs else f"; add {plain} (or {plain}+PTX) for other GPUs"
            made.cautions.append(
                Caution(
                    f"code for {arch} runs only on GPUs of exactly compute capability {plain}, "
                    "not on later ones",
                    f"keep it for kernels that need it{also}",
                )
            )
        if arch in JETSON_ARCHS and platform == "linux-x86_64" and board is None:
            made.cautions.append(
                Caution(
                    f"{arch} is a Jetson's GPU, but the platform is {platform}",
                    "platform = 'linux-aarch64', or board = 'jetson-…'",
                )
            )
    if board is not None and board.arch not in archs and archs:
        made.cautions.append(
            Caution(
                f"the arch list {', '.join(archs)} leaves out the {board.title}'s own {board.arch}",
                f"add {board.arch}, or leave gpus out",
            )
        )
    here = {gpu.arch for gpu in host.gpus if gpu.arch}
    absent = [arch for arch in archs if arch.rstrip("af") not in here]
    if made.explicit and archs:
        reason = (
            "not in this machine: it can be built here, and verified only where such a GPU is"
            if absent
            else "in this machine: it can be built and verified here"
        )
        made.choices.append(Choice("GPU of this machine", ", ".join(absent or archs), reason))
    newest = [item for item in made.archs if item.ptx]
    if made.explicit and newest and made.archs[-1] not in newest:
        made.cautions.append(
            Caution(
                f"+PTX stands on {newest[-1].arch}, which is not the newest of the list",
                f"put it on {made.archs[-1].arch}: newer GPUs translate the newest PTX best",
            )
        )

"""What resolving gives: choices with reasons, conflicts with cures.

msgspec structs rather than dataclasses: thirty of these are made at every start.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Literal

from msgspec import Struct

from torchsmith.facts.models import Mode

if TYPE_CHECKING:
    from torchsmith.facts.files import Facts
    from torchsmith.host.models import Host
    from torchsmith.recipe.models import Recipe

# How well something is known that stands against a wish, or beside it.
Standing = Literal["impossible", "unknown", "fails", "unpublished"]
STANDINGS: dict[Standing, str] = {
    "impossible": "cannot exist",
    "unknown": "not known to work",
    "fails": "known to fail unless patched",
    "unpublished": "works, but upstream does not publish it",
}


class Choice(Struct, frozen=True):
    """One decision and why it was made."""

    subject: str
    value: str
    reason: str
    source: str = ""


class Evidence(Struct, frozen=True):
    """A fact as it stands in a conflict: the statement and where it can be checked."""

    statement: str
    source: str = ""


class Change(Struct, frozen=True):
    """A key of the recipe and what to write there instead; nothing: leave it out."""

    key: str
    value: str


class Conflict(Struct, frozen=True):
    """Two facts that cannot both be satisfied, and the nearest thing that would work."""

    kind: str
    message: str
    first: Evidence
    second: Evidence
    cure: str = ""
    # The first of the cures, as it would be written; empty where only a person can tell.
    changes: tuple[Change, ...] = ()
    standing: Standing = "impossible"


class Caution(Struct, frozen=True):
    """Something that will work, or may not, and what to do about it."""

    message: str
    cure: str = ""
    # Where it is a matter of evidence: how good that is, and where it can be checked.
    standing: Standing | None = None
    source: str = ""


class Decided(Struct):
    """The account of decisions: what was chosen and why, what is doubtful, what cannot be."""

    choices: list[Choice] = []
    cautions: list[Caution] = []
    conflicts: list[Conflict] = []

    def choose(self, subject: str, value: str, reason: str, source: str = "") -> None:
        """Note a choice and its reason."""
        self.choices.append(Choice(subject, value, reason, source))

    def caution(
        self, message: str, cure: str = "", standing: Standing | None = None, source: str = ""
    ) -> None:
        """Note something that may not work, or has a price."""
        self.cautions.append(Caution(message, cure, standing, source))

    def refuse(
        self,
        kind: str,
        message: str,
        first: Evidence,
        second: Evidence,
        cure: str = "",
        changes: tuple[Change, ...] = (),
    ) -> None:
        """Note two facts that cannot both be satisfied."""
        self.conflicts.append(Conflict(kind, message, first, second, cure, changes))

    def include(self, other: Decided) -> None:
        """Take over the account of a part."""
        self.choices += other.choices
        self.cautions += other.cautions
        self.conflicts += other.conflicts


class Case(Decided, kw_only=True):
    """One variant on its way to a resolution: the wish, what is known, and the account so far."""

    facts: Facts
    recipe: Recipe
    host: Host
    # The release that is built.
    torch: str = ""


class Arch(Struct, frozen=True):
    """A compute capability to compile for; `ptx` adds code newer GPUs can translate."""

    arch: str
    ptx: bool = False

    def __str__(self) -> str:
        return f"{self.arch}+PTX" if self.ptx else self.arch

    @property
    def number(self) -> str:
        """As nvcc writes it: 86, 90a."""
        return self.arch.replace(".", "")


class CompilerChoice(Struct, frozen=True):
    """The host compiler: kind, version where known, and the command that calls it."""

    kind: str
    version: str
    cc: str
    cxx: str
    package: str = ""


class RepositoryChoice(Struct, frozen=True):
    """An apt repository packages are taken from, and the key that signs it."""

    url: str
    key: str
    fingerprint: str


class CudaChoice(Struct, frozen=True):
    """The CUDA toolkit and what comes with it."""

    version: str
    build: str
    toolkit: str
    archs: tuple[Arch, ...]
    cudnn: str = ""
    nccl: str = ""
    image: str = ""
    nvcc_flags: tuple[str, ...] = ()
    # Where a distribution's packages bring it: those to build with, those to run with.
    apt: tuple[str, ...] = ()
    apt_runtime: tuple[str, ...] = ()
    repositories: tuple[RepositoryChoice, ...] = ()

    @property
    def arch_list(self) -> str:
        """As TORCH_CUDA_ARCH_LIST."""
        return ";".join(map(str, self.archs))

    @property
    def short(self) -> str:
        """As in package names: 110, 126."""
        return self.version.replace(".", "")


class FoundationChoice(Struct, frozen=True):
    """What a recipe's own base image starts from instead of one that was deleted."""

    start: str
    system: str
    cuda: CudaChoice


class FormatChoice(Struct, frozen=True):
    """A kind of file a companion must be able to read, and how to see that it can."""

    name: str
    header: str
    program: str
    symbol: str
    apt: str


class CompanionChoice(Struct, frozen=True):
    """A companion at the release that goes with this torch."""

    name: str
    package: str
    version: str
    tag: str
    repository: str
    commit: str = ""
    formats: tuple[FormatChoice, ...] = ()
    # Variables of its setup.py.
    switches: tuple[tuple[str, str], ...] = ()


class ExtensionChoice(Struct, frozen=True):
    """A library of the recipe's own choosing."""

    name: str
    sdist: str = ""
    sha256: str = ""
    git_url: str = ""
    git_ref: str = ""
    folder: str = ""
    env: tuple[tuple[str, str], ...] = ()
    check: str = ""
    # Of a stack's package: its wheel's requirements, and the extensions that it imports.
    requires: tuple[str, ...] = ()
    uses: tuple[str, ...] = ()
    jobs: str = ""
    network: str = ""
    # An expression of `sed -E` for its setup.py.
    edit: str = ""
    own_archs: bool = False


class PatchChoice(Struct, frozen=True):
    """A patch to apply, and why."""

    name: str
    project: str
    strip: int
    content: bytes
    why: str = ""
    # Left out where the tree has this path, or has it not.
    unless: str = ""
    only_with: str = ""


class VendoredChoice(Struct, frozen=True):
    """A file or folder put into torch's tree, out of another package."""

    path: str
    lender: SourceChoice
    file: str
    sha256: str


class SourceChoice(Struct, frozen=True):
    """Where torch's source comes from."""

    kind: str
    url: str = ""
    mirrors: tuple[str, ...] = ()
    ref: str = ""
    commit: str = ""
    suite: str = ""
    package: str = ""
    path: str = ""
    sha256: str = ""
    # Whether a Debian package will do without Debian's own part of it.
    upstream_alone: bool = False
    # The files and folders wanted of the tree; empty: all of it.
    files: tuple[str, ...] = ()


class InstalledChoice(Struct, frozen=True):
    """A torch that is used where it lies: the interpreter it belongs to, and its folders."""

    version: str
    python: str
    module: str
    packages: tuple[str, ...]
    # Files that are different for any other torch.
    evidence: tuple[str, ...] = ()
    # Distributions in the same folders, with their versions.
    beside: tuple[tuple[str, str], ...] = ()


class MagmaChoice(Struct, frozen=True):
    """MAGMA, built as a package of its own."""

    version: str
    url: str
    sha256: str
    package: str
    archs: tuple[str, ...]
    source: SourceChoice


class CPythonChoice(Struct, frozen=True):
    """A Python that is built from source."""

    url: str
    sha256: str


class Resolution(Struct, frozen=True):
    """A variant with every choice made."""

    variant: str
    torch: str
    use: str
    version: str
    build_number: int
    python: str
    python_from: str
    # What the distribution calls it: python3, or python3.7 beside its own.
    python_package: str
    platform: str
    board: str
    jetpack: str
    system: str
    container: bool
    base_image: str
    cuda: CudaChoice | None
    cpu_flags: str
    profile: str
    features: tuple[tuple[str, Mode], ...]
    feature_env: tuple[tuple[str, str], ...]
    expected_cache: tuple[tuple[str, bool], ...]
    env: tuple[tuple[str, str], ...]
    cmake: tuple[tuple[str, str], ...]
    compiler: CompilerChoice
    cmake_range: str
    requires: tuple[str, ...]
    frontend: str
    cmake_only: bool
    source: SourceChoice
    patches: tuple[PatchChoice, ...]
    vendored: tuple[VendoredChoice, ...]
    companions: tuple[CompanionChoice, ...]
    extensions: tuple[ExtensionChoice, ...]
    # Whether what is built is one set, locked together.
    stack: bool
    magma: MagmaChoice | None
    apt: tuple[str, ...]
    wheel: str
    conda_build: str
    # Where the published wheel of this CUDA lies; empty: PyPI has it.
    wheel_index: str
    choices: tuple[Choice, ...]
    cautions: tuple[Caution, ...]
    installed: InstalledChoice | None = None
    # Where the packages of a distribution are that is no longer maintained.
    archive: str = ""
    # The source of its Python, where that is built.
    cpython: CPythonChoice | None = None
    foundation: FoundationChoice | None = None

    def feature(self, name: str) -> Mode | None:
        """How a feature was decided, None if this release does not know it."""
        return dict(self.features).get(name)

    @property
    def numpy(self) -> tuple[str, ...]:
        """What pip is asked for to have NumPy: torch does not require it, most programs do."""
        found = [text for text in self.requires if re.match(r"numpy(?![\w.-])", text)]
        return tuple(found) or ("numpy",)


class Refusal(Struct, frozen=True):
    """A variant that is refused: every conflict, and the nearest combination that is not."""

    variant: str
    conflicts: tuple[Conflict, ...]
    nearest: str = ""
    # What to write in the recipe to get there.
    changes: tuple[Change, ...] = ()

    @property
    def standing(self) -> Standing:
        """The hardest of its reasons: what cannot exist, then what fails, then what is unknown."""
        found = {item.standing for item in self.conflicts}
        order: tuple[Standing, ...] = ("impossible", "fails", "unknown", "unpublished")
        return next(item for item in order if item in found)


Outcome = Resolution | Refusal

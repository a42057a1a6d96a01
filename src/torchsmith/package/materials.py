"""Everything an artifact was made of, gathered once for both documents about it."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from pathlib import Path

from msgspec import Struct
from packaging.utils import canonicalize_name

from torchsmith.host.probe import run
from torchsmith.host.system import read_system
from torchsmith.package.contents import Contents
from torchsmith.package.origins import Taken, Tree
from torchsmith.plan.attest import Attest, Change, Subject
from torchsmith.verify.linkage import baseline, brings, library_places

# dpkg is asked here and nowhere else; on a system without it, libraries have no owner.
# It reads the lists of all packages: on a busy machine that takes a while.
_PATIENCE = 60.0


class Owner(Struct, frozen=True, order=True):
    """An installed package of the system."""

    name: str
    version: str
    architecture: str
    # Of the source it was built from, where that has another name.
    source: str = ""


def owners(libraries: Iterable[str]) -> Mapping[str, Owner | None]:
    """The package each library belongs to, by the name it is loaded by."""
    # The first place wins, as it does in the loader.
    places = dict(reversed(library_places()))
    return {name: _owner(places.get(name, "")) for name in sorted(set(libraries))}


def _owner(path: str) -> Owner | None:
    if not path:
        return None
    real = str(Path(path).resolve())
    # Since /lib became a link to /usr/lib, dpkg may know a file by either name.
    names = dict.fromkeys([real, path, real.removeprefix("/usr"), f"/usr{path}"])
    for name in names:
        output = run(["dpkg-query", "--search", name], timeout=_PATIENCE)
        package, colon, _ = (output or "").partition(": ")
        if colon and not package.startswith("diversion"):
            return _package(package.split(",")[0])
    return None


def _package(name: str) -> Owner | None:
    form = "${Package}\\t${Version}\\t${Architecture}\\t${source:Package}"
    output = run(["dpkg-query", "--show", f"--showformat={form}", name], timeout=_PATIENCE)
    fields = (output or "").split("\t")
    return Owner(*fields) if len(fields) == 4 else None


# As auditwheel names what it puts into a wheel: libgomp-a34b3233.so.1.
_GRAFTED = re.compile(r"-[0-9a-f]{8}\.so")
# What ends the name in a requirement, of a wheel or of a conda package.
_NAME = re.compile(r"[^A-Za-z0-9._-]")


class Beside(Struct, frozen=True):
    """An artifact of the same plan that another was built against."""

    name: str
    sha256: str


class Materials(Struct, frozen=True):
    """What is known of one artifact.

    `owners` has every library it needs from outside, and the system's package that has it;
    `tools` are the Python packages that were there while it was built, `taken` the files pip took
    for them; `date` is its source's.
    """

    plan: Attest
    subject: Subject
    contents: Contents
    trees: tuple[Tree, ...]
    changes: tuple[Change, ...]
    beside: tuple[Beside, ...]
    tools: tuple[tuple[str, str], ...]
    owners: tuple[tuple[str, Owner | None], ...]
    system: str
    date: int
    taken: tuple[Taken, ...] = ()

    @property
    def compiler(self) -> tuple[str, str]:
        """Kind and version."""
        compiler = self.plan.resolution.get("compiler")
        table = compiler if isinstance(compiler, dict) else {}
        return str(table.get("kind", "")), str(table.get("version", ""))


def outside(contents: Contents) -> tuple[str, ...]:
    """The libraries it needs and does not hold."""
    libraries = [packed.library for packed in contents.libraries]
    inside = {name for item in libraries for name in (item.name, item.soname)}
    return tuple(sorted({name for item in libraries for name in item.needed} - inside))


def is_vendored(path: str, project: str) -> bool:
    """Whether a library in an artifact is somebody else's, put in to come along."""
    folder, _, name = path.rpartition("/")
    bringer = baseline().bringer(name)
    grafted = folder.endswith(".libs") or _GRAFTED.search(name) is not None
    return grafted or bringer not in ("", project, "torch")


def gather(
    plan: Attest,
    subject: Subject,
    contents: Contents,
    trees: tuple[Tree, ...],
    tools: tuple[tuple[str, str], ...],
    beside: tuple[Beside, ...],
    taken: tuple[Taken, ...] = (),
) -> Materials:
    """Put together what was read; the system is asked for the owners of libraries."""
    mine = tuple(tree for tree in trees if tree.origin.tree in subject.trees)
    own = [tree.date for tree in mine if tree.name == subject.project]
    return Materials(
        plan=plan,
        subject=subject,
        contents=contents,
        trees=mine,
        changes=tuple(
            change for tree in mine for change in plan.changes if _was_made(change, tree)
        ),
        beside=beside,
        tools=tools,
        taken=taken,
        owners=tuple(owners(_from_the_system(contents)).items()),
        system=read_system(Path("/")),
        date=max(own or [tree.date for tree in mine], default=0),
    )


def _was_made(change: Change, tree: Tree) -> bool:
    """Whether a source was changed so: some patches look at the tree first."""
    folder = Path(tree.origin.tree)
    return (
        change.project == tree.name
        and not (change.unless and (folder / change.unless).exists())
        and not (change.only_with and not (folder / change.only_with).exists())
    )


def _from_the_system(contents: Contents) -> tuple[str, ...]:
    """What it needs, less what comes with what it requires: torch's own libraries, CUDA's."""
    required = {canonicalize_name(_NAME.split(line, 1)[0]) for line in contents.requires}
    base = baseline()

    def comes_along(library: str) -> bool:
        bringer = base.bringer(library)
        return bool(bringer) and any(brings(name, bringer) for name in required)

    return tuple(name for name in outside(contents) if not comes_along(name))

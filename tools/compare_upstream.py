"""Compare the facts with what upstream publishes today, and print what differs.

    python -m tools.compare_upstream            read PyPI, PyTorch and NVIDIA, and compare
    python -m tools.compare_upstream --stored   the copies in tests/data/upstream, without a network

Read are: the wheels on PyPI (by ``refresh_pypi --check``), the compatibility matrix in PyTorch's
RELEASE.md, the build matrix of pytorch/test-infra, and the table of drivers in the release notes of
CUDA. A file may be given in place of an address: ``--release-md RELEASE.md``. Nothing is changed. A
fact whose note says why RELEASE.md is not right does not differ.

0: nothing differs; 1: something does; 2: a source could not be read.
"""

from __future__ import annotations

import argparse
import ast
import html
import re
import sys
import urllib.request
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from tools import refresh_pypi

from torchsmith.facts.files import Facts, shipped
from torchsmith.facts.models import Platform, PublishedArchs
from torchsmith.facts.ranges import release, version_range
from torchsmith.facts.torch import entry_for, find_release

STORED = Path(__file__).parent.parent / "tests" / "data" / "upstream"
TIMEOUT_S = 60
X86: Platform = "linux-x86_64"
ARM: Platform = "linux-aarch64"

_CUDA = re.compile(r"\bCUDA (\d+\.\d+)")
_PYTHON = re.compile(r"\d\.\d+t?")
_ARCH = re.compile(r"\d+\.\d+(?:\+PTX)?")
_TAG = re.compile(r"<[^<>]*>")
# "CUDA 12.9 GA  >=575.51.03": what a toolkit of that release asks of the driver, first for Linux.
_DRIVER = re.compile(r"CUDA (\d+\.\d+)[^>|\n]{0,60}?[|\s]+>= ?(\d+(?:\.\d+){1,2})")


def compare_releases(text: str, facts: Facts) -> Iterator[str]:
    """What RELEASE.md's matrix says otherwise: C++, Pythons, CUDAs and compute capabilities."""
    for cells in _rows(text, "PyTorch version"):
        minor, pythons, cxx, stable, experimental = cells[:5]
        known = find_release(facts, minor)
        if known is None:
            yield f"torch {minor}: RELEASE.md has it, the facts do not"
            continue
        where = f"torch {minor}"
        standard = entry_for(facts.torch.cxx, known.version)
        if standard and cxx != f"C++{standard.standard}" and not _explained(standard.note):
            yield f"{where}: RELEASE.md says {cxx}, the facts C++{standard.standard}"
        final, _, tried = pythons.replace("<=(", "<=").replace(",", " ").partition("(")
        told = _PYTHON.findall(f"{final} {tried}".replace(")", " "))
        ours = {*known.pythons, *known.experimental}
        if missing := [item for item in told if item not in ours]:
            yield f"{where}: RELEASE.md has Python {', '.join(missing)}, the facts do not"
        yield from _cudas(facts, known.version, _CUDA.findall(f"{stable} {experimental}"))
    yield from _archs(text, facts)


def _cudas(facts: Facts, torch: str, told: Iterable[str]) -> Iterator[str]:
    """CUDAs upstream publishes wheels for and the facts do not."""
    if missing := [cuda for cuda in told if not _published(facts, torch, cuda, X86)]:
        yield f"torch {torch}: upstream has CUDA {', '.join(missing)}, the facts no wheels of it"


def _explained(note: str | None) -> bool:
    """Whether a fact's note says why it is not what RELEASE.md says."""
    return "RELEASE.md" in (note or "")


def _published(facts: Facts, torch: str, cuda: str, platform: Platform) -> list[PublishedArchs]:
    """The wheels of a release for a CUDA, as the facts have them."""
    return [
        entry
        for entry in facts.torch.published
        if entry.platform == platform
        and torch in version_range(entry.torch)
        and cuda in version_range(entry.cuda)
    ]


def _archs(text: str, facts: Facts) -> Iterator[str]:
    """Where the table of compute capabilities differs; it is that of a few releases at a time."""
    named = re.search(r"For Releases? ([\d., and]+?) PyTorch", text)
    minors = re.findall(r"\d+\.\d+", named[1]) if named else []
    tables: tuple[tuple[str, Platform], ...] = (
        ("architectures supported for Linux x86", X86),
        ("architectures supported for Linux aarch64", ARM),
    )
    for header, platform in tables:
        for cells in _rows(text, header, column=1):
            cuda = ".".join(cells[0].split(".")[:2])
            told = _ARCH.findall(cells[1])
            for minor in minors:
                known = find_release(facts, minor)
                for ours in _published(facts, known.version, cuda, platform) if known else ():
                    if ours.archs in ("", ";".join(told)) or _explained(ours.note):
                        continue
                    yield (
                        f"torch {minor}, CUDA {cuda}, {platform}: RELEASE.md says "
                        f"{';'.join(told)}, the facts {ours.archs}"
                    )


def _rows(text: str, header: str, column: int = 0) -> Iterator[list[str]]:
    """The rows of the Markdown table one of whose headings begins like this."""
    inside = False
    for line in text.splitlines():
        cells = [cell.strip() for cell in line.strip().strip("|").split("|")]
        if not line.lstrip().startswith("|"):
            inside = False
        elif len(cells) > column and cells[column].startswith(header):
            inside = True
        elif inside and set(line) - set("|-: "):
            yield cells


def compare_matrix(text: str, facts: Facts) -> Iterator[str]:
    """What the build matrix of pytorch/test-infra says otherwise of the newest stable release."""
    values = _constants(text)
    stable = str(values["CURRENT_STABLE_VERSION"])
    known = find_release(facts, stable)
    if known is None:
        yield f"torch {stable}: the build matrix calls it stable, the facts do not know it"
        return
    pythons, cudas = values["PYTHON_ARCHES_DICT"], values["CUDA_ARCHES_DICT"]
    assert isinstance(pythons, dict)
    assert isinstance(cudas, dict)
    ours = {*known.pythons, *known.experimental}
    if missing := [item for item in pythons["release"] if item not in ours]:
        yield f"torch {stable}: the build matrix has Python {', '.join(missing)}"
    yield from _cudas(facts, known.version, cudas["release"])


def _constants(text: str) -> dict[str, object]:
    """The plain values a Python file gives to names; the file is read, and not run."""
    return {
        statement.targets[0].id: ast.literal_eval(statement.value)
        for statement in ast.parse(text).body
        if isinstance(statement, ast.Assign)
        and isinstance(statement.targets[0], ast.Name)
        and isinstance(statement.value, ast.Dict | ast.List | ast.Constant)
    }


def compare_drivers(text: str, facts: Facts) -> Iterator[str]:
    """Where NVIDIA's release notes ask for another driver than the facts."""
    oldest: dict[str, str] = {}
    for cuda, driver in _DRIVER.findall(html.unescape(_TAG.sub(" ", text))):
        oldest[cuda] = min(oldest.get(cuda, driver), driver, key=release)
    known = {item.version: item.driver for item in facts.cuda.toolkit}
    if not oldest:
        yield "no driver was found in NVIDIA's release notes: their form has changed"
    for cuda, driver in oldest.items():
        if cuda not in known:
            yield f"CUDA {cuda}: NVIDIA has it, the facts do not"
        elif release(known[cuda]) != release(driver):
            yield f"CUDA {cuda}: NVIDIA asks for driver {driver}, the facts for {known[cuda]}"


@dataclass(frozen=True)
class Origin:
    """Something upstream publishes: where, its stored copy, and how it is compared."""

    option: str
    address: str
    compare: Callable[[str, Facts], Iterator[str]]


ORIGINS = (
    Origin(
        "release-md",
        "https://raw.githubusercontent.com/pytorch/pytorch/main/RELEASE.md",
        compare_releases,
    ),
    Origin(
        "build-matrix",
        "https://raw.githubusercontent.com/pytorch/test-infra/main/tools/scripts/"
        "generate_binary_build_matrix.py",
        compare_matrix,
    ),
    Origin(
        "cuda-notes",
        "https://docs.nvidia.com/cuda/cuda-toolkit-release-notes/index.html",
        compare_drivers,
    ),
)


def _text(where: str) -> str:
    if where.startswith("https://"):
        with urllib.request.urlopen(where, timeout=TIMEOUT_S) as answer:
            return str(answer.read().decode("utf-8", "replace"))
    return Path(where).read_text(encoding="utf-8")


def main(arguments: Sequence[str] | None = None) -> int:
    """Read every origin, print what differs."""
    parser = argparse.ArgumentParser(description="Compare the facts with what upstream publishes.")
    parser.add_argument("--stored", action="store_true", help="read the stored copies")
    for origin in ORIGINS:
        parser.add_argument(
            f"--{origin.option}", metavar="FILE", help=f"in place of {origin.address}"
        )
    options = vars(parser.parse_args(arguments))
    facts = shipped()
    found: list[str] = []
    unread = False
    for origin in ORIGINS:
        stored = str(STORED / f"{origin.option}.txt") if options["stored"] else origin.address
        where = options[origin.option.replace("-", "_")] or stored
        try:
            found += origin.compare(_text(where), facts)
        except (OSError, SyntaxError, KeyError, ValueError) as error:
            print(f"{where} was not read: {error}", file=sys.stderr)
            unread = True
    if not options["stored"]:
        answer = refresh_pypi.main(["--check"])
        unread = unread or answer == 2
        found += ["PyPI: see above"] if answer == 1 else []
    nothing = "nothing differs in what was read" if unread else "nothing differs"
    print("\n".join(found) or nothing)
    return 1 if found else 2 if unread else 0


if __name__ == "__main__":
    sys.exit(main())

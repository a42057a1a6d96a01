"""The patches apply, with the real `patch`, to the real text of the releases they name.

Headers come out of PyTorch's published wheels, a few kilobytes each, by range requests;
whole trees come from Debian's source archive.
"""

from __future__ import annotations

import hashlib
import io
import os
import re
import shutil
import subprocess
import sys
import tarfile
import urllib.parse
import urllib.request
import zipfile
from collections.abc import Mapping
from pathlib import Path

import pytest

from torchsmith.errors import NotServedError
from torchsmith.facts.files import DATA, Facts
from torchsmith.facts.ranges import version_range
from torchsmith.resolve.models import SourceChoice
from torchsmith.sources.fetch import fetch

pytestmark = pytest.mark.integration

PATCHES = DATA / "patches"
TIMEOUT_S = 60


class RemoteFile(io.RawIOBase):
    """A file on a web server, read in place."""

    def __init__(self, url: str) -> None:
        super().__init__()
        self.url = url
        self.position = 0
        _, self.size = self.fetch("bytes=0-0")

    def fetch(self, wanted: str) -> tuple[bytes, int]:
        request = urllib.request.Request(self.url, headers={"Range": wanted})
        with urllib.request.urlopen(request, timeout=TIMEOUT_S) as answer:
            total = answer.headers["Content-Range"].rpartition("/")[2]
            return answer.read(), int(total)

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        origin = {io.SEEK_SET: 0, io.SEEK_CUR: self.position, io.SEEK_END: self.size}[whence]
        self.position = origin + offset
        return self.position

    def tell(self) -> int:
        return self.position

    def readinto(self, buffer: bytearray | memoryview) -> int:  # type: ignore[override]
        stop = min(self.position + len(buffer), self.size)
        if stop <= self.position:
            return 0
        data, _ = self.fetch(f"bytes={self.position}-{stop - 1}")
        buffer[: len(data)] = data
        self.position += len(data)
        return len(data)


def simple_index() -> str:
    """The package index pip would ask."""
    if "PIP_INDEX_URL" in os.environ:
        return os.environ["PIP_INDEX_URL"]
    asked = subprocess.run(
        [sys.executable, "-m", "pip", "config", "get", "global.index-url"],
        capture_output=True,
        text=True,
        check=False,
    )
    return asked.stdout.strip() or "https://pypi.org/simple"


@pytest.fixture(scope="module")
def wheels() -> Mapping[str, str]:
    """File name -> address of every wheel of torch."""
    page = f"{simple_index().rstrip('/')}/torch/"
    request = urllib.request.Request(page, headers={"Accept": "text/html"})
    with urllib.request.urlopen(request, timeout=TIMEOUT_S) as answer:
        links = re.findall(r'href="([^"#]+\.whl)', answer.read().decode())
    return {
        urllib.parse.unquote(link.rpartition("/")[2]): urllib.parse.urljoin(page, link)
        for link in links
    }


def header(wheels: Mapping[str, str], version: str, path: str) -> str:
    """A header as PyTorch installed it, out of a published Linux wheel."""
    name = next(
        name
        for name in sorted(wheels)
        if name.startswith(f"torch-{version}-") and name.endswith("manylinux1_x86_64.whl")
    )
    remote = io.BufferedReader(RemoteFile(wheels[name]), 1 << 18)
    with zipfile.ZipFile(remote) as wheel:
        return wheel.read(f"torch/include/{path}").decode()


def only(patch: Path, path: str) -> str:
    """The part of a patch that changes one file."""
    parts = re.split(r"^(?=--- a/)", patch.read_text(encoding="utf-8"), flags=re.MULTILINE)
    (part,) = (part for part in parts if part.startswith(f"--- a/{path}\n"))
    return part


def apply(patch: str, tree: Path) -> None:
    """Try it, then do it, with no fuzz allowed; then it must be possible to take it back."""
    program = shutil.which("patch")
    assert program, "these tests need the patch program"
    for options in (["--dry-run"], [], ["--dry-run", "--reverse"]):
        run = subprocess.run(
            [program, "--strip=1", "--fuzz=0", "--force", *options],
            input=patch,
            cwd=tree,
            capture_output=True,
            text=True,
            check=False,
        )
        assert run.returncode == 0, run.stdout + run.stderr


@pytest.mark.parametrize(
    ("version", "patch", "installed", "source", "line"),
    [
        (
            version,
            patch,
            "ATen/cuda/detail/KernelUtils.h",
            "aten/src/ATen/cuda/detail/KernelUtils.h",
            "constexpr int CUDA_NUM_THREADS = 512;",
        )
        for version, patch in [
            ("1.1.0", "torch-1.1-threads-512.patch"),
            ("1.2.0", "torch-1.2-threads-512.patch"),
            ("1.9.1", "torch-1.2-threads-512.patch"),
            ("1.10.2", "torch-1.10-threads-512.patch"),
        ]
    ]
    + [
        (
            "1.12.1",
            "torch-1.12-gcc-13.patch",
            "c10/util/BFloat16.h",
            "c10/util/BFloat16.h",
            "#include <cstdint>",
        ),
        (
            "2.0.1",
            "torch-1.13-gcc-13.patch",
            "c10/util/Registry.h",
            "c10/util/Registry.h",
            "#include <stdexcept>",
        ),
        (
            "2.0.1",
            "torch-1.10-gloo-timeout.patch",
            "torch/csrc/distributed/c10d/ProcessGroupGloo.hpp",
            "torch/csrc/distributed/c10d/ProcessGroupGloo.hpp",
            "      store_->wait(keys, ::c10d::Store::kDefaultTimeout);",
        ),
    ],
    ids=lambda value: value if value.endswith(".patch") or value[0].isdigit() else "",
)
def test_a_patch_applies_to_the_header_the_release_was_published_with(
    wheels: Mapping[str, str],
    tmp_path: Path,
    version: str,
    patch: str,
    installed: str,
    source: str,
    line: str,
) -> None:
    file = tmp_path / source
    file.parent.mkdir(parents=True)
    file.write_text(header(wheels, version, installed), encoding="utf-8")
    assert line not in file.read_text(encoding="utf-8").splitlines()
    apply(only(PATCHES / patch, source), tmp_path)
    assert line in file.read_text(encoding="utf-8").splitlines()


def debian_archive(name: str, sha256: str) -> bytes:
    """A file of Debian's pytorch source package, from the archive this machine's apt uses."""
    asked = subprocess.run(
        ["apt-get", "indextargets", "--format", "$(SITE)", "Created-By: Packages"],
        capture_output=True,
        text=True,
        check=True,
    )
    sites = dict.fromkeys(site.rstrip("/") for site in asked.stdout.split())
    failures: list[str] = []
    for site in sites:
        url = f"{site}/pool/main/p/pytorch/{urllib.parse.quote(name)}"
        try:
            with urllib.request.urlopen(url, timeout=TIMEOUT_S) as answer:
                data: bytes = answer.read()
        except OSError as error:
            failures.append(f"{url}: {error}")
            continue
        assert hashlib.sha256(data).hexdigest() == sha256
        return data
    pytest.fail(f"no archive apt knows has {name}: {failures}")


def debian_changes(archive: bytes, wanted: set[str]) -> list[str]:
    """What Debian's own series changes in these files, in its order."""
    with tarfile.open(fileobj=io.BytesIO(archive), mode="r:xz") as tar:

        def read(name: str) -> str:
            content = tar.extractfile(f"debian/patches/{name}")
            assert content is not None
            return content.read().decode()

        names = [line.split()[0] for line in read("series").splitlines() if line.strip()]
        texts = [read(name) for name in names if not name.startswith("#")]
    found: list[str] = []
    for text in texts:
        for part in re.split(r"^(?=--- )", text, flags=re.MULTILINE)[1:]:
            changed = re.match(r"--- \S+.*\n\+\+\+ [^/\s]+/(\S+)", part)
            if changed and changed[1] in wanted:
                found.append(part.partition("\nIndex: ")[0] + "\n")
    return found


@pytest.mark.parametrize(
    ("version", "sha256", "debian", "expected"),
    [
        (
            "1.13.1",
            "d0355588b8528566d477e6ebf1b4d9d036a6fd75711339f66b27472ce5879dc7",
            None,
            {"threads-512", "gcc-13", "gloo-timeout", "fmt-9", "system-libraries", "find-blas"},
        ),
        (
            "2.6.0",
            "099a9601bc40d67656e75735c44abedb0fbe92d08817852ab7472eebb7e6ddff",
            ("-7", "3290d4e5168b6e44191882213f61ad41c134a912fe11a44364c2e74f81f68af0"),
            {
                "find-blas",
                "old-cpuinfo",
                "old-httplib",
                "system-libuv",
                "debian-math-errno",
                "debian-inductor-native",
                "debian-onednn",
                "system-flatbuffers",
                "debian-wheel",
                "debian-version",
                "radix-sort",
                "cuda-13",
                "debian-cuda",
            },
        ),
    ],
)
def test_all_patches_for_a_release_apply_together_to_its_tree(
    tmp_path: Path,
    version: str,
    sha256: str,
    debian: tuple[str, str] | None,
    expected: set[str],
) -> None:
    chosen = [
        patch
        for patch in Facts().patches.patch
        if patch.project == "torch"
        and version in version_range(patch.releases)
        and patch.submodule is None  # Debian's archive has no third_party
    ]
    assert {patch.name for patch in chosen} == expected
    texts = [(PATCHES / patch.file).read_text(encoding="utf-8") for patch in chosen]
    wanted = {path for text in texts for path in re.findall(r"^--- a/(.+)$", text, re.MULTILINE)}
    if debian is not None:
        revision, debian_sha256 = debian
        name = f"pytorch_{version}+dfsg{revision}.debian.tar.xz"
        texts[:0] = debian_changes(debian_archive(name, debian_sha256), wanted)

    archive = debian_archive(f"pytorch_{version}+dfsg.orig.tar.xz", sha256)
    with tarfile.open(fileobj=io.BytesIO(archive), mode="r|xz") as tar:
        for member in tar:
            path = member.name.partition("/")[2]
            content = tar.extractfile(member) if path in wanted else None
            if content:
                wanted.discard(path)
                (tmp_path / path).parent.mkdir(parents=True, exist_ok=True)
                (tmp_path / path).write_bytes(content.read())
    assert not wanted, "these files are not in the release"

    for text in texts:
        apply(text, tmp_path)


# Not every mirror serves what Debian lists of it: run where one does.
@pytest.mark.long
def test_magmas_patches_apply_to_the_release_as_debian_has_it(tmp_path: Path) -> None:
    source = SourceChoice(
        "debian", suite="trixie", package="magma", ref="2.9.0", upstream_alone=True
    )
    tree = tmp_path / "tree"
    try:
        fetch(source, tree, cache=tmp_path / "cache")
    except NotServedError as missing:
        # Some mirrors list this release and have no file of it: then nothing can be tried here.
        pytest.xfail(missing.message)
    names = [
        patch.file
        for patch in Facts().patches.patch
        if patch.project == "magma" and "2.9.0" in version_range(patch.releases)
    ]
    assert len(names) == 2
    for name in names:
        words = ["patch", "-p1", "--fuzz=0", "--batch", f"--input={PATCHES / name}"]
        subprocess.run(words, cwd=tree, check=True)
    assert "CMP0037" not in (tree / "CMakeLists.txt").read_text("utf-8")

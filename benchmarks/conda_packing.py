"""Wall time and size of packing a tree for conda, as ratios to rattler-build and to cph.

    python -m benchmarks.conda_packing TREE [--threads 2]

TREE is a folder of some hundred MB: an environment with torch in it, or an unpacked wheel. It is
packed once by each: by torchsmith as .conda and as .tar.bz2, by py-rattler-build's
`assemble_package` and, where it is installed (pip install conda-package-handling), by `cph create`.
Ours is also packed on one thread and on three: the archives must be one.
"""

from __future__ import annotations

import argparse
import hashlib
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from torchsmith.host.limits import read_cores

STEM = "some-1.0-0"
OURS = """\
import sys
from torchsmith.package.conda.pack import pack
from torchsmith.plan.conda import CondaSpec
tree, output, threads, archive = sys.argv[1:]
pack(CondaSpec(output=output, name="some", version="1.0", build="0", subdir="linux-64",
               tree=tree, formats=(archive,)), threads=int(threads))
"""
RATTLER = """\
import sys
from pathlib import Path
from rattler_build import ArchiveType, assemble_package
tree, output, threads, archive = sys.argv[1:]
kind = ArchiveType.Conda if archive == "conda" else ArchiveType.TarBz2
assemble_package("some", "1.0", "linux-64", "0", Path(output, "linux-64"), files_dir=Path(tree),
                 archive_type=kind)
"""


def packed(program: str, tree: Path, output: Path, threads: int, archive: str) -> tuple[float, int]:
    """Seconds and bytes of one packing, in a process of its own."""
    words = [str(tree), str(output), str(threads), archive]
    began = time.monotonic()
    subprocess.run([sys.executable, "-c", program, *words], check=True, stdout=subprocess.DEVNULL)
    taken = time.monotonic() - began
    return taken, (output / f"linux-64/{STEM}.{archive}").stat().st_size


def by_rattler(tree: Path, output: Path, archive: str) -> tuple[float, int] | None:
    """Seconds and bytes of py-rattler-build."""
    return packed(RATTLER, tree, output, 0, archive)


def by_cph(tree: Path, output: Path, archive: str) -> tuple[float, int] | None:
    """Seconds and bytes of `cph create`; None where it is not installed."""
    program = Path(sys.executable).with_name("cph")
    if not program.exists():
        return None
    # It wants to find the records of a package in the tree.
    (output / "linux-64").mkdir(parents=True)
    copied = output / "tree"
    shutil.copytree(tree, copied, symlinks=True)
    (copied / "info").mkdir(exist_ok=True)
    (copied / "info/index.json").write_text("{}")
    began = time.monotonic()
    target = f"linux-64/{STEM}.{archive}"
    command = [str(program), "create", str(copied), target, "--out-folder", str(output)]
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
    return time.monotonic() - began, (output / target).stat().st_size


def digest(path: Path) -> str:
    """A file's SHA-256."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def main() -> None:
    """Pack with each, print the ratios."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("tree", type=Path)
    parser.add_argument("--threads", type=int, default=read_cores())
    given = parser.parse_args()
    files = [path for path in given.tree.rglob("*") if path.is_file() and not path.is_symlink()]
    print(f"{sum(path.stat().st_size for path in files) / 1e6:.0f} MB in {len(files)} files")
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        for archive in ("conda", "tar.bz2"):
            ours = packed(OURS, given.tree, folder / f"ours-{archive}", given.threads, archive)
            print(f".{archive}: torchsmith {ours[0]:.1f} s, {ours[1] / 1e6:.1f} MB", flush=True)
            for title, pack in (("rattler-build", by_rattler), ("cph", by_cph)):
                other = pack(given.tree, folder / f"{title}-{archive}", archive)
                if other is None:
                    print(f"  {title}: not installed")
                    continue
                print(
                    f"  {title} {other[0]:.1f} s, {other[1] / 1e6:.1f} MB; ours / {title} = "
                    f"{ours[0] / other[0]:.2f} of its time, {ours[1] / other[1]:.2f} of its size",
                    flush=True,
                )
        digests = {digest(folder / f"ours-conda/linux-64/{STEM}.conda")}
        for threads in (1, 3):
            packed(OURS, given.tree, folder / str(threads), threads, "conda")
            digests.add(digest(folder / f"{threads}/linux-64/{STEM}.conda"))
        same = len(digests) == 1
        print("the same bytes on 1, 3 and so many threads" if same else "DIFFERENT")
    if not same:
        sys.exit(1)


if __name__ == "__main__":
    main()

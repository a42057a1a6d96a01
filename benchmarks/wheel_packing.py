"""Wall time of packing a wheel, as a ratio to `wheel pack` and zip; and whether bytes are the same.

    python -m benchmarks.wheel_packing WHEEL [--threads 2]

Unpacks a wheel, torch's say, and packs the tree each way, one after the other, twice; with zip
where that is installed. Ours is also packed on one thread and on three: all must be one archive.
"""

from __future__ import annotations

import argparse
import hashlib
import shutil
import subprocess
import sys
import tempfile
import time
import zipfile
from pathlib import Path

from torchsmith.host.limits import read_cores
from torchsmith.package.pack import pack_folder


def seconds(command: list[str], folder: Path | None = None) -> float:
    """How long a command takes."""
    began = time.monotonic()
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL, cwd=folder)
    return time.monotonic() - began


def ours(tree: Path, wheel: Path, threads: int) -> float:
    """Pack with torchsmith, in a process of its own as `wheel pack` is."""
    program = (
        "import sys; from pathlib import Path; from torchsmith.package.pack import pack_folder; "
        "pack_folder(Path(sys.argv[1]), Path(sys.argv[2]), threads=int(sys.argv[3]))"
    )
    return seconds([sys.executable, "-c", program, str(tree), str(wheel), str(threads)])


def digest(path: Path) -> str:
    """The start of a file's SHA-256."""
    return hashlib.sha256(path.read_bytes()).hexdigest()[:16]


def main() -> None:
    """Unpack, pack both ways, print the ratio."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("wheel", type=Path)
    parser.add_argument("--threads", type=int, default=read_cores())
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        tree = folder / "tree"
        with zipfile.ZipFile(given.wheel) as archive:
            archive.extractall(tree)
            size = sum(info.file_size for info in archive.infolist())
        print(f"{size / 1e6:.0f} MB in {sum(path.is_file() for path in tree.rglob('*'))} files")
        best_ours = best_theirs = best_zip = float("inf")
        for _ in range(2):
            if program := shutil.which("zip"):
                (folder / "plain.zip").unlink(missing_ok=True)
                words = [program, "-q", "-r", str(folder / "plain.zip"), "."]
                best_zip = min(best_zip, seconds(words, tree))
            command = [sys.executable, "-m", "wheel", "pack", str(tree), "--dest-dir", name]
            best_theirs = min(best_theirs, seconds(command))
            best_ours = min(best_ours, ours(tree, folder / "ours.whl", given.threads))
        (theirs,) = (path for path in folder.glob("*.whl") if path.name != "ours.whl")
        sizes = [path.stat().st_size / 1e6 for path in (theirs, folder / "ours.whl")]
        print(f"wheel pack: {best_theirs:.1f} s, {sizes[0]:.1f} MB")
        print(f"torchsmith: {best_ours:.1f} s on {given.threads} threads, {sizes[1]:.1f} MB")
        print(f"ours / wheel pack = {best_ours / best_theirs:.2f}")
        if (zipped := folder / "plain.zip").exists():
            print(f"zip -r: {best_zip:.1f} s, {zipped.stat().st_size / 1e6:.1f} MB")
            print(f"ours / zip = {best_ours / best_zip:.2f}")
        for threads in (1, 3):
            pack_folder(tree, folder / f"{threads}.whl", threads=threads)
        digests = {digest(folder / name) for name in ("ours.whl", "1.whl", "3.whl")}
        print("the same bytes on 1, 3 and so many threads" if len(digests) == 1 else "DIFFERENT")
        if len(digests) != 1 or sizes[1] > sizes[0]:
            sys.exit(1)


if __name__ == "__main__":
    main()

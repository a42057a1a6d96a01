"""torchsmith's own Python, for use in containers of any distribution.

The memory governor's launcher, the batches and the proofs are Python programs that run beside the
compilers, where they run. A distribution's own Python may be as old as 3.5, and this machine's may
need a newer C library than the container has. So the interpreter is copied with every library it
loads, the loader among them, and with torchsmith and what that imports: about 180 MB in the store,
made once for each torchsmith and each Python.
"""

from __future__ import annotations

import contextlib
import importlib.metadata
import json
import os
import re
import shutil
import sys
import sysconfig
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path

from packaging.requirements import Requirement

import torchsmith
from torchsmith.engine.disk import room
from torchsmith.engine.trees import remove
from torchsmith.errors import HostError
from torchsmith.host.probe import ask
from torchsmith.package.patchelf import change, patchelf_program
from torchsmith.programs import call

# To be raised when a kit is laid out in another way.
_FORM = 3
_DAYS_KEPT = 7
_HINT = "Build on this machine itself instead: --here."
# Of the standard library, what no program of ours imports.
_LEFT_OUT = {
    *("test", "tests", "idlelib", "tkinter", "turtledemo", "ensurepip", "lib2to3", "pydoc_data"),
    *("site-packages", "dist-packages", "venv"),
}
_LEFT_OUT_TOO = ("config-", "_tkinter.", "nis.")
_LIBRARY = re.compile(r"^\s*(?:\S+ => )?(/\S+) \(0x[0-9a-f]+\)$", re.MULTILINE)


@dataclass(frozen=True, slots=True)
class Kit:
    """Where the copy lies, and what of this machine it stands for."""

    folder: Path

    @property
    def python(self) -> Path:
        """The interpreter."""
        return self.folder / "bin" / "python3"

    @property
    def package(self) -> Path:
        """torchsmith itself."""
        return self.folder / "site" / "torchsmith"

    def inside(self, text: str) -> str:
        """A text with the kit's paths in place of this machine's."""
        return text.replace(str(_package()), str(self.package)).replace(
            sys.executable, str(self.python)
        )


def make_kit(store: Path) -> Kit:
    """The kit of this torchsmith and this Python; made if it is not there."""
    home = store / "tools"
    kit = Kit(home / f"python-{_mark()}")
    if kit.python.exists():
        os.utime(kit.folder)
        return kit
    with room(home):
        home.mkdir(parents=True, exist_ok=True)
        _drop_old(home)
        with tempfile.TemporaryDirectory(dir=home, prefix=".python-") as place:
            draft = Path(place) / kit.folder.name
            _assemble(draft, kit.folder)
            with contextlib.suppress(OSError):
                # Another process may have been quicker: its own is as good.
                draft.rename(kit.folder)
    return kit


def _drop_old(home: Path) -> None:
    for old in home.glob("python-*"):
        if time.time() - old.stat().st_mtime > _DAYS_KEPT * 86_400:
            remove(old)


def _package() -> Path:
    return Path(torchsmith.__file__).resolve().parent


def _interpreter() -> Path:
    # Behind the link of a virtual environment.
    base = getattr(sys, "_base_executable", "") or sys.executable
    return Path(base).resolve()


def _mark() -> str:
    """What the kit is made of, as a short name."""
    interpreter = _interpreter()
    parts = {
        "form": _FORM,
        "python": [str(interpreter), interpreter.stat().st_mtime_ns, sys.version],
        "packages": sorted(f"{item.name}=={item.version}" for item in _distributions()),
        "torchsmith": sorted(
            [str(file.relative_to(_package())), file.stat().st_size, file.stat().st_mtime_ns]
            for file in _sources(_package())
        ),
    }
    return sha256(json.dumps(parts).encode()).hexdigest()[:16]


def _sources(folder: Path) -> Iterator[Path]:
    for file in folder.rglob("*"):
        if file.is_file() and "__pycache__" not in file.parts:
            yield file


def _distributions() -> list[importlib.metadata.Distribution]:
    """What torchsmith needs, and what that needs in turn."""
    found: dict[str, importlib.metadata.Distribution] = {}
    open_ = ["torchsmith"]
    while open_:
        name = open_.pop()
        with contextlib.suppress(importlib.metadata.PackageNotFoundError):
            item = importlib.metadata.distribution(name)
            for text in item.requires or ():
                wanted = Requirement(text)
                if wanted.name not in found and (
                    wanted.marker is None or wanted.marker.evaluate({"extra": ""})
                ):
                    open_.append(wanted.name)
            found[name] = item
    found.pop("torchsmith")
    return list(found.values())


def _assemble(draft: Path, final: Path) -> None:
    """Lay the kit out; what it says of itself is where it will lie."""
    stdlib = Path(sysconfig.get_path("stdlib"))
    version = f"python{sys.version_info.major}.{sys.version_info.minor}"
    site = draft / "site"
    shutil.copytree(
        stdlib,
        draft / "lib" / version,
        symlinks=False,
        ignore=lambda folder, names: [
            name for name in names if name in _LEFT_OUT or name.startswith(_LEFT_OUT_TOO)
        ],
    )
    shutil.copytree(_package(), site / "torchsmith")
    for item in _distributions():
        _copy_distribution(item, site)
    (draft / "bin").mkdir()
    shutil.copy2(patchelf_program(), draft / "bin" / "patchelf")
    python = draft / "bin" / "python3"
    shutil.copyfile(_interpreter(), python)
    python.chmod(0o755)
    # Not by PYTHONPATH, which the Pythons of the build would heed too.
    customize = f"import sys\nsys.path.append({str(final / 'site')!r})\n"
    (draft / "lib" / version / "sitecustomize.py").unlink(missing_ok=True)
    (draft / "lib" / version / "sitecustomize.py").write_text(customize)
    modules = [file for file in draft.rglob("*.so*") if file.is_file()]
    libraries = draft / "lib" / "system"
    libraries.mkdir()
    loader = _copy_libraries([python, *modules], libraries)
    there = final / "lib" / "system"
    tie(python, there / loader)
    dynload = draft / "lib" / version / "lib-dynload"
    for library in (*libraries.iterdir(), *dynload.glob("*.so")):
        if _search_path(library):
            change([str(patchelf_program()), "--remove-rpath"], library, _HINT)


def tie(program: Path, loader: Path) -> None:
    """Have a program started by this loader, and load the libraries that lie beside it."""
    words = [str(patchelf_program())]
    # DT_RPATH of the program holds for everything it loads, unless that has a path of its own.
    change([*words, "--force-rpath", "--set-rpath", str(loader.parent)], program, _HINT)
    # Last, and on its own: together, or before, they make patchelf 0.19 lay segments over each
    # other in a program with fixed addresses, as Debian's Python is.
    change([*words, "--set-interpreter", str(loader)], program, _HINT)


def _search_path(library: Path) -> str:
    answer = ask([str(patchelf_program()), "--print-rpath", str(library)])
    return answer.out.strip() if answer is not None and answer.code == 0 else ""


def _copy_distribution(item: importlib.metadata.Distribution, site: Path) -> None:
    for entry in item.files or ():
        file = Path(str(item.locate_file(entry)))
        # Scripts lie outside; compiled files are written anew.
        if entry.parts[0] == ".." or "__pycache__" in entry.parts or not file.is_file():
            continue
        target = site.joinpath(*entry.parts)
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy2(file, target)


def _copy_libraries(programs: list[Path], into: Path) -> str:
    """Copy what programs load from this system; the name of the loader among it."""
    loader = ""
    for start in range(0, len(programs), 100):
        some = programs[start : start + 100]
        listed = call(["ldd", *some], env={**os.environ, "LC_ALL": "C"}).out
        for name in dict.fromkeys(_LIBRARY.findall(listed)):
            file = Path(name)
            # What a wheel brings along lies beside what loads it.
            if into.parent.parent in file.parents:
                continue
            if file.name.startswith("ld-linux") or file.name.startswith("ld-musl"):
                loader = file.name
            if not (into / file.name).exists():
                shutil.copyfile(file.resolve(), into / file.name)
                (into / file.name).chmod(0o755)
    if not loader:
        raise HostError(
            f"{_interpreter()} cannot be copied into a container: it names no loader", _HINT
        )
    return loader

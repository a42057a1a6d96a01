"""Finishing a wheel from one end to the other: look, decide, change, pack, have it audited.

As a program it finishes a wheel of a plan, in its work folder.
"""

from __future__ import annotations

import os
import shutil
import stat
import tempfile
import zipfile
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path

import msgspec
from msgspec.structs import replace
from packaging.utils import parse_wheel_filename

from torchsmith.errors import HostError, OutputError, UsageError
from torchsmith.host.limits import read_cores
from torchsmith.host.system import read_platform
from torchsmith.inputs import check_file, one_file
from torchsmith.package.finish.audit import audit
from torchsmith.package.finish.design import (
    Design,
    Fields,
    Options,
    design,
    loadable,
    moved,
    open_wheel,
)
from torchsmith.package.finish.outside import Origin, Outside, read_pins
from torchsmith.package.pack import Member, write_wheel, writing
from torchsmith.package.patchelf import Patch, change, patch
from torchsmith.plan.packages import Finishing
from torchsmith.tasks import run_task
from torchsmith.verify.binary import Library, read_files
from torchsmith.verify.wheelfile import Wheel

_ORIGINS: dict[Origin, str] = {
    "system": "the machine's",
    "vendor": "put into the wheel",
    "wheels": "required",
    "torch": "torch's own",
    "driver": "the driver's",
    "python": "Python's own, not needed",
}
_MIB = 1 << 20


class Change(msgspec.Struct, frozen=True):
    """One thing that is different in the finished wheel."""

    what: str
    now: str


class Finished(msgspec.Struct, frozen=True):
    """A wheel as it was finished, or as it would be: `written` says which.

    `platform` is the tag that is true, `because` what keeps it from an older one. Sizes are those
    of the files; `after` is 0 where nothing was written.
    """

    wheel: str
    result: str
    platform: str
    because: str
    outside: tuple[Outside, ...] = ()
    changes: tuple[Change, ...] = ()
    before: int = 0
    after: int = 0
    written: bool = False


def lines(made: Finished) -> Iterator[str]:
    """What a person wants to know of it."""
    yield made.wheel.rpartition("/")[2]
    yield f"  tag  {made.platform}" + (f" ({made.because})" if made.because else "")
    if made.outside:
        yield "  libraries outside of it"
    width = max((len(item.name) for item in made.outside), default=0)
    for item in made.outside:
        text = _ORIGINS[item.origin]
        if item.becomes:
            text += f": {item.becomes}"
        yield f"    {item.name:{width}}  {text}"
    if made.changes:
        yield "  changed" if made.written else "  would change"
    for difference in made.changes:
        yield f"    {difference.what}: {difference.now}"
    sizes = f", {made.after / _MIB:.1f} MiB, was {made.before / _MIB:.1f}" if made.written else ""
    yield f"  {'made' if made.written else 'would make'} {made.result}{sizes}"


Say = Callable[[str], None]
# The folder a wheel is finished in, beside where it will lie.
UNFINISHED = ".finish-"
_UNPATCHABLE = "It is not one patchelf can change: finish with --libraries system."


def finish_wheel(
    path: Path,
    out: Path,
    options: Options,
    *,
    dry_run: bool = False,
    say: Say = lambda text: None,
) -> Finished:
    """Write the finished wheel into a folder, whole or not at all; the given one stays."""
    say(f"reading {path.name}")
    wheel = open_wheel(path)
    wanted = design(wheel, options)
    target = out / wanted.name
    if not dry_run:
        if target.exists() and target.samefile(path):
            raise UsageError(f"{path} would be written over itself", "Name another --output.")
        with writing(target, "Name another --output."):
            _write(wheel, wanted, target, say)
    return Finished(
        wheel=str(path),
        result=str(target),
        platform=str(wanted.tag),
        because=wanted.tag.reason,
        outside=tuple(wanted.settled.outside),
        changes=tuple(_changes(wheel, wanted)),
        before=path.stat().st_size,
        after=0 if dry_run else target.stat().st_size,
        written=not dry_run,
    )


def _write(wheel: Wheel, wanted: Design, target: Path, say: Say) -> None:
    target.parent.mkdir(parents=True, exist_ok=True)
    place = Path(tempfile.mkdtemp(dir=target.parent, prefix=UNFINISHED))
    try:
        tree = place / "tree"
        made = place / wanted.name
        with zipfile.ZipFile(wheel.path) as archive:
            say("changing its libraries")
            _change(wheel, wanted, archive, tree)
            say("packing it")
            date = max(info.date_time for info in archive.infolist())
            write_wheel(_members(wanted, archive, tree), made, date=date)
        shutil.rmtree(tree, ignore_errors=True)
        if wanted.tag.promises and loadable(wheel):
            say("having auditwheel look at it")
            audit(made, wanted.tag, wanted.settled.of("torch", "wheels", "driver"))
        # Not as the given one, which a store may hold unwritable.
        made.chmod(0o644)
        with made.open("rb") as file:
            os.fsync(file.fileno())
        made.replace(target)
    finally:
        shutil.rmtree(place, ignore_errors=True)


def _change(wheel: Wheel, wanted: Design, archive: zipfile.ZipFile, tree: Path) -> None:
    """Lay the libraries that change into a folder, changed."""
    paths = sorted({*wanted.patches, *wanted.stripped, *wanted.taken})
    stripper = strip_program(loadable(wheel)[0].machine) if wanted.stripped else ""

    def one(path: str) -> None:
        file = tree / path
        file.parent.mkdir(parents=True, exist_ok=True)
        if path in wanted.taken:
            shutil.copyfile(wanted.taken[path].source, file)
        else:
            with archive.open(path) as source, file.open("wb") as copy:
                shutil.copyfileobj(source, copy, 1 << 20)
        # Stripped first: after patchelf has moved things, strip can break a library.
        # https://github.com/pypa/auditwheel/issues/716
        if path in wanted.stripped:
            strip(file, stripper)
        if path in wanted.patches:
            patch(file, wanted.patches[path], _UNPATCHABLE)

    with ThreadPoolExecutor(read_cores()) as pool:
        list(pool.map(one, paths))
    read = {item.path: item for item in read_files(tree, paths)}
    for path in paths:
        if not _is_as_wanted(read.get(path), wanted.patches.get(path, Patch())):
            raise OutputError(
                f"{path} was not changed as it should have been",
                "Nothing was written. Finish with --no-strip, or with --libraries system.",
            )


def _is_as_wanted(library: Library | None, wanted: Patch) -> bool:
    """Whether a library is whole, and says what it should: a program may end well and not do it."""
    if library is None or library.broken or not library.dynamic:
        return False
    needed = {*library.needed}
    return (
        (not wanted.soname or library.soname == wanted.soname)
        and not {*wanted.needed, *wanted.unneeded} & needed
        and {*wanted.needed.values()} <= needed
        and (wanted.search is None or library.search == wanted.search)
    )


def _members(wanted: Design, archive: zipfile.ZipFile, tree: Path) -> Iterator[Member]:
    signatures = {f"{wanted.old}.dist-info/RECORD.{end}" for end in ("jws", "p7s")}
    changed = {*wanted.patches, *wanted.stripped}
    for info in archive.infolist():
        name = info.filename
        # A signature is of a RECORD that is no more.
        if info.is_dir() or name in signatures:
            continue
        size, read = info.file_size, partial(archive.read, info)
        if name in changed:
            size, read = (tree / name).stat().st_size, partial((tree / name).read_bytes)
        elif name in wanted.texts:
            size, read = len(wanted.texts[name]), partial(bytes, wanted.texts[name])
        executable = bool(info.external_attr >> 16 & stat.S_IXUSR)
        yield Member(moved(name, wanted.old, wanted.new), size, executable, read)
    for path in wanted.taken:
        yield Member(path, (tree / path).stat().st_size, True, (tree / path).read_bytes)


def _changes(wheel: Wheel, wanted: Design) -> Iterator[Change]:
    if wanted.version:
        yield Change("version", wanted.version)
    for path, item in wanted.patches.items():
        if path in wanted.taken:
            continue
        count = len(item.needed)
        parts = [f"{count} of them under new names"] if count else []
        parts += [f"{name} is not needed" for name in item.unneeded]
        if item.search is not None:
            parts.append(f"looks in {':'.join(item.search) or 'no folder of its own'}")
        yield Change(path, ", ".join(parts))
    if wanted.stripped:
        sizes = {item.path: item.strippable for item in wheel.libraries}
        sizes |= {path: item.library.strippable for path, item in wanted.taken.items()}
        total = sum(sizes[path] for path in wanted.stripped)
        number = len(wanted.stripped)
        many = "1 library" if number == 1 else f"{number} libraries"
        yield Change("stripped", f"{many}, {total / 1e6:.1f} MB")
    for name, text in wanted.texts.items():
        if name.endswith(".py"):
            yield Change(name, f"__version__ is {wanted.version}")
        for line in Fields(text).all("Requires-Dist") if name.endswith("/METADATA") else ():
            if line not in wheel.requires:
                yield Change("requires", line)


def strip_program(machine: str) -> str:
    """A strip that knows this machine's libraries."""
    names = [f"{machine}-linux-gnu-strip", "llvm-strip"]
    if read_platform().partition("-")[2] == machine:
        names.insert(0, "strip")
    for name in names:
        if found := shutil.which(name):
            return found
    raise HostError(
        f"no strip here knows libraries for {machine}",
        "Install binutils, or finish with --no-strip.",
    )


def strip(file: Path, program: str) -> None:
    """Strip a library that is loaded; its dynamic symbols, and so what it offers, stay."""
    change(
        [program, "--strip-unneeded"],
        file,
        "Finish with --no-strip: the library stays as large as it is.",
    )


def finish_wheels(
    paths: Sequence[Path],
    out: Path | None,
    options: Options,
    *,
    dry_run: bool = False,
    say: Say = lambda text: None,
) -> list[Finished]:
    """Finish torch first: what was built against it is held to the version it then has."""
    made: list[Finished] = []
    for path in sorted(paths, key=lambda path: not path.name.startswith("torch-")):
        folder = out if out is not None else path.parent / "finished"
        item = finish_wheel(path, folder, options, dry_run=dry_run, say=say)
        made.append(item)
        if path.name.startswith("torch-") and not options.torch:
            version = parse_wheel_filename(Path(item.result).name)[1]
            options = replace(options, torch=str(version))
    return made


def pins_in(file: Path) -> dict[str, str]:
    """The versions a file has, as `pip freeze` prints them."""
    check_file(file, "Name a text file, as `pip freeze` prints it.")
    try:
        return read_pins(file.read_text(encoding="utf-8").splitlines())
    except UnicodeDecodeError:
        raise UsageError(
            f"{file} is not text", "Name a text file, as `pip freeze` prints it."
        ) from None


def carry_out(finishing: Finishing) -> Finished:
    """Finish the one wheel that is meant; what an earlier attempt left under its name goes."""
    wheel = one_file(finishing.wheel)
    folder = Path(finishing.output).parent
    for left in folder.glob(f"{UNFINISHED}*"):
        # Of an attempt that was killed; no other step works in this folder now.
        shutil.rmtree(left, ignore_errors=True)
    made = finish_wheel(
        wheel,
        folder,
        Options(
            libraries=finishing.libraries,
            strip=finishing.strip,
            torch=finishing.torch,
            pins=read_pins(finishing.known)
            | (pins_in(Path(finishing.pins)) if finishing.pins else {}),
        ),
        say=lambda text: print(text, flush=True),
    )
    for other in Path().glob(finishing.output):
        if other != Path(made.result):
            other.unlink()
    return made


if __name__ == "__main__":
    run_task(Finishing, lambda task: print("\n".join(lines(carry_out(task))), flush=True))

"""libtorch: what C++ programs need of a torch, out of its wheel, as upstream lays it out.

    libtorch/{lib,include,share,bin}   libtorch/build-version   libtorch/build-hash

A zip archive, as upstream's is: every system and CMake itself can open one, its files can be had
one by one, and ours are compressed by every core. There are no links in it, as there are none in a
wheel. The same wheel gives the same bytes on any machine.

    python -m torchsmith.package.libtorch < SPEC

runs as a step of a plan, in its work folder; see torchsmith.plan.packages.
"""

from __future__ import annotations

import re
import tempfile
import zipfile
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path, PurePosixPath

from msgspec import Struct

from torchsmith.errors import UsageError, VerificationError
from torchsmith.files import whole_file
from torchsmith.host.limits import read_cores
from torchsmith.inputs import one_file
from torchsmith.package.pack import EARLIEST, Member, ZipWriter, packed_members, writing
from torchsmith.package.patchelf import Patch, patch
from torchsmith.plan.packages import Libtorch, archive_name
from torchsmith.tasks import run_task
from torchsmith.verify.binary import Library, looks_shared, version_key
from torchsmith.verify.linkage import baseline
from torchsmith.verify.wheelfile import Wheel, sound_wheel

# Lists of libraries and folders, in the files CMake writes for the targets of an installation.
_LISTS = re.compile(
    r"^  (?P<name>(?:INTERFACE_(?:LINK_LIBRARIES|LINK_DIRECTORIES|(?:SYSTEM_)?INCLUDE_DIRECTORIES)"
    r'|IMPORTED_LINK_(?:DEPENDENT|INTERFACE)_LIBRARIES_\w+)) "(?P<items>[^"\n]*)"\n',
    re.MULTILINE,
)
# A path by itself, or inside \$<LINK_ONLY:…>.
_ABSOLUTE = re.compile(r"(?:\\\$<[A-Z_]+:)?/")
_ATEN = re.compile(r'(?<=set\(ATEN_INCLUDE_DIR )"/[^"\n]*"')
_PROTOBUF = re.compile(r"(?<=# Protobuf\nif\()(?:OFF|0|FALSE)(?=\)\n)")
_CAFFE2 = "find_package(Caffe2 REQUIRED PATHS ${CMAKE_CURRENT_LIST_DIR}/../Caffe2)"
_OWN = re.compile(r'(find_library\(\S+ \S+ PATHS "\$\{TORCH_INSTALL_PREFIX\}/lib")\)')
# Inside libtorch_cpu.so, and looked for beside it all the same.
_KINETO = re.compile(r"(?<=^if\()(?:ON|1|TRUE)(?=\)\n  append_torchlib_if_found\(kineto\))", re.M)
_LOOKED_FOR = re.compile(
    r'^if ?\((?:ON|1|TRUE)\)\n(?:(?:[ \t].*)?\n)*?[ \t]+include\("\$\{CMAKE_CURRENT_LIST_DIR\}'
    r'/public/(gflags|glog|cuda|LoadHIP|xpu)\.cmake"\)',
    re.MULTILINE,
)


# CMake's files are written for the machine that built torch: they ask for libraries by their paths
# there, and look again for packages that torch was linked with. A program that links with a shared
# library needs neither: the library names what it needs itself.


def relocatable(name: str, text: str) -> tuple[str, tuple[str, ...]]:
    """A file of share/cmake as it should be anywhere, and what was changed in it."""
    last = name.rpartition("/")[2]
    changes: list[str] = []

    def replaced(pattern: re.Pattern[str], new: str, what: str, text: str) -> str:
        text, count = pattern.subn(new, text)
        changes.extend([what] if count else [])
        return text

    if last == "ATenConfig.cmake":
        here = r'"${CMAKE_CURRENT_LIST_DIR}/../../../include"'
        text = replaced(_ATEN, here, "the folder of headers is found from the file itself", text)
    elif last == "Caffe2Config.cmake":
        text = replaced(_PROTOBUF, "ON", "protobuf is not looked for: libtorch names its own", text)
    elif last == "TorchConfig.cmake":
        own = re.compile(re.escape(_CAFFE2))
        only = _CAFFE2.removesuffix(")") + " NO_DEFAULT_PATH)"
        what = "its own libraries are taken, whatever other torch a machine has"
        text = replaced(own, only.replace("\\", "\\\\"), what, text)
        text = _OWN.sub(r"\1 NO_DEFAULT_PATH)", text)
        kineto = 'EXISTS "${TORCH_INSTALL_PREFIX}/lib/libkineto.a"'
        text = replaced(_KINETO, kineto, "no warning that there is no kineto by itself", text)
    elif "Targets" in last:
        text, dropped = _without_paths(text)
        if dropped:
            changes.append(f"paths of the building machine are gone: {', '.join(dropped)}")
    return text, tuple(changes)


def _without_paths(text: str) -> tuple[str, list[str]]:
    dropped: dict[str, None] = {}

    def kept(match: re.Match[str]) -> str:
        items = match["items"].split(";")
        stay = [item for item in items if not _ABSOLUTE.match(item)]
        dropped.update(dict.fromkeys(item for item in items if item not in stay))
        return f'  {match["name"]} "{";".join(stay)}"\n'

    return _LISTS.sub(kept, text), list(dropped)


def looked_for(text: str) -> Iterator[str]:
    """What Caffe2Config.cmake has to find on the machine where a program is built."""
    for match in _LOOKED_FOR.finditer(text):
        yield {"LoadHIP": "ROCm", "cuda": "a CUDA toolkit", "xpu": "oneAPI"}.get(match[1], match[1])


TOP = "libtorch"
_PARTS = ("bin", "include", "lib", "share")
# The folder beside torch/ in which a repaired wheel has the libraries it brings along.
_VENDORED = "torch.libs/"
# What serves Python alone, and what tests torch itself: neither is of use to a C++ program.
_FOR_PYTHON = re.compile(r"lib/libtorch_python\.|lib/libshm|bin/torch_shm_manager$|include/libshm")
_TESTS = re.compile(
    r"bin/(?:test_|upgrader_models/|[^/]*(?:Test|\.ptl?)$)"
    r"|lib/lib(?:[^/]*_test|backend_with_compiler|aoti_custom_ops)\.so"
)


class Contents(Struct, frozen=True):
    """What the archive of a wheel holds, and what became of the wheel's files on the way.

    `missing` are libraries that the machine has to have, `finds` what CMake looks for there.
    """

    version: str
    commit: str
    platform: str
    glibc: str
    files: tuple[str, ...]
    left_out: tuple[str, ...]
    vendored: tuple[str, ...]
    search_paths: Mapping[str, str]
    cmake: Mapping[str, tuple[str, ...]]
    missing: tuple[str, ...]
    finds: tuple[str, ...]

    @property
    def archive(self) -> str:
        """The name its archive should have."""
        return archive_name(self.version, self.platform)


@dataclass(frozen=True, slots=True)
class _Tree:
    """The archive's files, by name: where each comes from in the wheel, or its new text."""

    contents: Contents
    sources: Mapping[str, str]
    texts: Mapping[str, bytes]


def read_contents(wheel: Path) -> Contents:
    """Say what the archive of a wheel will hold; nothing is written."""
    return _tree(wheel).contents


def pack_libtorch(
    wheel: Path, folder: Path, *, threads: int | None = None
) -> tuple[Contents, Path]:
    """Write the archive of a torch wheel into a folder, whole or not at all."""
    tree = _tree(wheel)
    target = folder / tree.contents.archive
    with writing(folder):
        folder.mkdir(parents=True, exist_ok=True)
        with (
            zipfile.ZipFile(wheel) as archive,
            tempfile.TemporaryDirectory(dir=folder, prefix=".libtorch-") as scratch,
            whole_file(target) as file,
        ):
            # The largest first, so that no core is left with one at the end.
            members = sorted(
                _members(tree, archive, Path(scratch)),
                key=lambda member: (-member.size, member.name),
            )
            date = max((info.date_time for info in archive.infolist()), default=EARLIEST)
            writer = ZipWriter(file, max(date, EARLIEST))
            for packed, _ in packed_members(members, threads or read_cores()):
                writer.add(packed)
            writer.close()
    return tree.contents, target


def _members(tree: _Tree, archive: zipfile.ZipFile, folder: Path) -> Iterator[Member]:
    for name, text in tree.texts.items():
        yield Member(f"{TOP}/{name}", len(text), False, partial(bytes, text))
    for name, source in tree.sources.items():
        info = archive.getinfo(source)
        search = tree.contents.search_paths.get(name)
        read: Callable[[], bytes] = partial(archive.read, info)
        if search is not None:
            read = partial(_with_search_path, archive, info, folder, search)
        executable = bool(info.external_attr >> 16 & 0o100) or looks_shared(name)
        yield Member(f"{TOP}/{name}", info.file_size, executable, read)


def _with_search_path(
    archive: zipfile.ZipFile, info: zipfile.ZipInfo, folder: Path, search: str
) -> bytes:
    """A library made to look elsewhere: patchelf needs it as a file."""
    with tempfile.TemporaryDirectory(dir=folder) as place:
        library = Path(place) / PurePosixPath(info.filename).name
        library.write_bytes(archive.read(info))
        patch(library, Patch(search=tuple(search.split(":"))))
        return library.read_bytes()


def _tree(wheel: Path) -> _Tree:
    read = _checked(wheel)
    libraries = {library.path: library for library in read.libraries}
    inside = {_place(name): name for name in read.files if _place(name)}
    left_out = sorted(name for name in inside if _FOR_PYTHON.match(name) or _TESTS.match(name))
    sources = {name: inside[name] for name in sorted(inside) if name not in left_out}
    vendored = _needed_of(read, sources, libraries)
    sources |= vendored
    _require(wheel, sources)
    with zipfile.ZipFile(wheel) as archive:
        texts, changes, finds = _cmake_files(archive, sources)
        version = archive.read("torch/version.py").decode("utf-8", "replace")
    commit = re.search(r"^git_version[^=\n]*= *['\"](\w+)['\"]", version, re.MULTILINE)
    kept = {name: libraries[source] for name, source in sources.items() if source in libraries}
    provided = {PurePosixPath(name).name for name in kept}
    known = baseline()
    contents = Contents(
        version=read.version,
        commit=commit[1] if commit else "Unknown",
        platform=f"linux-{next(iter(kept.values())).machine}",
        glibc=max((lib.versions.get("GLIBC", "") for lib in kept.values()), key=version_key),
        files=tuple(sorted((*sources, "README.txt", "build-hash", "build-version"))),
        left_out=tuple(left_out),
        vendored=tuple(vendored),
        search_paths=dict(_search_paths(kept, provided)),
        cmake=changes,
        missing=tuple(
            sorted(
                {name for library in kept.values() for name in library.needed}
                - provided
                - known.system
            )
        ),
        finds=finds,
    )
    texts["build-version"] = f"{contents.version}\n".encode()
    texts["build-hash"] = f"{contents.commit}\n".encode()
    texts["README.txt"] = readme(contents).encode()
    return _Tree(contents, {k: v for k, v in sources.items() if k not in texts}, texts)


def _checked(wheel: Path) -> Wheel:
    """A wheel that is whole and a torch's."""
    read = sound_wheel(wheel)
    if read.name != "torch":
        raise UsageError(
            f"{wheel.name} is a wheel of {read.name}", "libtorch is made of a wheel of torch."
        )
    for library in read.libraries:
        if library.broken:
            raise VerificationError(
                f"{wheel.name} is not a sound wheel: {library.path}: {library.broken}",
                "Build or download it again.",
            )
    return read


def _place(name: str) -> str:
    """Where a file of the wheel lies in the archive; empty if it has no place there."""
    first, _, rest = name.partition("/")
    return rest if first == "torch" and rest.partition("/")[0] in _PARTS and "/" in rest else ""


def _needed_of(
    read: Wheel, sources: Mapping[str, str], libraries: Mapping[str, Library]
) -> dict[str, str]:
    """The libraries a repaired wheel brings along that something in the archive needs."""
    there = {name.rpartition("/")[2]: name for name in read.files if name.startswith(_VENDORED)}
    found: dict[str, str] = {}
    queue = [libraries[source] for source in sources.values() if source in libraries]
    while queue:
        for name in queue.pop().needed:
            place = f"lib/{name}"
            if name in there and place not in sources and place not in found:
                found[place] = there[name]
                queue.append(libraries[there[name]])
    return dict(sorted(found.items()))


def _require(wheel: Path, sources: Mapping[str, str]) -> None:
    wanted = {
        "libraries": any(re.match(r"lib/libtorch\w*\.so$", name) for name in sources),
        "headers": any(name.startswith("include/") for name in sources),
        "CMake files": "share/cmake/Torch/TorchConfig.cmake" in sources,
    }
    missing = [name for name, there in wanted.items() if not there]
    if missing:
        raise UsageError(
            f"{wheel.name} has no {' and no '.join(missing)}",
            "No C++ program can be built with it: take a wheel that `pip install torch` would.",
        )


def _cmake_files(
    archive: zipfile.ZipFile, sources: Mapping[str, str]
) -> tuple[dict[str, bytes], dict[str, tuple[str, ...]], tuple[str, ...]]:
    texts: dict[str, bytes] = {}
    changes: dict[str, tuple[str, ...]] = {}
    finds: tuple[str, ...] = ()
    for name, source in sources.items():
        if not (name.startswith("share/cmake/") and name.endswith(".cmake")):
            continue
        before = archive.read(source).decode("utf-8", "surrogateescape")
        if name.endswith("/Caffe2Config.cmake"):
            finds = tuple(dict.fromkeys(looked_for(before)))
        text, changed = relocatable(name, before)
        if changed:
            texts[name] = text.encode("utf-8", "surrogateescape")
            changes[name] = changed
    return texts, changes, finds


def _search_paths(kept: Mapping[str, Library], provided: set[str]) -> Iterator[tuple[str, str]]:
    """The libraries and programs that look elsewhere than beside them, and where they should."""
    for name, library in kept.items():
        wanted = "$ORIGIN" + "/.." * (name.count("/") - 1)
        wanted += "" if name.startswith("lib/") else "/../lib"
        needs = bool(provided.intersection(library.needed))
        if (library.search or needs) and library.search != (wanted,):
            yield name, wanted


def readme(contents: Contents) -> str:
    """What the archive says of itself."""
    lines = [
        f"libtorch {contents.version} for {contents.platform}, glibc {contents.glibc} or newer",
        "",
        "  find_package(Torch REQUIRED)",
        "  target_link_libraries(program ${TORCH_LIBRARIES})",
        "",
        "  cmake -DCMAKE_PREFIX_PATH=/where/this/is/libtorch ...",
        "",
        "The folder may lie anywhere. Its source: build-hash names the commit.",
    ]
    if contents.missing:
        lines += ["", "The machine has to have these libraries:"]
        lines += [f"  {name}{_brought(name)}" for name in contents.missing]
    if contents.finds:
        lines += ["", f"CMake looks for {' and '.join(contents.finds)} on the machine."]
    if contents.vendored:
        lines += ["", "Brought along from the building machine:"]
        lines += [f"  {name}" for name in contents.vendored]
    if contents.cmake or contents.search_paths:
        lines += ["", "Other than in the wheel:"]
    for name, changes in contents.cmake.items():
        lines += [f"  {name}: {change}" for change in changes]
    lines += [f"  {name}: looks in {path}" for name, path in contents.search_paths.items()]
    if contents.left_out:
        count = len(contents.left_out)
        lines += ["", f"Left out: {count} files for Python or for testing torch itself."]
    return "\n".join(lines) + "\n"


def _brought(library: str) -> str:
    known = baseline()
    if library in known.driver:
        return "  (the GPU's driver)"
    bringer = known.bringer(library)
    return f"  ({bringer} on PyPI)" if bringer else ""


def _pack(libtorch: Libtorch) -> None:
    made, target = pack_libtorch(one_file(libtorch.wheel), Path(libtorch.archive).parent)
    if target != Path(libtorch.archive):
        # Found by nobody under another name.
        target.unlink()
        raise UsageError(
            f"{libtorch.wheel} makes {target.name}, and {libtorch.archive} was planned",
            "The wheel is not of the version or platform that was asked for.",
        )
    print(readme(made), end="", flush=True)


if __name__ == "__main__":
    run_task(Libtorch, _pack)

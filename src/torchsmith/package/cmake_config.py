"""Making the CMake files of a torch true on any machine.

They are written for the machine that built it: a library that was found there by its path is
asked for by that path, and a package that torch was linked with is looked for again. Neither is
needed to link with a shared library, which names what it needs itself.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

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


def relocatable(name: str, text: str) -> tuple[str, tuple[str, ...]]:
    """A file of share/cmake as it should be anywhere, and what was changed in it."""
    last = name.rpartition("/")[2]
    changes: list[str] = []

    def said(pattern: re.Pattern[str], new: str, what: str, text: str) -> str:
        text, count = pattern.subn(new, text)
        changes.extend([what] if count else [])
        return text

    if last == "ATenConfig.cmake":
        here = r'"${CMAKE_CURRENT_LIST_DIR}/../../../include"'
        text = said(_ATEN, here, "the folder of headers is found from the file itself", text)
    elif last == "Caffe2Config.cmake":
        text = said(_PROTOBUF, "ON", "protobuf is not looked for: libtorch names its own", text)
    elif last == "TorchConfig.cmake":
        own = re.compile(re.escape(_CAFFE2))
        only = _CAFFE2.removesuffix(")") + " NO_DEFAULT_PATH)"
        what = "its own libraries are taken, whatever other torch a machine has"
        text = said(own, only.replace("\\", "\\\\"), what, text)
        text = _OWN.sub(r"\1 NO_DEFAULT_PATH)", text)
        kineto = 'EXISTS "${TORCH_INSTALL_PREFIX}/lib/libkineto.a"'
        text = said(_KINETO, kineto, "no warning that there is no kineto by itself", text)
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

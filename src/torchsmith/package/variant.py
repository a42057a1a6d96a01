"""A wheel as a variant: named and described so that an installer can choose it by GPU.

As the drafts have it, PEP 825 (https://peps.python.org/pep-0825/) for the format and PEP 817 for
the properties. Only the newest installers' trial versions read it, and it may change yet.
"""

from __future__ import annotations

import json
import zipfile
from functools import partial
from pathlib import Path

from msgspec import Struct
from packaging.utils import canonicalize_name, parse_wheel_filename

from torchsmith.errors import OutputError
from torchsmith.facts.ranges import cuda_release
from torchsmith.files import write_result
from torchsmith.foreign import MalformedError, decode
from torchsmith.package.pack import Member, member_of, write_wheel, writing
from torchsmith.verify.fatbin import order
from torchsmith.verify.wheelfile import Wheel, read_wheel

_SCHEMA = "https://variants-schema.wheelnext.dev/v0.0.3.json"
_NULL = "null"
_NVIDIA = "nvidia"

Properties = dict[str, dict[str, list[str]]]


class _Listed(Struct, frozen=True):
    variants: dict[str, Properties]


def properties(wheel: Wheel) -> Properties:
    """What a machine must have, read off the wheel: its GPU code, and the CUDA of its label."""
    codes = sorted({code for library in wheel.libraries for code in library.gpu}, key=order)
    if not codes:
        return {}
    found = {"sm_arch": [_arch(code) for code in codes]}
    label = wheel.version.partition("+")[2].partition(".")[0]
    if label.startswith("cu"):
        found["cuda_version_lower_bound"] = [cuda_release(label)]
    return {_NVIDIA: found}


def _arch(code: str) -> str:
    """sm_90 is machine code, compute_90 PTX: as CMake names both."""
    kind, _, number = code.partition("_")
    return f"{number}_{'real' if kind == 'sm' else 'virtual'}"


def label(found: Properties) -> str:
    """A name of sixteen letters at most for these properties."""
    if not found:
        return _NULL
    nvidia = found[_NVIDIA]
    archs = [name.partition("_")[0] for name in nvidia["sm_arch"]]
    cuda = "cu" + nvidia.get("cuda_version_lower_bound", [""])[0].replace(".", "")
    whole = "_".join([cuda, *dict.fromkeys(archs)])
    return whole if len(whole) <= 16 else f"{cuda}_{archs[0]}_{archs[-1]}"[:16]


def _described(variants: dict[str, Properties]) -> bytes:
    namespaces = sorted({name for found in variants.values() for name in found})
    table = {
        "$schema": _SCHEMA,
        "default-priorities": {"namespace": namespaces},
        "variants": variants,
    }
    return (json.dumps(table, indent=2, sort_keys=True) + "\n").encode()


def write_variant(path: Path) -> Path:
    """Write a wheel's variant beside it, and add it to the list that an index serves."""
    wheel = read_wheel(path)
    found = properties(wheel)
    name = label(found)
    target = path.with_name(f"{path.name.removesuffix('.whl')}-{name}.whl")
    distribution, version, *_ = parse_wheel_filename(path.name)
    listed = path.with_name(
        f"{canonicalize_name(distribution).replace('-', '_')}-{version}-variants.json"
    )
    known: dict[str, Properties] = {}
    if listed.exists():
        try:
            known = decode(listed.read_bytes(), _Listed).variants
        except MalformedError as error:
            raise OutputError(
                f"{listed} is no list of variants: {error}", "Move it away: it is made anew."
            ) from None
    if known.get(name, found) != found:
        raise OutputError(
            f"{listed.name} has {name} already, for other GPUs",
            "A label stands for one set of GPUs: give the wheel another version label.",
        )
    with writing(target), zipfile.ZipFile(path) as archive:
        infos = [info for info in archive.infolist() if not info.is_dir()]
        content = _described({name: found})
        members = [member_of(archive, info) for info in infos]
        members.append(
            Member(f"{wheel.info}/variant.json", len(content), False, partial(bytes, content))
        )
        write_wheel(members, target, date=max(info.date_time for info in infos))
    write_result(listed, _described({**known, name: found}))
    return target

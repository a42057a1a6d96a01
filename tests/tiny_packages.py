"""Wheels and conda packages of a few hundred bytes, made by hand."""

from __future__ import annotations

import base64
import bz2
import hashlib
import io
import json
import tarfile
import zipfile
from pathlib import Path

import zstandard


def wheel(
    folder: Path,
    name: str,
    version: str,
    *,
    requires_python: str = ">=3.8",
    content: str = "",
    says: str = "",
    member: str = "",
    record: str = "",
    tag: str = "py3-none-any",
) -> Path:
    """A wheel with one module; `says`, `member` and `record` make it a bad one."""
    plain = name.replace("-", "_")
    info = f"{plain}-{version}.dist-info"
    files = {
        f"{plain}/__init__.py": f"version = {version!r}\n{content}".encode(),
        f"{info}/METADATA": (
            f"Metadata-Version: 2.1\nName: {says or name}\nVersion: {version}\n"
            f"Requires-Python: {requires_python}\n"
        ).encode(),
        f"{info}/WHEEL": f"Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: {tag}\n".encode(),
    }
    if member:
        files[member] = b"x"
    lines = [record] if record else []
    for path, data in files.items():
        digest = base64.urlsafe_b64encode(hashlib.sha256(data).digest()).rstrip(b"=").decode()
        if not record or path not in record:
            lines.append(f"{path},sha256={digest},{len(data)}")
    files[f"{info}/RECORD"] = "\n".join([*lines, f"{info}/RECORD,,"]).encode()
    folder.mkdir(parents=True, exist_ok=True)
    target = folder / f"{plain}-{version}-{tag}.whl"
    with zipfile.ZipFile(target, "w") as archive:
        for path, data in files.items():
            archive.writestr(zipfile.ZipInfo(path), data)
    return target


def conda(
    folder: Path,
    name: str,
    version: str,
    *,
    subdir: str = "noarch",
    form: str = ".conda",
    files: dict[str, bytes] | None = None,
    run_exports: object = None,
    literally: dict[str, str] | None = None,
    **more: object,
) -> Path:
    """A conda package with one small file; `literally` puts text in place of values."""
    payload = files or {f"share/{name}": f"{name} {version}\n".encode()}
    index = {
        "arch": None,
        "build": "0",
        "build_number": 0,
        "depends": [],
        "license": "BSD-3-Clause",
        "name": name,
        "subdir": subdir,
        "timestamp": 1_700_000_000_000,
        "version": version,
        **({"noarch": "generic"} if subdir == "noarch" else {}),
        **more,
    }
    said = json.dumps(index)
    for key, text in (literally or {}).items():
        said = said.replace(f"{json.dumps(key)}: {json.dumps(index[key])}", f'"{key}": {text}')
    paths = [
        {
            "_path": path,
            "path_type": "hardlink",
            "sha256": hashlib.sha256(data).hexdigest(),
            "size_in_bytes": len(data),
        }
        for path, data in payload.items()
    ]
    info = {
        "info/index.json": said.encode(),
        "info/paths.json": json.dumps({"paths": paths, "paths_version": 1}).encode(),
        "info/about.json": b"{}",
        "info/files": "".join(f"{path}\n" for path in payload).encode(),
    }
    if run_exports:
        info["info/run_exports.json"] = json.dumps(run_exports).encode()
    folder.mkdir(parents=True, exist_ok=True)
    stem = f"{index['name']}-{index['version']}-{index['build']}"
    target = folder / f"{stem}{form}"
    if form == ".tar.bz2":
        target.write_bytes(bz2.compress(tarred({**info, **payload})))
        return target
    packed = zstandard.ZstdCompressor()
    with zipfile.ZipFile(target, "w") as archive:
        archive.writestr(zipfile.ZipInfo("metadata.json"), '{"conda_pkg_format_version": 2}')
        for part, content in (("pkg", payload), ("info", info)):
            member = zipfile.ZipInfo(f"{part}-{stem}.tar.zst")
            archive.writestr(member, packed.compress(tarred(content)))
    return target


def tarred(files: dict[str, bytes]) -> bytes:
    stream = io.BytesIO()
    with tarfile.open(fileobj=stream, mode="w") as tar:
        for name, content in sorted(files.items()):
            member = tarfile.TarInfo(name)
            member.size = len(content)
            tar.addfile(member, io.BytesIO(content))
    return stream.getvalue()

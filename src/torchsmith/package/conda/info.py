"""The files below info/: what a package says of itself.

https://docs.conda.io/projects/conda-build/en/stable/resources/package-spec.html
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from torchsmith.package.conda.tree import Entry

_ARCHITECTURES = {"linux-64": "x86_64", "linux-aarch64": "aarch64"}


@dataclass(frozen=True, slots=True)
class Description:
    """What an index and a solver know of a package."""

    name: str
    version: str
    build: str
    subdir: str
    number: int = 0
    depends: tuple[str, ...] = ()
    constrains: tuple[str, ...] = ()
    run_exports: tuple[str, ...] = ()
    license: str = ""
    summary: str = ""
    home: str = ""
    # Seconds since 1970; 0: not known.
    date: int = 0
    imports: tuple[str, ...] = ()
    commands: tuple[str, ...] = ()
    entry_points: tuple[str, ...] = ()
    variant: Mapping[str, str] = field(default_factory=dict)
    # The wheel it was made of, and its hash.
    origin: Mapping[str, str] = field(default_factory=dict)

    @property
    def stem(self) -> str:
        """Its file name, without the ending that says its format."""
        return f"{self.name}-{self.version}-{self.build}"


def info_files(described: Description, entries: Sequence[Entry]) -> dict[str, bytes]:
    """Every file of info/, by name."""
    files = {
        "index.json": _json(_index(described)),
        "paths.json": _json({"paths": [_path(entry) for entry in entries], "paths_version": 1}),
        "about.json": _json(
            _filled(
                home=described.home,
                license=described.license,
                summary=described.summary,
                extra=dict(described.origin),
            )
        ),
        "files": _lines(entry.path for entry in entries),
        "hash_input.json": _json(dict(described.variant)),
    }
    if placed := [entry for entry in entries if entry.placeholder]:
        files["has_prefix"] = _lines(
            f'"{entry.placeholder}" "{entry.mode}" "{entry.path}"' for entry in placed
        )
    if described.run_exports:
        files["run_exports.json"] = _json({"weak": list(described.run_exports)})
    if described.subdir == "noarch":
        link = {"type": "python", "entry_points": list(described.entry_points)}
        files["link.json"] = _json({"noarch": link, "package_metadata_version": 1})
    if tests := _tests(described):
        files["tests/tests.yaml"] = _json(tests)
    return files


def _index(described: Description) -> dict[str, object]:
    noarch = described.subdir == "noarch"
    return _filled(
        name=described.name,
        version=described.version,
        build=described.build,
        depends=list(described.depends),
        constrains=list(described.constrains),
        license=described.license,
        timestamp=described.date * 1000,
        subdir=described.subdir,
        noarch="python" if noarch else "",
        platform="" if noarch else "linux",
        arch=_ARCHITECTURES.get(described.subdir, ""),
    ) | {"build_number": described.number, "depends": list(described.depends)}


def _path(entry: Entry) -> dict[str, object]:
    return {
        "_path": entry.path,
        "path_type": "softlink" if entry.target else "hardlink",
        "sha256": entry.sha256,
        "size_in_bytes": entry.size,
    } | _filled(prefix_placeholder=entry.placeholder, file_mode=entry.mode)


def _tests(described: Description) -> list[dict[str, object]]:
    """As rattler-build keeps them; JSON is YAML."""
    tests: list[dict[str, object]] = []
    if described.imports:
        tests.append({"python": {"imports": list(described.imports), "pip_check": False}})
    if described.commands:
        tests.append({"script": {"content": list(described.commands)}})
    return tests


def _filled(**values: object) -> dict[str, object]:
    """The table without what is not known."""
    return {name: value for name, value in values.items() if value}


def _json(value: object) -> bytes:
    return (json.dumps(value, indent=2, sort_keys=True, ensure_ascii=False) + "\n").encode()


def _lines(texts: Iterable[str]) -> bytes:
    return "".join(f"{text}\n" for text in texts).encode()

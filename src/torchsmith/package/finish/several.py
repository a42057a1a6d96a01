"""Finishing wheels that belong together, in the order they depend on each other."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from msgspec.structs import replace
from packaging.utils import parse_wheel_filename

from torchsmith.errors import UsageError
from torchsmith.inputs import check_file
from torchsmith.package.finish.design import Options
from torchsmith.package.finish.finish import Say, finish_wheel
from torchsmith.package.finish.nvidia import read_pins
from torchsmith.package.finish.report import Finished


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

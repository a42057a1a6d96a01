"""`torchsmith finish`, `conda` and `libtorch`: what is made of a finished wheel."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated, Literal

from typer import Argument, Option

from torchsmith.cli import options
from torchsmith.cli.output import print_json, tell
from torchsmith.errors import UsageError


def finish(
    wheel: Annotated[list[Path], Argument(help="Wheels to finish.")],
    libraries: Annotated[
        Literal["vendor", "system", "wheels"],
        Option(
            help="vendor: copy what it needs into it; system: leave it to the system; wheels: "
            "the same as vendor, but require NVIDIA's wheels for CUDA."
        ),
    ] = "vendor",
    label: Annotated[str, Option(help="Local version label it gets: cu126.sm86, or none.")] = "",
    no_strip: Annotated[
        bool, Option("--no-strip", help="Keep symbols and debug information.")
    ] = False,
    torch: Annotated[
        str, Option(help="Require this version of torch in wheels built against it.")
    ] = "",
    pins: Annotated[
        Path | None, Option(help="Versions of NVIDIA's wheels, as `pip freeze` prints them.")
    ] = None,
    output: Annotated[
        Path | None,
        Option("--output", "-o", help="Folder; default: finished/ beside each wheel."),
    ] = None,
    experimental: Annotated[
        bool,
        Option(
            "--experimental", help="Also write each as a wheel variant, which is a draft (PEP 825)."
        ),
    ] = False,
    dry_run: options.DryRun = False,
    json: options.Json = False,
) -> None:
    """Make wheels that run on other machines: libraries, paths, tag, label.

    The wheels that are given stay as they are.
    """
    from msgspec import to_builtins

    if libraries != "wheels":
        options.unused("without --libraries wheels", "pins")
    from torchsmith.package.finish.design import Options
    from torchsmith.package.finish.finish import finish_wheels, lines, pins_in

    made = finish_wheels(
        wheel,
        output,
        Options(
            libraries=libraries,
            strip=not no_strip,
            label=label,
            torch=torch,
            pins=pins_in(pins) if pins else {},
        ),
        dry_run=dry_run,
        say=tell,
    )
    if experimental and not dry_run:
        from torchsmith.package.variant import write_variant

        for item in made:
            tell(f"as a variant: {write_variant(Path(item.result))}")
    if json:
        print_json({"wheels": [to_builtins(item) for item in made]})
        return
    for item in made:
        print("\n".join(lines(item)))


def libtorch(
    wheel: Annotated[Path, Argument(help="A torch wheel.")],
    output: Annotated[
        Path, Option("--output", "-o", help="The folder to write the archive into.")
    ] = Path(),
    json: options.Json = False,
    dry_run: options.DryRun = False,
) -> None:
    """Make a libtorch archive, for C++ programs, of a torch wheel.

    It holds no Python, and may be unpacked anywhere. The same wheel gives the same bytes.
    """
    from msgspec import to_builtins

    from torchsmith.package.libtorch import pack_libtorch, read_contents, readme

    if dry_run:
        made = read_contents(wheel)
        target = output / made.archive
    else:
        made, target = pack_libtorch(wheel, output)
    if json:
        contents = to_builtins(made)
        print_json({"archive": str(target), "written": not dry_run, "contents": contents})
        return
    print(readme(made))
    print(f"would be {target}" if dry_run else target)


def conda(
    wheel: Annotated[list[Path] | None, Argument(help="Wheels to pack.")] = None,
    output: Annotated[
        Path, Option("--output", "-o", help="The channel's folder; packages go to SUBDIR/.")
    ] = Path(),
    archive: Annotated[
        Literal["conda", "tar.bz2", "both"],
        Option("--format", help="How they are written; old clients read tar.bz2 only."),
    ] = "conda",
    build_string: Annotated[str, Option(help="Default: cpu_py311_0, py3.11_cuda12.6_0.")] = "",
    number: Annotated[int, Option(help="Build number.", min=0)] = 0,
    python: Annotated[str, Option(help="For wheels that do not say it: 3.11.")] = "",
    prefix: Annotated[
        str, Option(help="Path of the environment that the files were built for.")
    ] = "",
    dry_run: options.DryRun = False,
    json: options.Json = False,
    explain: Annotated[
        Path | None, Option(help="A solver's error, in a file or '-': what it lacks.")
    ] = None,
    channel: Annotated[
        list[Path] | None, Option(help="With --explain: folder of a channel that the solver asked.")
    ] = None,
) -> None:
    """Pack wheels as conda packages; or say why a solver found none."""
    from dataclasses import asdict

    if explain is None:
        hint = "To write into a channel, name its folder: --output."
        options.unused("without --explain", "channel", hint=hint)
    else:
        packing = ("wheel", "output", "archive", "build_string", "number", "python", "prefix")
        options.unused("with --explain, which packs no wheel", *packing, "dry_run")
        _explain(explain, channel or [], json=json)
        return
    if not wheel:
        raise UsageError("there is nothing to pack", "Name a wheel: torchsmith conda WHEEL.")

    from torchsmith.package.conda.pack import pack
    from torchsmith.plan.conda import CondaSpec, archive_formats

    made = [
        pack(
            CondaSpec(
                output=str(output),
                formats=archive_formats(archive),
                wheel=str(path),
                build=build_string,
                number=number,
                python=python,
                prefix=prefix,
            ),
            write=not dry_run,
        )
        for path in wheel
    ]
    if json:
        packages = [
            {
                **asdict(item.described),
                "files": [str(file) for file in item.files],
                "written": not dry_run,
            }
            for item in made
        ]
        print_json({"packages": packages})
        return
    for item in made:
        for file in item.files:
            size = "" if dry_run else f": {file.stat().st_size / 1e6:,.1f} MB"
            print(f"{file}{size}")
        for kind, texts in (
            ("depends", item.described.depends),
            ("constrains", item.described.constrains),
        ):
            for text in texts:
                print(f"  {kind} {text}")


def _explain(source: Path, channels: list[Path], *, json: bool) -> None:
    from dataclasses import asdict

    from torchsmith.inputs import check_file
    from torchsmith.package.conda.explain import explain, read_channels

    if str(source) != "-":
        check_file(source, "Name a file, or - for standard input.")
    text = sys.stdin.read() if str(source) == "-" else source.read_text(errors="replace")
    found = explain(text, read_channels(channels))
    if json:
        print_json({"missing": [asdict(item) for item in found]})
        return
    for item in found:
        wanted = f", which {item.wanted_by} needs" if item.wanted_by else ""
        print(f"{item.spec}{wanted}: {item.meaning}\n  {item.cure}")
    if not found:
        print("it names no missing package")

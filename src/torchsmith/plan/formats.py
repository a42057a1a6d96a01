"""What torchvision must read by itself: looked at before it is built, after, and in use.

Its setup.py goes without a library it does not find, and says so in one line of a long log.
"""

from __future__ import annotations

import shlex

from torchsmith.plan.shell import in_work, sh, unless
from torchsmith.resolve.models import CompanionChoice, Resolution

# Sixty boxes against an implementation of three lines. One line: a Dockerfile takes no more.
VISION_CHECK = "; ".join(
    [
        "import functools, torch, torchvision",
        "torch.manual_seed(0)",
        "low = torch.rand(60, 2)",
        "boxes = torch.cat([low, low + torch.rand(60, 2)], 1)",
        "scores = torch.rand(60)",
        "area = lambda b: float((b[2] - b[0]) * (b[3] - b[1]))",
        "both = lambda a, b: float((torch.min(a[2:], b[2:]) - torch.max(a[:2], b[:2]))"
        ".clamp(min=0).prod())",
        "ratio = lambda a, b: both(a, b) / (area(a) + area(b) - both(a, b))",
        "order = scores.argsort(descending=True).tolist()",
        "want = functools.reduce(lambda kept, new: kept + [new] if all("
        "ratio(boxes[new], boxes[old]) <= .5 for old in kept) else kept, order, [])",
        "found = torchvision.ops.nms(boxes, scores, .5).tolist()",
        "assert found == want and 1 < len(want) < 60, (found, want)",
    ]
)

# PNG gives back every value; JPEG of a smooth picture is near it.
_READ = {
    "png": [
        "picture = torch.randint(0, 256, (3, 16, 16), dtype=torch.uint8)",
        "again = torchvision.io.decode_png(torchvision.io.encode_png(picture))",
        "assert torch.equal(again, picture), again",
    ],
    "jpeg": [
        "picture = (torch.arange(256).reshape(1, 16, 16) // 2 + 60).to(torch.uint8)"
        ".expand(3, 16, 16).contiguous()",
        "again = torchvision.io.decode_jpeg(torchvision.io.encode_jpeg(picture, 95))",
        "assert (again.int() - picture.int()).abs().max() <= 12, again",
    ],
}

_FIND = "; ".join(
    [
        "import glob, sys, zipfile",
        "wheel = zipfile.ZipFile(glob.glob(sys.argv[1])[0])",
        "names = [name for name in wheel.namelist() if name.startswith('torchvision/image')]",
        "code = b''.join(wheel.read(name) for name in names if name.endswith('.so'))",
        "asked = dict(text.split('=') for text in sys.argv[2:])",
        "lost = [name for name in asked if asked[name].encode() not in code]",
        "sys.exit('torchvision was built without ' + ' '.join(lost) if lost else 0)",
    ]
)


def include_folders(resolution: Resolution) -> tuple[str, ...]:
    """Folders the recipe tells torchvision to look for headers in."""
    given = dict(resolution.env).get("TORCHVISION_INCLUDE", "")
    return tuple(folder for folder in given.split(":") if folder)


def header_flags(header: str, folders: tuple[str, ...]) -> tuple[str, ...]:
    """What to tell a C compiler to find out whether a header can be used."""
    look = tuple(f"-I{folder}" for folder in folders)
    # jpeglib.h leaves stdio.h to whoever includes it.
    return (*look, "-fsyntax-only", "-x", "c", "-include", "stdio.h", "-include", header)


def formats_can_be_built(resolution: Resolution, companion: CompanionChoice) -> list[str]:
    """Commands that end a step where a library asked for is not there."""
    commands = []
    for item in companion.formats:
        complaint = f"{companion.package} is to read {item.name.upper()}, but {{}} is missing: "
        cure = f"install {item.apt}, or leave {item.name} out of companions.vision_formats"
        flags = sh(*header_flags(item.header, include_folders(resolution)))
        test = f'"${{CC:-cc}}" {flags} /dev/null 2>/dev/null'
        commands.append(unless(test, complaint.format(item.header) + cure))
        if item.program:
            test = f"command -v {shlex.quote(item.program)} >/dev/null"
            commands.append(unless(test, complaint.format(item.program) + cure))
    return commands


def formats_were_built(companion: CompanionChoice, wheel: str) -> list[str]:
    """A command that looks for each library's functions in the wheel just built."""
    if not companion.formats:
        return []
    asked = [f"{item.name}={item.symbol}" for item in companion.formats]
    # Quoted: it is Python that reads the pattern.
    folder, name = wheel.rsplit("/", 1)
    return [f"python -c {shlex.quote(_FIND)} {in_work(folder)}/{shlex.quote(name)} {sh(*asked)}"]


def formats_are_read(companion: CompanionChoice) -> list[str]:
    """Lines of Python that write a picture of each kind and read it again."""
    return [line for item in companion.formats for line in _READ[item.name]]

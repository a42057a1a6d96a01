"""What only works beside its matching torch: torchvision, torchaudio, torchtext, extensions."""

import base64
import importlib
import importlib.util
import io
import json
import os
from typing import Any

REFERENCE = os.path.join(os.path.dirname(os.path.abspath(__file__)), "reference.json")


class Absent(Exception):
    """This release, or this build of it, does not have what the check is about."""


def imported(name: str) -> str:
    """Import a module after torch, whose libraries an extension leaves to be found by it."""
    importlib.import_module("torch")
    module = importlib.import_module(name)
    return str(getattr(module, "__version__", ""))


def nms() -> None:
    """A compiled operator of torchvision: of two boxes that overlap the better one stays."""
    torch = importlib.import_module("torch")
    ops = importlib.import_module("torchvision.ops")
    boxes = torch.tensor([[0.0, 0.0, 10.0, 10.0], [1.0, 1.0, 10.0, 10.0], [20.0, 20.0, 30.0, 30.0]])
    kept = ops.nms(boxes, torch.tensor([0.8, 0.9, 0.7]), 0.5)
    assert kept.tolist() == [1, 2], kept


def roi_align() -> None:
    """A compiled operator of torchvision: a constant image has constant regions."""
    torch = importlib.import_module("torch")
    ops = importlib.import_module("torchvision.ops")
    image = torch.full((1, 1, 8, 8), 3.0)
    region = ops.roi_align(image, torch.tensor([[0.0, 1.0, 1.0, 6.0, 6.0]]), (2, 2))
    assert region.tolist() == [[[[3.0, 3.0], [3.0, 3.0]]]], region


def decode(kind: str) -> str:
    """A small square of one colour, read by torchvision's own library."""
    torch = importlib.import_module("torch")
    vision = importlib.import_module("torchvision.io")
    image = importlib.import_module("torchvision.io.image")
    function = getattr(vision, "decode_image", None) or getattr(image, "decode_" + kind, None)
    if function is None:
        raise Absent("this torchvision reads images through Pillow only")
    with io.open(REFERENCE, encoding="utf-8") as file:
        case = json.load(file)[kind]
    data = torch.tensor(list(bytearray(base64.b64decode(case["file"]))), dtype=torch.uint8)
    try:
        pixels = function(data)
    except RuntimeError as error:
        if "not compiled with" in str(error).lower():
            raise Absent(str(error).split("\n")[0])
        raise
    assert tuple(pixels.shape) == (3, 8, 8), pixels.shape
    found = [int(channel[4][4]) for channel in pixels]
    # JPEG's colours are not exact, and one decoder rounds differently from the next.
    assert all(abs(a - b) <= 2 for a, b in zip(found, case["want"])), found
    return "%d %d %d" % tuple(found)


def audio_filter() -> None:
    """An operator of torchaudio, compiled in the releases that compile any."""
    torch = importlib.import_module("torch")
    functional = importlib.import_module("torchaudio.functional")
    wave = torch.tensor([[1.0, 0.0, 0.0, 0.0]])
    found = functional.lfilter(wave, torch.tensor([1.0, -0.5]), torch.tensor([1.0, 0.0]))
    wanted = [1.0, 0.5, 0.25, 0.125]
    assert all(abs(a - b) < 1e-6 for a, b in zip(found[0].tolist(), wanted)), found


def tokens() -> None:
    """torchtext cuts a sentence into words."""
    module = importlib.import_module("torchtext.data.utils")
    found = module.get_tokenizer("basic_english")("You can't, really.")
    assert found[0] == "you", found
    assert found[-1] == ".", found


def line(text: str) -> None:
    """Run a line of Python that the recipe or the plan gives, in a namespace of its own."""
    exec(compile(text, "the check", "exec"), {"__name__": "__main__"})


def checks(request: "dict[str, Any]") -> "list[tuple[str, str, Any]]":
    """What is installed beside torch; `imports` names further modules to try."""
    listed = []  # type: list[tuple[str, str, Any]]
    family = {  # type: dict[str, list[tuple[str, Any]]]
        "torchvision": [
            ("nms", nms),
            ("roi_align", roi_align),
            ("decode png", lambda: decode("png")),
            ("decode jpeg", lambda: decode("jpeg")),
        ],
        "torchaudio": [("lfilter", audio_filter)],
        "torchtext": [("tokenize", tokens)],
    }
    others = request.get("imports", [])  # type: list[str]
    for name in sorted(family):
        if importlib.util.find_spec(name) is None and name not in others:
            continue
        listed.append((name, "import " + name, lambda name=name: imported(name)))
        listed += [(name, title, function) for title, function in family[name]]
    for name in others:
        if name not in family:
            listed.append(("extensions", "import " + name, lambda name=name: imported(name)))
    check = request.get("check", "")  # type: str
    if check:
        listed.append(("extensions", "its own check", lambda: line(check)))
    return listed

"""Reading `gpus`: names, compute capabilities, arch lists, or `native`."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Annotated, Any

from pydantic import BeforeValidator, Field, WithJsonSchema

from torchsmith.recipe.toml import shortened

_ARCH = re.compile(r"(?:(?:sm|compute)_)?(\d{1,2})\.?(\d)([af])?", re.IGNORECASE | re.ASCII)
_DOTTED = re.compile(r"\d{1,2}\.\d[af]?(?:\+ptx)?", re.IGNORECASE | re.ASCII)
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9 ().+/_-]{0,63}")
WORDS = ("native", "published")


@dataclass(frozen=True, slots=True)
class GpuWish:
    """One GPU asked for: exactly one of `word`, `arch` and `name` is set."""

    text: str
    word: str = ""
    arch: str = ""
    name: str = ""
    ptx: bool = False


def gpu_wish(text: str) -> GpuWish:
    """Read one element of an arch list; `ValueError` if it cannot be one."""
    body, ptx = text, False
    if not text.isascii():
        raise ValueError("is neither a GPU name nor a compute capability such as 8.6")
    if text.upper().endswith("+PTX"):
        body, ptx = text[:-4].rstrip(), True
    if body.lower() in WORDS:
        return GpuWish(text, word=body.lower(), ptx=ptx)
    match = _ARCH.fullmatch(body)
    # A bare "86" or "90a" is how CMake writes it, but "3090" or "1080" are GPUs.
    if match and ("." in body or "_" in body or len(body) <= 3):
        arch = f"{match[1]}.{match[2]}{(match[3] or '').lower()}"
        return GpuWish(text, arch=arch, ptx=ptx)
    if not _NAME.fullmatch(body):
        raise ValueError("is neither a GPU name nor a compute capability such as 8.6")
    return GpuWish(text, name=body, ptx=ptx)


def split_arch_list(text: str) -> list[str]:
    """Split ``7.5; 8.6+PTX``; spaces separate too when every part is a compute capability."""
    parts = [part.strip() for part in re.split(r"[;,]", text)]
    split: list[str] = []
    for part in parts:
        words = part.split()
        if len(words) > 1 and all(_DOTTED.fullmatch(word) for word in words):
            split.extend(words)
        elif part:
            split.append(part)
    return split


def _read(value: Any) -> Any:
    items = value if isinstance(value, list) else [value]
    split: list[str] = []
    for item in items:
        if not isinstance(item, str | float):
            raise ValueError(f'{shortened(item)} is not a GPU: write it as text, such as "8.6"')
        if not str(item).isprintable():
            raise ValueError(f"{shortened(item)} holds control characters")
        split.extend(split_arch_list(str(item)))
    for text in split:
        try:
            gpu_wish(text)
        except ValueError as error:
            raise ValueError(f"{shortened(text)} {error}") from None
    if not split:
        raise ValueError("the list of GPUs is empty; leave the key out for the published list")
    return split


Gpus = Annotated[
    list[str],
    BeforeValidator(_read),
    Field(max_length=64, description="GPU names, compute capabilities, or 'native'."),
    WithJsonSchema(
        {
            "anyOf": [
                {"type": "string", "examples": ["RTX 3090", "7.5;8.6+PTX", "native"]},
                {"type": "array", "items": {"type": "string"}, "minItems": 1},
            ]
        }
    ),
]

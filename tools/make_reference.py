"""Write the results torch is held against: computed here in plain Python, without any torch.

Everything is exact by construction (a matrix is put together from its known factors) or a
direct evaluation of the textbook formula in double precision.
"""

from __future__ import annotations

import base64
import json
import math
import random
import struct
import sys
import zlib
from pathlib import Path

TARGET = Path(__file__).parents[1] / "src/torchsmith/verify/probe/reference.json"
Matrix = list[list[float]]
# An 8x8 square of one colour; PNG is written below, JPEG needs an encoder and so is kept.
COLOUR = (200, 40, 90)
JPEG = (
    "/9j/4AAQSkZJRgABAQAAAQABAAD/2wBDAAMCAgMCAgMDAwMEAwMEBQgFBQQEBQoHBwYIDAoMDAsKCwsNDhIQDQ4RDgsL"
    "EBYQERMUFRUVDA8XGBYUGBIUFRT/2wBDAQMEBAUEBQkFBQkUDQsNFBQUFBQUFBQUFBQUFBQUFBQUFBQUFBQUFBQUFBQU"
    "FBQUFBQUFBQUFBQUFBQUFBQUFBT/wAARCAAIAAgDAREAAhEBAxEB/8QAFAABAAAAAAAAAAAAAAAAAAAAB//EABQQAQAA"
    "AAAAAAAAAAAAAAAAAAD/xAAVAQEBAAAAAAAAAAAAAAAAAAADCP/EABQRAQAAAAAAAAAAAAAAAAAAAAD/2gAMAwEAAhED"
    "EQA/ACQSy3//2Q=="
)


def filled(rows: int, columns: int, start: int) -> Matrix:
    """Numbers without a pattern a broken kernel could hit by chance."""
    return [
        [round(math.sin(start + 1.7 * (row * columns + column)), 6) for column in range(columns)]
        for row in range(rows)
    ]


def product(left: Matrix, right: Matrix) -> Matrix:
    """Return the matrix product."""
    columns = list(zip(*right, strict=True))
    return [
        [math.fsum(a * b for a, b in zip(row, c, strict=True)) for c in columns] for row in left
    ]


def transposed(matrix: Matrix) -> Matrix:
    """Return the transpose."""
    return [list(row) for row in zip(*matrix, strict=True)]


def rotation(size: int, start: float) -> Matrix:
    """Return an orthogonal matrix: a product of plane rotations."""
    result = [[float(i == j) for j in range(size)] for i in range(size)]
    for i in range(size - 1):
        turn = [[float(a == b) for b in range(size)] for a in range(size)]
        cos, sin = math.cos(start + i), math.sin(start + i)
        turn[i][i] = turn[i + 1][i + 1] = cos
        turn[i][i + 1], turn[i + 1][i] = -sin, sin
        result = product(result, turn)
    return result


def diagonal(values: list[float]) -> Matrix:
    """Return a diagonal matrix."""
    return [[v if i == j else 0.0 for j in range(len(values))] for i, v in enumerate(values)]


def convolution(
    image: list[Matrix], kernels: list[list[Matrix]], bias: list[float]
) -> list[Matrix]:
    """Correlate with padding 1 and stride 2, as torch's conv2d does."""
    height, width = len(image[0]), len(image[0][0])

    def at(channel: int, row: int, column: int) -> float:
        inside = 0 <= row < height and 0 <= column < width
        return image[channel][row][column] if inside else 0.0

    return [
        [
            [
                offset
                + math.fsum(
                    at(c, row + i - 1, column + j - 1) * kernel[c][i][j]
                    for c in range(len(image))
                    for i in range(3)
                    for j in range(3)
                )
                for column in range(0, width, 2)
            ]
            for row in range(0, height, 2)
        ]
        for kernel, offset in zip(kernels, bias, strict=True)
    ]


def normalised(row: list[float]) -> list[float]:
    """Layer normalisation with eps 1e-5."""
    mean = math.fsum(row) / len(row)
    variance = math.fsum((x - mean) ** 2 for x in row) / len(row)
    return [(x - mean) / math.sqrt(variance + 1e-5) for x in row]


def softmax(row: list[float]) -> list[float]:
    """Exponentials that sum to one."""
    powers = [math.exp(x) for x in row]
    return [x / math.fsum(powers) for x in powers]


def transformed(row: list[float]) -> list[list[float]]:
    """Return the discrete Fourier transform, as pairs of real and imaginary part."""
    size = len(row)
    return [
        [
            math.fsum(x * math.cos(2 * math.pi * k * n / size) for n, x in enumerate(row)),
            -math.fsum(x * math.sin(2 * math.pi * k * n / size) for n, x in enumerate(row)),
        ]
        for k in range(size)
    ]


def uniform_stream(seed: int, count: int) -> list[float]:
    """What torch.rand gives on a CPU: 24 bits of every word of mt19937."""
    state = [seed]
    for index in range(1, 624):
        last = state[-1]
        state.append((1812433253 * (last ^ (last >> 30)) + index) & 0xFFFFFFFF)
    # Python has the same generator, and only starts it differently.
    generator = random.Random()
    generator.setstate((3, (*state, 624), None))
    return [(generator.getrandbits(32) & 0xFFFFFF) / 0x1000000 for _ in range(count)]


def png() -> str:
    """Return a PNG file with nothing but what the format asks for."""

    def chunk(kind: bytes, data: bytes) -> bytes:
        return (
            struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))
        )

    rows = (b"\0" + bytes(COLOUR) * 8) * 8
    content = (
        b"\x89PNG\r\n\x1a\n"
        + chunk(b"IHDR", struct.pack(">IIBBBBB", 8, 8, 8, 2, 0, 0, 0))
        # Stored, not compressed: zlib's releases do not all write the same bytes.
        + chunk(b"IDAT", zlib.compress(rows, 0))
        + chunk(b"IEND", b"")
    )
    return base64.b64encode(content).decode()


def reference() -> dict[str, object]:
    """Every input with the result it must give."""
    a, b = filled(5, 7, 1), filled(7, 4, 2)
    image = [filled(6, 6, 3), filled(6, 6, 4)]
    kernels = [[filled(3, 3, 5 + 2 * n), filled(3, 3, 6 + 2 * n)] for n in range(3)]
    bias = [0.5, -0.25, 0.125]
    rows = filled(3, 8, 11)
    singular, eigen = [4.0, 2.5, 1.0, 0.5], [-2.0, -0.5, 1.0, 3.0]
    left, right = rotation(4, 0.3), rotation(4, 1.1)
    square = product(product(left, diagonal(singular)), right)
    answer = filled(4, 2, 12)
    return {
        "matmul": {"a": a, "b": b, "want": product(a, b)},
        "conv2d": {
            "x": [image],
            "weight": kernels,
            "bias": bias,
            "want": [convolution(image, kernels, bias)],
        },
        "layer_norm": {"x": rows, "want": [normalised(row) for row in rows]},
        "softmax": {"x": rows, "want": [softmax(row) for row in rows]},
        "svd": {"a": square, "want": singular},
        "solve": {"a": square, "b": product(square, answer), "want": answer},
        "eigh": {
            "a": product(product(left, diagonal(eigen)), transposed(left)),
            "want": eigen,
        },
        "fft": {"x": rows[0], "want": transformed(rows[0])},
        "rng": {"seed": 20, "want": uniform_stream(20, 6)},
        "png": {"file": png(), "want": COLOUR},
        "jpeg": {"file": JPEG, "want": COLOUR},
    }


def text() -> str:
    """Return the file's content; rounding makes it the same under every libm."""

    def rounded(value: object) -> object:
        if isinstance(value, float):
            return round(value, 12) + 0.0
        if isinstance(value, dict):
            return {name: rounded(item) for name, item in value.items()}
        if isinstance(value, list | tuple):
            return [rounded(item) for item in value]
        return value

    tests = rounded(reference())
    assert isinstance(tests, dict)
    lines = [f"{json.dumps(name)}: {json.dumps(test)}" for name, test in tests.items()]
    return "{\n" + ",\n".join(lines) + "\n}\n"


if __name__ == "__main__":
    TARGET.write_text(text(), encoding="utf-8")
    sys.stdout.write(f"written: {TARGET}\n")

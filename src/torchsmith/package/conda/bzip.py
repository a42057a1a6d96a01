"""bzip2 on every core, as one stream.

Python's own runs on one core. What pbzip2 does, a stream for each piece, not every conda client
reads. A stream is its blocks one after the other, bit by bit, and the sum of their checksums:
pieces that are one block each are compressed side by side and put together here.
https://github.com/dsnet/compress/blob/master/doc/bzip2-format.pdf
"""

from __future__ import annotations

import bz2
from collections import deque
from concurrent.futures import Future, ThreadPoolExecutor
from typing import IO

_LEVEL = 9
_HEADER = f"BZh{_LEVEL}".encode()
_END = 0x177245385090
_END_BITS, _SUM_BITS = 48, 32
_SUM_MASK = (1 << _SUM_BITS) - 1
# A block holds 900,000 - 19 bytes after runs were counted, which makes 5 bytes of every 4 at worst.
PIECE = (900_000 - 19) * 4 // 5 - 1


class Bzip2Writer:
    """A file to write to; what arrives is the same for any number of threads."""

    def __init__(self, file: IO[bytes], threads: int) -> None:
        self._file = file
        self._pool = ThreadPoolExecutor(max(1, threads))
        self._ahead = 2 * max(1, threads)
        self._running: deque[Future[bytes]] = deque()
        self._piece = bytearray()
        self._sum = 0
        # Bits that do not fill a byte yet.
        self._rest, self._rest_bits = 0, 0
        file.write(_HEADER)

    def write(self, data: bytes | bytearray | memoryview) -> int:
        """Take more to compress."""
        self._piece += data
        while len(self._piece) >= PIECE:
            self._start(bytes(self._piece[:PIECE]))
            del self._piece[:PIECE]
        return len(data)

    def _start(self, piece: bytes) -> None:
        self._running.append(self._pool.submit(bz2.compress, piece, _LEVEL))
        if len(self._running) > self._ahead:
            self._take()

    def _take(self) -> None:
        block, bits, checksum = _block(self._running.popleft().result())
        self._sum = (self._sum << 1 | self._sum >> _SUM_BITS - 1) & _SUM_MASK ^ checksum
        self._bits(block, bits)

    def _bits(self, value: int, bits: int) -> None:
        value |= self._rest << bits
        bits += self._rest_bits
        self._rest_bits = bits % 8
        self._rest = value & (1 << self._rest_bits) - 1
        self._file.write((value >> self._rest_bits).to_bytes(bits // 8, "big"))

    def close(self) -> None:
        """Write what is left and the end."""
        try:
            if self._piece:
                self._start(bytes(self._piece))
            while self._running:
                self._take()
            self._bits(_END << _SUM_BITS | self._sum, _END_BITS + _SUM_BITS)
            if self._rest_bits:
                self._file.write(bytes([self._rest << 8 - self._rest_bits]))
        finally:
            self.stop()

    def stop(self) -> None:
        """End its threads."""
        self._pool.shutdown(cancel_futures=True)


def _block(stream: bytes) -> tuple[int, int, int]:
    """The one block of a stream: its bits, how many, and its checksum."""
    value = int.from_bytes(stream[len(_HEADER) :], "big")
    bits = 8 * (len(stream) - len(_HEADER))
    tail = _END_BITS + _SUM_BITS
    last = int.from_bytes(stream[-12:], "big")
    for padding in range(8):
        if (last >> padding + _SUM_BITS) & (1 << _END_BITS) - 1 == _END:
            checksum = (last >> padding) & _SUM_MASK
            return value >> padding + tail, bits - padding - tail, checksum
    raise AssertionError("a bzip2 stream without an end")

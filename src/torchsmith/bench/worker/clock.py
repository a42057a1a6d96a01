"""Timing a call: how many of them make a block, and what a block takes."""

import gc
import itertools
import time
from typing import Any

# A call this slow is a block of its own, and one block is enough.
SLOW = 0.1


def wall(call: Any, calls: int) -> float:
    """Return the seconds a call takes, measured over so many."""
    clock = time.perf_counter
    began = clock()
    for _ in itertools.repeat(None, calls):
        call()
    return (clock() - began) / calls


def on_gpu(t: Any, call: Any, calls: int) -> float:
    """Return the seconds a call takes on the GPU's own clock, waits for launches included."""
    first, last = t.cuda.Event(enable_timing=True), t.cuda.Event(enable_timing=True)
    t.cuda.synchronize()
    first.record()
    for _ in itertools.repeat(None, calls):
        call()
    last.record()
    t.cuda.synchronize()
    return float(first.elapsed_time(last)) / 1000.0 / calls


def once(t: Any, device: str, call: Any, calls: int) -> float:
    """Time so many calls on the clock of the device."""
    return on_gpu(t, call, calls) if device == "cuda" else wall(call, calls)


def tune(t: Any, device: str, call: Any, block: float, warm: float) -> "tuple[int, float]":
    """Warm up for so many seconds, then say how many calls last a block, and what one takes."""
    seconds = once(t, device, call, 1)
    calls, spent = 1, seconds
    if seconds < SLOW:
        # Doubled until a block lasts: the first calls are of no use for an estimate.
        while spent < warm or calls * seconds < block:
            if calls * seconds < block:
                calls = min(calls * 2, 1 << 20)
            seconds = once(t, device, call, calls)
            spent += max(calls * seconds, 1e-6)
            if calls >= 1 << 20:
                break
    return max(1, round(block / max(seconds, 1e-9))), seconds


def measure(t: Any, device: str, call: Any, calls: int, blocks: int) -> "list[float]":
    """Return the seconds of a call in each block, after one that brings the caches back."""
    if calls > 1:
        once(t, device, call, max(1, calls // 4))
    gc.disable()
    try:
        return [once(t, device, call, calls) for _ in range(blocks)]
    finally:
        gc.enable()

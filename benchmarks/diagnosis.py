"""How well failures are named: excerpts of real logs that no pattern was written from.

    python benchmarks/diagnosis.py [--quick]

Right, wrong and not known, of ``tests/data/held_out_logs.toml``, now and on the day each set was
collected, which is what counts: what was missed is mended afterwards. Then how much time logs of
100 MB take of a processor. A wrong name is worse than none: this ends with 1 if there is one.
"""

from __future__ import annotations

import io
import itertools
import sys
import time
import tomllib
from collections import Counter
from pathlib import Path

from torchsmith.diagnose.diagnose import diagnose, explained
from torchsmith.diagnose.knowledge import shipped
from torchsmith.diagnose.scan import scan_file

LOGS = Path(__file__).parents[1] / "tests" / "data" / "held_out_logs.toml"
SIZE = 100_000_000


def verdict(expects: str, named: str) -> str:
    """Right, wrong, or not known though it could have been."""
    if named == expects:
        return "right"
    return "not known" if named == "unknown" else "wrong"


def long_log(size: int, *, repeating: bool) -> bytes:
    """Lines of a build, and a failure at their end."""
    line = (
        "[{0}/6931] /usr/bin/c++ -DAT_PER_OPERATOR_HEADERS -Werror=return-type -O3 -DNDEBUG -fPIC "
        "-std=gnu++17 -o caffe2/CMakeFiles/torch_cpu.dir/{1}.cpp.o -c /src/pytorch/{1}.cpp\n"
    )
    names = itertools.product("abcdefghijklmnopqrstuvwxyz", repeat=5)
    parts: list[bytes] = []
    while size > 0:
        name = "kernel" if repeating else "".join(next(names))
        parts.append(line.format(len(parts), name).encode())
        size -= len(parts[-1])
    return b"".join([*parts, b"c++: fatal error: Killed signal terminated program cc1plus\n"])


def main() -> None:
    """Print the table, and what was named wrongly."""
    logs = tomllib.loads(LOGS.read_text(encoding="utf-8"))["log"]
    counts: Counter[str] = Counter()
    first: dict[str, Counter[str]] = {}
    for log in logs:
        found = diagnose(log["text"].splitlines()).named
        named = found[0].id if found else "unknown"
        result = verdict(log["expects"], named)
        counts[result] += 1
        if "set" in log:
            told = "nothing to name" if log["expects"] == "unknown" else "named right"
            first.setdefault(log["set"], Counter())[log.get("first", told).split(":")[0]] += 1
        if result != "right":
            print(f"{result}: {named} for {log['expects']}  {log['url']}")
    print(
        f"{len(logs)} logs: "
        + ", ".join(f"{counts[word]} {word}" for word in ("right", "wrong", "not known"))
    )
    for day, verdicts in first.items():
        print(f"of {day}, that day: " + ", ".join(f"{n} {word}" for word, n in verdicts.items()))
    for repeating in () if "--quick" in sys.argv else (True, False):
        content = long_log(SIZE, repeating=repeating)
        begin = time.process_time()
        seen = scan_file(io.BytesIO(content), shipped())
        taken = time.process_time() - begin
        assert explained(seen).named[0].id == "compiler-killed"
        kind = "repeat" if repeating else "all differ"
        print(
            f"{SIZE / 1e6:.0f} MB whose lines {kind}: {taken:.1f} s, {SIZE / taken / 1e6:.0f} MB/s"
        )
    if counts["wrong"]:
        raise SystemExit(1)


if __name__ == "__main__":
    main()

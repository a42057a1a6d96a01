"""How well failures are named: excerpts of real logs that no pattern was written from.

    python benchmarks/diagnosis.py [--quick]
    python benchmarks/diagnosis.py --overlaps

Right, wrong and not known, of ``tests/data/held_out_logs.toml``, now and on the day each set was
collected, which is what counts: what was missed is mended afterwards. Then how much time logs of
100 MB take of a processor. A wrong name is worse than none: this ends with 1 if there is one.

``--overlaps`` shows which entries claim lines of another entry's excerpt or of these logs without
being named as its consequence, and which change their name between other programs' warnings.
"""

from __future__ import annotations

import io
import itertools
import sys
import time
import tomllib
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

from torchsmith.diagnose.diagnose import diagnose, explained
from torchsmith.diagnose.knowledge import shipped
from torchsmith.diagnose.scan import scan_file

LOGS = Path(__file__).parents[1] / "tests" / "data" / "held_out_logs.toml"
SIZE = 100_000_000
# What stands around a failure in most logs, and is none.
NOISE = """\
-- Could NOT find CUDA (missing: CUDA_TOOLKIT_ROOT_DIR CUDA_NVCC_EXECUTABLE CUDA_INCLUDE_DIRS)
-- Performing Test C_HAS_AVX_1 - Failed
src.cxx:1:10: fatal error: glog/stl_logging.h: No such file or directory
CMake Warning at cmake/Dependencies.cmake:95 (message):
  Not compiling with XPU.  Could NOT find SYCL.Suppress this warning with
DEPRECATION: Building 'lab' using the legacy setup.py bdist_wheel mechanism
UserWarning: pkg_resources is deprecated as an API.
UserWarning: Failed to initialize NumPy: No module named 'numpy'
FutureWarning: `torch.cuda.amp.autocast(args...)` is deprecated.
WARNING: Running pip as the 'root' user can result in broken permissions
No CUDA runtime is found, using CUDA_HOME='/usr/local/cuda'
[W socket.cpp:464] [c10d] The server socket cannot be initialized on [::]:29500
host:1:1 [0] NCCL INFO NET/Plugin: Could not find: libnccl-net.so: cannot open shared object file
""".splitlines()
ENDING = """\
ninja: build stopped: subcommand failed.
subprocess.CalledProcessError: Command '['ninja', '-v']' returned non-zero exit status 1.
RuntimeError: Error compiling objects for extension
ERROR: Failed building wheel for lab
torch.distributed.elastic.multiprocessing.errors.ChildFailedError:
""".splitlines()


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


def overlaps(logs: Sequence[tuple[str, str]]) -> list[str]:
    """Where more than the first name stands for itself, or where noise changes the first name."""
    found: list[str] = []
    for expects, text in logs:
        lines = text.splitlines()
        named = [item for item in diagnose(lines).named if not item.after]
        found += [
            f"{expects}: {item.id} ({item.standing}) claims it, too: {item.lines[0].text[:90]}"
            for item in named
            if item.id != expects
        ]
        between = diagnose([*NOISE, *lines, *ENDING]).named
        if [item.id for item in between[:1]] != [item.id for item in named[:1]]:
            found.append(f"{expects}: {between[0].id if between else 'nothing'} with noise around")
    return found


def main() -> None:
    """Print the table, and what was named wrongly."""
    logs = tomllib.loads(LOGS.read_text(encoding="utf-8"))["log"]
    if "--overlaps" in sys.argv:
        excerpts = [(item.id, item.excerpt) for item in shipped().failures.values()]
        print("\n".join(overlaps(excerpts + [(log["expects"], log["text"]) for log in logs])))
        return
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
        seen = scan_file(io.BytesIO(content))
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

"""auditwheel's own analysis of a finished wheel: the last gate before it gets its name.

It changes the current folder while it works, and reads every symbol of every library: it is run
in a process of its own, as `python -m torchsmith.package.finish.audit WHEEL [LIBRARY...]`.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Collection
from functools import cache
from pathlib import Path

import msgspec

from torchsmith.errors import OutputError
from torchsmith.foreign import decode
from torchsmith.package.finish.manylinux import Tag

_LIMIT = 3600
_KINDS = {
    "sym_policy": "the symbol versions it needs",
    "ref_policy": "libraries outside of it",
    "blacklist_policy": "symbols that are not for others to use",
    "machine_policy": "the instructions it needs",
}


class Verdict(msgspec.Struct, frozen=True):
    """The tag auditwheel grants, whether that is as good as the wheel's own, and what is in the
    way if not.
    """

    tag: str
    holds: bool
    because: tuple[str, ...] = ()


def audit(wheel: Path, tag: Tag, theirs: Collection[str]) -> None:
    """Refuse a wheel whose tag auditwheel does not find true; `theirs` come from elsewhere."""
    words = [sys.executable, "-P", "-m", __name__, str(wheel.absolute()), *sorted(theirs)]
    try:
        done = subprocess.run(
            words,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            check=False,
            timeout=_LIMIT,
            # What it unpacks goes with the wheel's own folder, however it ends.
            env={**os.environ, "TMPDIR": str(wheel.parent.absolute())},
        )
        found = decode(done.stdout, Verdict)
    except subprocess.TimeoutExpired:
        raise OutputError(
            f"auditwheel did not end in {_LIMIT} s with {wheel.name}", "Nothing was written."
        ) from None
    except msgspec.MsgspecError:
        said = done.stderr.decode("utf-8", "replace").strip().rpartition("\n")[2]
        raise OutputError(
            f"auditwheel cannot read {wheel.name}: {said or 'it gives no reason'}",
            "Nothing was written.",
        ) from None
    if not found.holds:
        why = f", because of {' and '.join(found.because)}" if found.because else ""
        raise OutputError(
            f"{wheel.name}: auditwheel grants no more than {found.tag}{why}; {tag} was found",
            "Nothing was written. With --libraries system the wheel promises nothing.",
        )


def verdict(wheel: Path, theirs: frozenset[str]) -> Verdict:
    """Have auditwheel look at a wheel, by the platforms in its name."""
    from auditwheel import elfutils
    from auditwheel.wheel_abi import analyze_wheel_abi
    from auditwheel.wheeltools import get_wheel_architecture, get_wheel_libc, get_wheel_platforms

    if read := getattr(elfutils, "get_undefined_symbols", None):
        # It reads all symbols of a library again for each of four policies, which is half of the
        # time; this process is ours alone, and the files do not change.
        elfutils.get_undefined_symbols = cache(read)
    name = wheel.name
    found = analyze_wheel_abi(
        get_wheel_libc(name),
        get_wheel_architecture(name),
        wheel,
        theirs,
        disable_isa_ext_check=False,
        allow_graft=False,
    )
    promised = min(map(found.policies.get_policy_by_name, get_wheel_platforms(name)))
    short = tuple(text for kind, text in _KINDS.items() if getattr(found, kind) < promised)
    return Verdict(found.overall_policy.name, not found.overall_policy < promised, short)


if __name__ == "__main__":
    made = verdict(Path(sys.argv[1]), frozenset(sys.argv[2:]))
    sys.stdout.buffer.write(msgspec.json.encode(made))

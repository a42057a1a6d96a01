"""manylinux, by auditwheel: the lowest tag that is true, and its verdict on a finished wheel.

The policies are data that PEP 600 leaves to auditwheel: for each tag, the symbol versions and the
libraries every such Linux has. auditwheel changes the current folder while it works, and reads
every symbol of every library: it runs in a process of its own, as
`python -m torchsmith.package.finish.audit WHEEL [LIBRARY...]`."""

from __future__ import annotations

import os
import sys
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from torchsmith.errors import OutputError, TookTooLongError, UsageError
from torchsmith.foreign import decode
from torchsmith.programs import call
from torchsmith.verify.binary import Library, version_key

if TYPE_CHECKING:
    from auditwheel.policy import Policy, WheelPolicies


@dataclass(frozen=True, slots=True)
class Tag:
    """The platforms a wheel may name, and what keeps it from an older one."""

    platforms: tuple[str, ...]
    reason: str

    @property
    def promises(self) -> bool:
        """Whether it is a manylinux tag: linux_x86_64 promises nothing."""
        return any(name.startswith("manylinux") for name in self.platforms)

    def __str__(self) -> str:
        return ".".join(self.platforms)


class Policies:
    """The policies for one machine, oldest Linux first."""

    def __init__(self, machine: str) -> None:
        from auditwheel.architecture import Architecture
        from auditwheel.libc import Libc
        from auditwheel.policy import WheelPolicies

        try:
            architecture = Architecture(machine)
        except ValueError:
            raise UsageError(
                f"there is no manylinux policy for {machine}",
                "Such a wheel cannot be finished: leave it as it is.",
            ) from None
        self.machine = machine
        self._all: WheelPolicies = WheelPolicies(libc=Libc.GLIBC, arch=architecture)
        self._oldest_first: list[Policy] = sorted(
            (item for item in self._all if item != self._all.linux), reverse=True
        )

    def everywhere(self, library: str) -> bool:
        """Whether a library is on every Linux some policy speaks of, or is the loader."""
        return _loader(library) or any(library in item.whitelist for item in self._oldest_first)

    def tag(self, libraries: Sequence[Library], missing: Iterable[str]) -> Tag:
        """The lowest tag that is true; `missing` are needed and brought by nobody."""
        linux = f"linux_{self.machine}"
        if lost := sorted(missing):
            more = f" and {len(lost) - 1} more" if len(lost) > 1 else ""
            return Tag((linux,), f"{lost[0]}{more} must be on the machine")
        reason = "nothing it needs is newer"
        for policy in self._oldest_first:
            why = self._against(policy, libraries)
            if not why:
                return Tag(tuple(sorted((policy.name, *policy.aliases))), reason)
            reason = why
        return Tag((linux,), reason)

    def _against(self, policy: Policy, libraries: Sequence[Library]) -> str:
        """What a library needs that this policy does not have; of several, the newest."""
        found: list[tuple[tuple[int, ...], str]] = []
        for library in libraries:
            for name in library.required:
                family, _, version = name.partition("_")
                known = policy.symbol_versions.get(family)
                if known is not None and version not in known:
                    found.append((version_key(version), f"{name}, for {library.path}"))
            found += [
                ((), f"{name}, for {library.path}")
                for name in library.needed
                if self.everywhere(name) and name not in policy.whitelist and not _loader(name)
            ]
        return max(found, default=((), ""))[1]


def _loader(library: str) -> bool:
    return library.startswith(("ld-linux", "ld64.so"))


_LIMIT = 3600
_KINDS = {
    "sym_policy": "the symbol versions it needs",
    "ref_policy": "libraries outside of it",
    "blacklist_policy": "symbols that are not for others to use",
    "machine_policy": "the instructions it needs",
}


class Verdict(msgspec.Struct, frozen=True):
    """The tag auditwheel grants, whether the wheel's own holds, and what is against it if not."""

    tag: str
    holds: bool
    because: tuple[str, ...] = ()


def audit(wheel: Path, tag: Tag, theirs: Collection[str]) -> None:
    """Refuse a wheel whose tag auditwheel does not find true; `theirs` come from elsewhere."""
    words = [sys.executable, "-P", "-m", __name__, str(wheel.absolute()), *sorted(theirs)]
    # What it unpacks goes with the wheel's own folder, however it ends.
    env = {**os.environ, "TMPDIR": str(wheel.parent.absolute())}
    try:
        answer = call(words, env=env, timeout=_LIMIT)
        found = decode(answer.out.encode(), Verdict)
    except TookTooLongError:
        raise OutputError(
            f"auditwheel did not end in {_LIMIT} s with {wheel.name}", "Nothing was written."
        ) from None
    except msgspec.MsgspecError:
        raise OutputError(
            f"auditwheel cannot read {wheel.name}: {answer.last or 'it gives no reason'}",
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

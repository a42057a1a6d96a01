"""manylinux: the lowest tag that is true, by auditwheel's policies.

They are data that PEP 600 leaves to auditwheel: for each tag, the symbol versions and the
libraries every such Linux has.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from torchsmith.errors import UsageError
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

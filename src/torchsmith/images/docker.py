"""docker: a client of a daemon. The Dockerfiles torchsmith writes need its BuildKit."""

from __future__ import annotations

import os
import re
from collections.abc import Sequence

from torchsmith.images.engine import Build, Engine
from torchsmith.images.errors import EngineError, NoEngineError
from torchsmith.images.process import OnLine, Said, follow, interrupt

# What a client says that has no builder but the old one, which knows no cache mounts.
_NO_BUILDKIT = re.compile(
    r"BuildKit is enabled but the buildx component is missing|the --mount option requires BuildKit"
)
_DIGEST = re.compile(r"digest: (sha256:[0-9a-f]{64})")


class Docker(Engine):
    """docker, whose daemon has to be running."""

    name = "docker"
    # Its builds are the daemon's, which is told by the client.
    ending = staticmethod(interrupt)

    def build_options(self, wanted: Build) -> list[str]:
        """The options of `build`; plain progress, because lines are read, not redrawn."""
        return [*super().build_options(wanted), "--progress", "plain"]

    def _build(self, words: Sequence[str], on_line: OnLine) -> Said:
        # Clients of before 23.0 use BuildKit only if told to.
        given = os.environ if self.environ is None else self.environ
        environ = {**given, "DOCKER_BUILDKIT": "1"}
        said = follow(self.command(*words), on_line, self.ending, environ)
        if said.code != 0 and _NO_BUILDKIT.search(said.out):
            raise NoEngineError(
                "this docker has no BuildKit, which cache and secret mounts need",
                "Install its buildx plugin (docker-buildx, docker-buildx-plugin), or use podman.",
            )
        return said

    def trust_words(self, insecure: bool) -> list[str]:
        """Nothing: its daemon trusts this machine's registries, and those its settings name."""
        return []

    def push(self, name: str, on_line: OnLine | None = None, *, insecure: bool = False) -> str:
        """Push an image under its name and return the digest the registry has it by."""
        said = self.ask("push", name, on_line=on_line)
        found = _DIGEST.findall(said)
        if not found:
            raise EngineError(f"docker push: no digest was told for {name}")
        return str(found[-1])

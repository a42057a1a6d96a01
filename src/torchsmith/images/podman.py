"""podman: no daemon; shares its store with buildah."""

from __future__ import annotations

from torchsmith.images.engine import Build, Engine
from torchsmith.images.process import OnLine, interrupt
from torchsmith.temporary import temporary_folder


class Podman(Engine):
    """podman, as root or not."""

    name = "podman"

    def build_options(self, wanted: Build) -> list[str]:
        """The options of `build`."""
        return [*super().build_options(wanted), *image_format(wanted)]

    def push(self, name: str, on_line: OnLine | None = None, *, insecure: bool = False) -> str:
        """Push an image under its name and return the digest the registry has it by."""
        return push_with_digest_file(self, name, on_line, insecure=insecure)


def image_format(wanted: Build) -> list[str]:
    """OCI's images hold no health check: only Docker's do."""
    checked = "\nHEALTHCHECK " in wanted.file.read_text()
    return ["--format", "docker"] if checked else []


def push_with_digest_file(
    engine: Engine, name: str, on_line: OnLine | None, *, insecure: bool
) -> str:
    """What podman and buildah have in common: the digest is written to a file."""
    with temporary_folder("push") as folder:
        note = folder / "digest"
        words = [*engine.trust_words(insecure), "--digestfile", str(note), name]
        engine.ask("push", *words, on_line=on_line, ending=interrupt)
        return note.read_text().strip()

"""buildah: builds and pushes where there is no podman; it starts no containers for people."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from torchsmith.errors import ContainerToolError
from torchsmith.images.engine import (
    Build,
    Engine,
    ImageInfo,
    bare_id,
    image_format,
    push_with_digest_file,
    variables,
)
from torchsmith.images.process import OnLine, Said


class Buildah(Engine):
    """buildah, as root or not."""

    name = "buildah"
    runs = False
    _listed = "{{.Name}}:{{.Tag}}"
    _discard = ("rm",)

    def build_options(self, wanted: Build) -> list[str]:
        """The options of `build`; unlike podman it keeps no layers unless told to."""
        return [*super().build_options(wanted), "--layers", *image_format(wanted)]

    def _inspect_words(self, image: str) -> tuple[str, ...]:
        return ("inspect", "--type", "image", image)

    def _read_inspect(self, text: str) -> ImageInfo:
        table = json.loads(text)
        image = table["OCIv1"]
        config = image.get("config") or {}
        name, digest = table.get("FromImage") or "", table.get("FromImageDigest") or ""
        return ImageInfo(
            id=bare_id(table["FromImageID"]),
            tags=(name,) if name else (),
            digests=(f"{name.rpartition(':')[0] or name}@{digest}",) if digest else (),
            layers=tuple((image.get("rootfs") or {}).get("diff_ids") or ()),
            labels=config.get("Labels") or {},
            user=config.get("User") or "",
            env=variables(config.get("Env") or ()),
            workdir=config.get("WorkingDir") or "",
            command=tuple(config.get("Cmd") or ()),
            architecture=image.get("architecture") or "",
        )

    def push(self, name: str, on_line: OnLine | None = None, *, insecure: bool = False) -> str:
        """Push an image under its name and return the digest the registry has it by."""
        return push_with_digest_file(self, name, on_line, insecure=insecure)

    def run(self, *words: str | Path, on_line: OnLine | None = None) -> Said:
        """Refuse: its `run` is one step of a build."""
        raise ContainerToolError(
            "buildah builds images and starts none", "Install podman: it has the same images."
        )

    @contextmanager
    def container(self, image: str) -> Iterator[str]:
        """A container that is not started, for its files; it is gone afterwards."""
        name = self.ask("from", "--pull-never", image).splitlines()[-1]
        try:
            yield name
        finally:
            self.try_("rm", name)

    def copy_out(self, image: str, path: str, into: Path) -> None:
        """Copy what lies at a path of an image into a folder of this machine."""
        self.inspect(image)
        with self.container(image) as name:
            root = Path(self.ask("mount", name))
            try:
                source = root / path.strip("/").removesuffix("/.")
                if not source.exists():
                    raise ContainerToolError(f"{image} has no {path}")
                if source.is_dir():
                    inner = "" if path.endswith("/.") else source.name
                    shutil.copytree(source, into / inner, symlinks=True, dirs_exist_ok=True)
                else:
                    shutil.copy2(source, into)
            finally:
                self.try_("umount", name)

"""The step between a source as it comes and the tree that is built: files lent, patches applied."""

from __future__ import annotations

import json

from torchsmith.plan.models import Cost, Step, digest
from torchsmith.plan.shell import in_work, plain_name, sh, unless
from torchsmith.plan.sources import lender_folder
from torchsmith.resolve.models import PatchChoice, VendoredChoice


def patch_files(patches: tuple[PatchChoice, ...]) -> dict[str, bytes]:
    """Names that sort in the order of application and need no quoting, with their content."""
    return {
        f"{number:02}-{plain_name(patch.name)}": patch.content
        for number, patch in enumerate(patches, 1)
    }


def _apply(patch: PatchChoice, name: str, folder: str, origin: str) -> list[str]:
    """Try a patch, then apply it; not where the tree is one that does without."""
    apply = sh("patch", "--directory", folder, "--forward", "--batch", f"--strip={patch.strip}")
    given = f"--input={in_work(name)}"
    commands = [
        unless(f"{apply} --dry-run {given}", f"{patch.name} does not apply to {origin}"),
        f"{apply} --quiet {given}",
    ]
    # Which source it is shows only when it has come: a mirror may lack a part of it.
    for path, test, has in ((patch.unless, "-e", "has"), (patch.only_with, "! -e", "has no")):
        if path:
            said = f"{patch.name} is left out: the source {has} {path}"
            where = sh(f"{folder}/{path}")
            body = "; ".join(commands)
            commands = [f"if [ {test} {where} ]; then {sh('echo', said)}; else {body}; fi"]
    return commands


def _vendor(item: VendoredChoice, folder: str) -> list[str]:
    """Put what is lent where the build looks for it, unless the source has its own there."""
    lent, target = f"{lender_folder(item.lender)}/{item.file}", f"{folder}/{item.path}"
    lender = f"{item.lender.package} {item.lender.ref}"
    copy = f"if ! [ -e {sh(target)} ]; then {sh('cp', '-R', lent, target)}; fi"
    if item.lender.sha256:
        # The whole it came in was brought by its hash.
        return [sh("mkdir", "-p", target.rpartition("/")[0]), copy]
    return [
        unless(
            f"echo {sh(f'{item.sha256}  {lent}')} | sha256sum --check --status",
            f"{item.file} of {lender} does not have the hash the facts say",
        ),
        sh("mkdir", "-p", target.rpartition("/")[0]),
        copy,
    ]


def patch_source(
    fetch: Step,
    patches: tuple[PatchChoice, ...],
    files: dict[str, bytes],
    vendored: tuple[VendoredChoice, ...] = (),
    lenders: tuple[Step, ...] = (),
) -> Step:
    """Add what is lent to a copy of a tree and patch it.

    Each patch is tried before it changes anything.
    """
    series: list[list[str | int]] = []
    for patch in patches:
        conditions = [patch.unless, patch.only_with] if patch.unless or patch.only_with else []
        series.append([patch.name, patch.strip, digest(patch.content), *conditions])
    series += [[item.path, item.sha256] for item in vendored]
    mark = digest(json.dumps(series).encode())[:8]
    named = {
        f"patches/{fetch.project}-{mark}/{name}": content
        for name, content in patch_files(patches).items()
    }
    files.update(named)
    folder = f"{fetch.outputs[0]}-patched-{mark}"
    commands = [sh("rm", "-rf", folder), sh("cp", "-a", fetch.outputs[0], folder)]
    for item in vendored:
        commands += _vendor(item, folder)
    for patch, name in zip(patches, named, strict=True):
        commands += _apply(patch, name, folder, fetch.outputs[0])
    changes = [(patch.name, patch.why) for patch in patches]
    changes += [
        (item.path, f"Debian took it out; {item.lender.package} {item.lender.ref} lends it")
        for item in vendored
    ]
    parts = [(len(patches), "patch", "patches"), (len(vendored), "part lent", "parts lent")]
    told = [f"{count} {one if count == 1 else many}" for count, one, many in parts if count]
    return Step(
        id=f"{fetch.id.replace('fetch', 'patch', 1)}-{mark}",
        kind="patch",
        title=f"Patch {fetch.project}: {', '.join(told)}",
        why="a copy of the source, which stays as it came",
        project=fetch.project,
        needs=(fetch.id, *(step.id for step in lenders)),
        inputs=tuple(named),
        commands=tuple(commands),
        outputs=(folder,),
        cost=Cost(core_seconds=10, disk_mb=3000, basis="a copy of the tree"),
        details=tuple(changes),
    )

"""The steps that ship what was made: index, channel, uploads, registry. Secrets are only named."""

from __future__ import annotations

from typing import Literal

import msgspec
from msgspec import Struct

from torchsmith.plan.images import ENGINE
from torchsmith.plan.models import Step, Task
from torchsmith.plan.shell import in_project, needs_program, sh, unless
from torchsmith.plan.ship import wheel_folder
from torchsmith.recipe.outcome import Publish
from torchsmith.resolve.models import Resolution

Service = Literal["pypi", "anaconda", "s3"]


class Accounts(Struct, frozen=True, omit_defaults=True):
    """Where each service is to be reached; `token_env` holds anaconda.org's token."""

    repository: str = "https://upload.pypi.org/legacy/"
    anaconda_user: str = ""
    token_env: str = "ANACONDA_TOKEN"
    bucket: str = ""


class Shipment(Struct, frozen=True, omit_defaults=True):
    """What a publish step does: `files` are patterns of the work folder, folders are the project's.

    Files are published to the folders, then uploaded to the services.
    """

    files: tuple[str, ...] = ()
    index: str = ""
    channel: str = ""
    to: tuple[Service, ...] = ()
    accounts: Accounts = Accounts()


PUSHING = "torchsmith.images.publish"


class Delivery(Struct, frozen=True):
    """Images that go to a registry, each under its own name there.

    What the registry calls each is written to `record`, a file of the work folder.
    """

    images: tuple[str, ...]
    registry: str
    record: str


def publish_steps(
    resolution: Resolution,
    publish: Publish,
    wheels: tuple[Step, ...],
    archives: tuple[Step, ...],
    conda: tuple[Step, ...],
    images: list[str],
    image_ids: tuple[str, ...],
    attested: tuple[str, ...],
) -> list[Step]:
    """Every place a recipe names, for what there is to go there.

    `attested` is what writes the documents that go along into folders.
    """
    variant = resolution.variant
    steps: list[Step] = []
    made = f"{wheel_folder(wheels)}/*.whl"
    if publish.index is not None and (wheels or archives):
        steps.append(_index(variant, publish.index, made, wheels, archives, attested))
    if publish.channel is not None and conda:
        steps.append(_channel(variant, publish.channel, conda, attested))
    folders = tuple(step.id for step in steps)
    if publish.bucket is not None and folders:
        steps.append(_bucket(variant, publish, publish.bucket, folders))
    if publish.anaconda_user is not None and conda:
        steps.append(_anaconda(variant, publish.anaconda_user, publish.token_env, conda))
    if publish.repository is not None and wheels:
        steps.append(_repository(variant, publish.repository, made, wheels))
    if publish.registry is not None and images:
        steps.append(_registry(variant, publish.registry.rstrip("/"), images, image_ids))
    return steps


def _task(shipment: Shipment) -> Task:
    return Task("torchsmith.ship", msgspec.json.encode(shipment).decode())


def _packages(variant: str) -> tuple[str, str]:
    return f"channel/{variant}/*/*.conda", f"channel/{variant}/*/*.tar.bz2"


def _not_ours(folder: str, kind: str) -> str:
    """What a shell adds by its simpler means, torchsmith's own pages would not know of."""
    return unless(
        f"test ! -e {in_project(folder)}/.torchsmith-{kind}",
        f"{folder} is torchsmith's own: add to it with torchsmith publish",
    )


def _index(
    variant: str,
    folder: str,
    made: str,
    wheels: tuple[Step, ...],
    archives: tuple[Step, ...],
    attested: tuple[str, ...],
) -> Step:
    here = in_project(folder)
    files = (*([made] if wheels else []), *(step.outputs[0] for step in archives))
    return Step(
        id=f"publish-index-{variant}",
        kind="publish",
        title=f"Add the wheels to the pip index {folder}",
        why="any web server can serve it: pip install --index-url",
        variant=variant,
        needs=(*(step.id for step in (*wheels, *archives)), *attested),
        commands=(
            _not_ours(folder, "index"),
            f"mkdir -p {here}/simple",
            f"for wheel in {made}; do "
            'name="${wheel##*/}"; project="$(echo "${name%%-*}" | tr "A-Z_." "a-z--")"; '
            f'there={here}/simple/"$project"; mkdir -p "$there"; '
            # Published once, a file never changes: pip's caches and locks rest on that.
            'test -e "$there/$name" || cp "$wheel" "$there"/; done',
            # Servers that list no folders need pages; a + is a space to some.
            f"for there in {here}/simple/*/; do "
            'for wheel in "$there"*.whl; do name="${wheel##*/}"; '
            'sum="$(sha256sum "$wheel" | cut -c 1-64)"; '
            'href="$(printf %s "$name" | sed "s/+/%2B/g")"; '
            'echo "<a href=\\"$href#sha256=$sum\\">$name</a><br>"; '
            'done > "$there"index.part; mv "$there"index.part "$there"index.html; done',
            f"for there in {here}/simple/*/; do "
            'name="$(basename "$there")"; echo "<a href=\\"$name/\\">$name</a><br>"; '
            f"done > {here}/simple/index.part",
            f"mv {here}/simple/index.part {here}/simple/index.html",
        ),
        outputs=(f"$PROJECT/{folder}",),
        task=_task(Shipment(files, index=folder)),
    )


def _channel(variant: str, folder: str, conda: tuple[Step, ...], attested: tuple[str, ...]) -> Step:
    here = in_project(folder)
    return Step(
        id=f"publish-channel-{variant}",
        kind="publish",
        title=f"Add the packages to the conda channel {folder}",
        why="conda install --channel",
        variant=variant,
        needs=(*(step.id for step in conda), *attested),
        commands=(
            _not_ours(folder, "channel"),
            f"mkdir -p {here}/noarch",
            f"for package in {' '.join(_packages(variant))}; do "
            'test -e "$package" || continue; '
            'subdir="${package%/*}"; subdir="${subdir##*/}"; '
            f'there={here}/"$subdir"; mkdir -p "$there"; '
            'test -e "$there/${package##*/}" || cp "$package" "$there"/; done',
            needs_program("rattler-index", "see https://rattler.build"),
            f"rattler-index fs {here}",
        ),
        outputs=(f"$PROJECT/{folder}",),
        task=_task(Shipment(_packages(variant), channel=folder)),
    )


def _bucket(variant: str, publish: Publish, bucket: str, needs: tuple[str, ...]) -> Step:
    target = bucket.rstrip("/")
    folders = [(publish.index, target), (publish.channel, f"{target}/channel")]
    return Step(
        id=f"publish-bucket-{variant}",
        kind="publish",
        title=f"Copy what is published to {bucket}",
        why="credentials come from aws's own settings",
        variant=variant,
        needs=needs,
        commands=(
            needs_program("aws", "pip install awscli"),
            *(
                f"aws s3 sync --exclude '.*' --exclude '*/.*' {in_project(folder)} {sh(place)}"
                for folder, place in folders
                if folder is not None
            ),
        ),
        task=_task(
            Shipment(
                index=publish.index or "",
                channel=publish.channel or "",
                to=("s3",),
                accounts=Accounts(bucket=bucket),
            )
        ),
    )


def _anaconda(variant: str, user: str, token: str, conda: tuple[Step, ...]) -> Step:
    packages = " ".join(output for step in conda for output in step.outputs)
    return Step(
        id=f"publish-anaconda-{variant}",
        kind="publish",
        title=f"Upload to the conda channel of {user}",
        why=f"conda install pytorch -c {user}",
        variant=variant,
        needs=tuple(step.id for step in conda),
        secrets=(token,),
        commands=(
            f': "${{{token}:?is unset. Set it in your environment before publishing}}"',
            needs_program("anaconda", "pip install anaconda-client"),
            # Through the environment: a token among the arguments is there for all to see.
            f'ANACONDA_API_TOKEN="${token}" anaconda upload --user {user} {packages}',
        ),
        task=_task(
            Shipment(
                _packages(variant),
                to=("anaconda",),
                accounts=Accounts(anaconda_user=user, token_env=token),
            )
        ),
    )


def _repository(variant: str, repository: str, made: str, wheels: tuple[Step, ...]) -> Step:
    return Step(
        id=f"publish-wheels-{variant}",
        kind="publish",
        title=f"Upload the wheels to {repository}",
        variant=variant,
        needs=tuple(step.id for step in wheels),
        secrets=("TWINE_PASSWORD",),
        commands=(
            ': "${TWINE_PASSWORD:?is unset. Set it in your environment before publishing}"',
            needs_program("twine", "pip install twine"),
            f"twine upload --non-interactive --repository-url {sh(repository)} {made}",
        ),
        task=_task(Shipment((made,), to=("pypi",), accounts=Accounts(repository=repository))),
    )


def _registry(variant: str, registry: str, images: list[str], image_ids: tuple[str, ...]) -> Step:
    return Step(
        id=f"publish-images-{variant}",
        kind="publish",
        title=f"Push {', '.join(images)} to {registry}",
        why="credentials come from the engine's own login",
        variant=variant,
        needs=image_ids,
        commands=tuple(
            f"{ENGINE} {sh(*words)}"
            for name in images
            for words in (
                ("tag", name, f"{registry}/{name}"),
                ("push", f"{registry}/{name}"),
            )
        ),
        task=Task(
            PUSHING,
            msgspec.json.encode(
                Delivery(tuple(images), registry, f"pushed/{variant}.json")
            ).decode(),
        ),
    )

"""The steps that ship what was made: index, channel, uploads, registry. Secrets are only named."""

from __future__ import annotations

from typing import Literal

from msgspec import Struct

from torchsmith.plan.models import Step, Task
from torchsmith.plan.ship import wheel_folder
from torchsmith.recipe.outcome import Publish
from torchsmith.resolve.models import Resolution

Service = Literal["pypi", "anaconda", "s3"]


class Accounts(Struct, frozen=True, omit_defaults=True):
    """Where each service is to be reached; `token_env` holds anaconda.org's token."""

    repository: str = "https://upload.pypi.org/legacy/"
    anaconda_user: str = ""
    anaconda_force: bool = False
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
        account = Accounts(
            anaconda_user=publish.anaconda_user,
            anaconda_force=publish.anaconda_force,
            token_env=publish.token_env,
        )
        steps.append(_anaconda(variant, account, conda))
    if publish.repository is not None and wheels:
        steps.append(_repository(variant, publish.repository, made, wheels))
    if publish.registry is not None and images:
        steps.append(_registry(variant, publish.registry.rstrip("/"), images, image_ids))
    return steps


def _packages(variant: str) -> tuple[str, str]:
    return f"channel/{variant}/*/*.conda", f"channel/{variant}/*/*.tar.bz2"


def _index(
    variant: str,
    folder: str,
    made: str,
    wheels: tuple[Step, ...],
    archives: tuple[Step, ...],
    attested: tuple[str, ...],
) -> Step:
    files = (*([made] if wheels else []), *(step.outputs[0] for step in archives))
    return Step(
        id=f"publish-index-{variant}",
        kind="publish",
        title=f"Add the wheels to the pip index {folder}",
        why="any web server can serve it: pip install --index-url",
        variant=variant,
        needs=(*(step.id for step in (*wheels, *archives)), *attested),
        outputs=(f"$PROJECT/{folder}",),
        task=Task("ship", Shipment(files, index=folder)),
    )


def _channel(variant: str, folder: str, conda: tuple[Step, ...], attested: tuple[str, ...]) -> Step:
    return Step(
        id=f"publish-channel-{variant}",
        kind="publish",
        title=f"Add the packages to the conda channel {folder}",
        why="conda install --channel",
        variant=variant,
        needs=(*(step.id for step in conda), *attested),
        outputs=(f"$PROJECT/{folder}",),
        task=Task("ship", Shipment(_packages(variant), channel=folder)),
    )


def _bucket(variant: str, publish: Publish, bucket: str, needs: tuple[str, ...]) -> Step:
    return Step(
        id=f"publish-bucket-{variant}",
        kind="publish",
        title=f"Copy what is published to {bucket}",
        why="credentials come from aws's own settings",
        variant=variant,
        needs=needs,
        task=Task(
            "ship",
            Shipment(
                index=publish.index or "",
                channel=publish.channel or "",
                to=("s3",),
                accounts=Accounts(bucket=bucket),
            ),
        ),
    )


def _anaconda(variant: str, account: Accounts, conda: tuple[Step, ...]) -> Step:
    user = account.anaconda_user
    return Step(
        id=f"publish-anaconda-{variant}",
        kind="publish",
        title=f"Upload to the conda channel of {user}",
        why=f"conda install pytorch -c {user}",
        variant=variant,
        needs=tuple(step.id for step in conda),
        secrets=(account.token_env,),
        task=Task("ship", Shipment(_packages(variant), to=("anaconda",), accounts=account)),
    )


def _repository(variant: str, repository: str, made: str, wheels: tuple[Step, ...]) -> Step:
    return Step(
        id=f"publish-wheels-{variant}",
        kind="publish",
        title=f"Upload the wheels to {repository}",
        variant=variant,
        needs=tuple(step.id for step in wheels),
        secrets=("TWINE_PASSWORD",),
        task=Task(
            "ship", Shipment((made,), to=("pypi",), accounts=Accounts(repository=repository))
        ),
    )


def _registry(variant: str, registry: str, images: list[str], image_ids: tuple[str, ...]) -> Step:
    return Step(
        id=f"publish-images-{variant}",
        kind="publish",
        title=f"Push {', '.join(images)} to {registry}",
        why="credentials come from the engine's own login",
        variant=variant,
        needs=image_ids,
        task=Task("push", Delivery(tuple(images), registry, f"pushed/{variant}.json")),
    )

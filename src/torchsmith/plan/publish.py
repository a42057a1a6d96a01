"""The steps that ship what was made: index, channel, uploads, registry. Secrets are only named."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, Literal

from msgspec import Struct

from torchsmith.plan.models import Step, Task
from torchsmith.recipe.outcome import Publish
from torchsmith.resolve.models import Resolution


def wheel_folder(verified: Sequence[Step]) -> str:
    """Where the wheels lie that were verified, their reports beside them: the finished ones."""
    return verified[0].outputs[0].rpartition("/")[0] if verified else ""


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

    def ship(name: str, title: str, task: Task, needs: Iterable[str], **more: Any) -> None:
        identity = f"publish-{name}-{variant}"
        steps.append(
            Step(identity, "publish", title, variant=variant, needs=tuple(needs), task=task, **more)
        )

    made = f"{wheel_folder(wheels)}/*.whl"
    packages = (f"channel/{variant}/*/*.conda", f"channel/{variant}/*/*.tar.bz2")
    packed = [step.id for step in conda]
    if (index := publish.index) is not None and (wheels or archives):
        files = (*([made] if wheels else []), *(step.outputs[0] for step in archives))
        ship(
            "index",
            f"Add the wheels to the pip index {index}",
            Task("ship", Shipment(files, index=index)),
            (*(step.id for step in (*wheels, *archives)), *attested),
            why=f"any web server can serve it: pip install --index-url ADDRESS/{index}/simple",
            outputs=(f"$PROJECT/{index}",),
        )
    if (channel := publish.channel) is not None and conda:
        ship(
            "channel",
            f"Add the packages to the conda channel {channel}",
            Task("ship", Shipment(packages, channel=channel)),
            (*packed, *attested),
            why=f"conda install --channel {channel} pytorch",
            outputs=(f"$PROJECT/{channel}",),
        )
    if (bucket := publish.bucket) is not None and steps:
        copied = Shipment(
            index=index or "", channel=channel or "", to=("s3",), accounts=Accounts(bucket=bucket)
        )
        ship(
            "bucket",
            f"Copy what is published to {bucket}",
            Task("ship", copied),
            [step.id for step in steps],
            why="credentials come from aws's own settings",
        )
    if (user := publish.anaconda_user) is not None and conda:
        account = Accounts(
            anaconda_user=user, anaconda_force=publish.anaconda_force, token_env=publish.token_env
        )
        ship(
            "anaconda",
            f"Upload to the conda channel of {user}",
            Task("ship", Shipment(packages, to=("anaconda",), accounts=account)),
            packed,
            why=f"conda install pytorch -c {user}",
            secrets=(account.token_env,),
        )
    if (repository := publish.repository) is not None and wheels:
        accounts = Accounts(repository=repository)
        ship(
            "wheels",
            f"Upload the wheels to {repository}",
            Task("ship", Shipment((made,), to=("pypi",), accounts=accounts)),
            (step.id for step in wheels),
            secrets=("TWINE_PASSWORD",),
        )
    if publish.registry is not None and images:
        registry = publish.registry.rstrip("/")
        ship(
            "images",
            f"Push {', '.join(images)} to {registry}",
            Task("push", Delivery(tuple(images), registry, f"pushed/{variant}.json")),
            image_ids,
            why="credentials come from the engine's own login",
        )
    return steps

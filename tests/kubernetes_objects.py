"""What Kubernetes and Kubeflow publish of their objects, to hold ours against."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import jsonschema
import kubeflow.training.models as kubeflow_models  # type: ignore[import-untyped]
import kubernetes_validate  # type: ignore[import-untyped]

RELEASES = ("1.25", "1.28", "1.31", "1.34", "1.37")


_PUBLISHED = {
    kind: json.loads(
        (Path(__file__).parent / f"data/kubernetes/{kind.lower()}.schema.json").read_bytes()
    )
    for kind in ("JobSet", "TrainJob")
}


def check_object(document: Any, releases: Sequence[str] = RELEASES) -> None:
    """Raise where an object is not one of every release, or not one its operator publishes."""
    kind = document["kind"]
    if kind in _PUBLISHED:
        jsonschema.Draft7Validator(_PUBLISHED[kind]).validate(document)
    if kind == "JobSet":
        for one in document["spec"]["replicatedJobs"]:
            job = {"apiVersion": "batch/v1", "kind": "Job", **one["template"]}
            kubernetes_validate.validate(job, releases[-1], strict=True)
        return
    if kind == "TrainJob":
        kubernetes_validate.validate(train_pod(document), releases[-1], strict=True)
        return
    if kind != "PyTorchJob":
        for release in releases:
            kubernetes_validate.validate(document, release, strict=True)
        return
    check_model(kubeflow_models.KubeflowOrgV1PyTorchJob, document)
    for replica in document["spec"]["pytorchReplicaSpecs"].values():
        pod = {"apiVersion": "v1", "kind": "Pod", **replica["template"]}
        kubernetes_validate.validate(pod, releases[-1], strict=True)
        assert pod["spec"]["containers"][0]["name"] == "pytorch"


def train_pod(document: Any) -> dict[str, Any]:
    """The pod Trainer makes of a TrainJob and its runtime."""
    trainer = document["spec"]["trainer"]
    (patch,) = document["spec"]["runtimePatches"]
    (job,) = patch["trainingRuntimeSpec"]["template"]["spec"]["replicatedJobs"]
    assert job["name"] == "node"
    template = job["template"]["spec"]["template"]
    laid_over = dict(template.get("spec", {}))
    (mounted,) = laid_over.pop("containers", None) or [{"name": "node"}]
    container = {
        **mounted,
        **{key: trainer[key] for key in ("image", "command", "env") if key in trainer},
        "resources": trainer["resourcesPerNode"],
    }
    spec = {**laid_over, "containers": [container]}
    return {"apiVersion": "v1", "kind": "Pod", "metadata": template["metadata"], "spec": spec}


def check_model(model: Any, value: Any) -> None:
    """Hold a value against a model of the published client: its keys, and what they hold."""
    names = {key: attribute for attribute, key in model.attribute_map.items()}
    assert set(value) <= set(names), f"{model.__name__} has no {set(value) - set(names)}"
    for key, inner in value.items():
        kind = model.openapi_types[names[key]]
        if kind.startswith("dict(str, Kubeflow"):
            for item in inner.values():
                check_model(getattr(kubeflow_models, kind[len("dict(str, ") : -1]), item)
        elif kind.startswith("Kubeflow"):
            check_model(getattr(kubeflow_models, kind), inner)
        elif kind in ("int", "str"):
            assert isinstance(inner, {"int": int, "str": str}[kind]), f"{key}: {inner!r}"

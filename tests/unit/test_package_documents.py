"""The bill of materials and the provenance of an artifact: what stands in them."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from cyclonedx.schema import SchemaVersion
from cyclonedx.validation.json import JsonStrictValidator
from msgspec.structs import replace

from torchsmith.package.attest import statement
from torchsmith.package.contents import Contents, Packed
from torchsmith.package.materials import Beside, Materials, Owner, Part, Tree, is_vendored
from torchsmith.package.sbom import bill
from torchsmith.plan.attest import Attest, Change, History, Made, Origin, Subject
from torchsmith.resolve.models import SourceChoice
from torchsmith.verify.binary import Library

pytestmark = pytest.mark.unit

COMMIT = "1eba9b3aa3c43f86f4a2c807ac8e12c4a7767340"
PYBIND = "a2e59f0e7065404b44dfe92a28aca47ba1378dc4"
URL = "https://github.com/pytorch/pytorch.git"
SECRET = "hunter2"


def materials() -> Materials:
    source = SourceChoice("git", url=f"https://me:{SECRET}@{URL[8:]}", ref="v2.6.0")
    subject = Subject(
        "dist/lab/torch.whl", "torch", "compile-torch-lab", (("CC", "gcc"),), ("sources/torch",)
    )
    contents = Contents(
        path=Path("dist/lab/torch-2.6.0+cpu-cp311-cp311-linux_x86_64.whl"),
        kind="wheel",
        name="torch",
        version="2.6.0+cpu",
        size=10,
        sha256="ab" * 32,
        files=3,
        unpacked=30,
        libraries=(
            Packed(Library("torch/lib/libtorch_cpu.so"), "01" * 32),
            Packed(Library("torch/lib/libgomp-a34b3233.so.1"), "02" * 32),
        ),
        tags=("cp311-cp311-linux_x86_64",),
        requires=("sympy==1.13.1", "filelock", 'optree>=0.13; extra == "optree"', "not a req !"),
    )
    patch = Change("torch", "fix.patch", "03" * 32, "it does not build")
    return Materials(
        plan=Attest(
            recipe={"name": "lab", "source": {"url": f"https://me:{SECRET}@{URL[8:]}"}},
            variant="lab",
            resolution={"compiler": {"kind": "gcc", "version": "12.2.0"}},
            subjects=(subject,),
            origins=(),
            changes=(patch,),
        ),
        subject=subject,
        contents=contents,
        trees=(
            Tree(
                Origin("torch", "sources/torch", source),
                sha256="04" * 32,
                date=1_700_000_000,
                commit=COMMIT,
                parts=(
                    Part("third_party/miniz-3.0.2", version="3.0.2"),
                    Part("third_party/pybind11", PYBIND, "https://github.com/pybind/pybind11.git"),
                ),
            ),
        ),
        changes=(patch,),
        beside=(Beside("other.whl", "05" * 32),),
        tools=(("cmake", "3.31.10"), ("ninja", "1.13.2")),
        owners=(
            ("libc.so.6", Owner("libc6", "2.36-9", "amd64", "glibc")),
            ("libm.so.6", Owner("libc6", "2.36-9", "amd64", "glibc")),
            ("libodd.so.1", None),
        ),
        system="debian-12",
        date=1_700_000_000,
    )


HISTORY = History("run-2", {"compile-torch-lab": Made("k" * 8, "run-1", 1e9, 1e9 + 60)})


def components(document: Mapping[str, Any]) -> dict[str, Any]:
    return {item["bom-ref"]: item for item in document["components"]}


def role(component: Mapping[str, Any]) -> str:
    said = {item["name"]: item["value"] for item in component["properties"]}
    return str(said["torchsmith:role"])


def test_a_bill_is_what_its_schema_asks_for() -> None:
    text = bill(materials()).decode()
    assert JsonStrictValidator(SchemaVersion.V1_6).validate_str(text) is None


def test_a_bill_names_everything_the_artifact_is_made_of() -> None:
    made = json.loads(bill(materials()))
    artifact = made["metadata"]["component"]
    assert artifact["purl"] == "pkg:pypi/torch@2.6.0%2Bcpu"
    assert artifact["hashes"] == [{"alg": "SHA-256", "content": "ab" * 32}]
    inside = {item["name"]: role(item) for item in artifact["components"]}
    assert inside == {
        "torch/lib/libtorch_cpu.so": "built",
        "torch/lib/libgomp-a34b3233.so.1": "vendored",
    }
    found = components(made)
    source = found["source:sources/torch"]
    assert source["purl"] == f"pkg:github/pytorch/pytorch@{COMMIT}"
    assert source["pedigree"]["commits"] == [{"uid": COMMIT, "url": URL}]
    assert source["pedigree"]["patches"][0]["diff"]["url"] == f"urn:sha256:{'03' * 32}"
    assert "it does not build" in source["pedigree"]["notes"]
    assert found["part:sources/torch/third_party/pybind11"]["version"] == PYBIND
    assert found["part:sources/torch/third_party/miniz-3.0.2"]["name"] == "miniz"
    libc = found["system:libc6:amd64"]
    assert libc["purl"] == "pkg:deb/debian/libc6@2.36-9?arch=amd64&distro=debian-12"
    linked = [item["value"] for item in libc["properties"] if item["name"].endswith("library")]
    assert linked == ["libc.so.6", "libm.so.6"]
    assert role(found["library:libodd.so.1"]) == "linked"
    assert found["requirement:sympy==1.13.1"]["version"] == "1.13.1"
    assert "version" not in found["requirement:filelock"]
    assert found['requirement:optree>=0.13; extra == "optree"']["scope"] == "optional"
    assert role(found["compiler"]) == "compiler"
    assert found["tool:cmake@3.31.10"]["scope"] == "excluded"
    # What was only there while it was built is nothing it depends on.
    (depends,) = [item for item in made["dependencies"] if item["ref"] == "artifact"]
    assert "tool:cmake@3.31.10" not in depends["dependsOn"]
    assert {"system:libc6:amd64", "source:sources/torch"} <= set(depends["dependsOn"])


def test_the_same_materials_make_the_same_bill_and_others_another() -> None:
    first = bill(materials())
    assert bill(materials()) == first
    document = json.loads(first)
    assert document["metadata"]["timestamp"] == "2023-11-14T22:13:20+00:00"
    other = json.loads(bill(replace(materials(), tools=())))
    assert other["serialNumber"] != document["serialNumber"]


def test_a_statement_has_the_shape_that_slsa_asks_for() -> None:
    made = json.loads(statement(materials(), HISTORY, {"x.cdx.json": "06" * 32}))
    assert made["_type"] == "https://in-toto.io/Statement/v1"
    assert made["predicateType"] == "https://slsa.dev/provenance/v1"
    assert made["subject"] == [
        {
            "name": "torch-2.6.0+cpu-cp311-cp311-linux_x86_64.whl",
            "digest": {"sha256": "ab" * 32},
        }
    ]
    definition = made["predicate"]["buildDefinition"]
    assert definition["buildType"] == "https://torchsmith.dev/build/v1"
    assert definition["externalParameters"]["variant"] == "lab"
    assert definition["internalParameters"]["key"] == "k" * 8
    assert definition["internalParameters"]["env"] == {"CC": "gcc"}
    needed = {item["name"]: item for item in definition["resolvedDependencies"]}
    assert needed["torch"]["uri"] == f"git+{URL}@{COMMIT}"
    assert needed["torch"]["digest"] == {"gitCommit": COMMIT}
    assert needed["torch/third_party/pybind11"]["digest"] == {"gitCommit": PYBIND}
    assert needed["fix.patch"]["digest"] == {"sha256": "03" * 32}
    assert needed["other.whl"]["digest"] == {"sha256": "05" * 32}
    assert needed["cmake"]["uri"] == "pkg:pypi/cmake@3.31.10"
    run = made["predicate"]["runDetails"]
    assert run["metadata"]["invocationId"] == "run-1"
    assert run["metadata"]["startedOn"] == "2001-09-09T01:46:40Z"
    assert run["metadata"]["finishedOn"] == "2001-09-09T01:47:40Z"
    assert run["byproducts"] == [{"name": "x.cdx.json", "digest": {"sha256": "06" * 32}}]


def test_when_and_where_change_nothing_but_the_run_details() -> None:
    first = json.loads(statement(materials(), HISTORY, {}))
    again = History("run-9", {"compile-torch-lab": Made("k" * 8, "run-8", 2e9, 2e9)})
    second = json.loads(statement(replace(materials(), system="fedora-41"), again, {}))
    assert first != second
    for made in (first, second):
        del made["predicate"]["runDetails"]
    assert first == second


def test_no_password_of_an_address_is_written_down() -> None:
    text = bill(materials()) + statement(materials(), HISTORY, {})
    assert SECRET.encode() not in text


def test_only_what_a_tree_shows_is_said_of_it() -> None:
    asked = SourceChoice("git", url=URL, ref="v2.6.0", commit=COMMIT)
    # It was to be had from Debian only: no commit can be claimed.
    came = Tree(Origin("torch", "t", asked), "07" * 32, 1, package="pytorch", version="2.6.0-7")
    assert came.kind == "debian"
    assert came.digest == {}
    assert came.purl.to_string() == "pkg:deb/debian/pytorch@2.6.0-7?arch=source"
    sdist = SourceChoice("sdist", package="Torch_Scatter", ref="2.1.2", sha256="08" * 32)
    found = Tree(Origin("scatter", "t", sdist), "07" * 32, 1)
    assert found.purl.to_string() == "pkg:pypi/torch-scatter@2.1.2"
    assert found.digest == {"sha256": "08" * 32}
    folder = Tree(Origin("mine", "t", folder="mine"), "07" * 32, 1)
    assert (folder.kind, folder.digest) == ("folder", {})


def test_a_library_put_into_a_wheel_is_told_from_its_own() -> None:
    assert is_vendored("torchvision.libs/libpng16-1a2b3c4d.so.16", "vision")
    assert is_vendored("torch/lib/libcudart-80664282.so.10.2", "torch")
    assert is_vendored("torch/lib/libcudart.so.12", "torch")
    assert not is_vendored("torch/lib/libtorch_cpu.so", "torch")
    assert not is_vendored("torchvision/_C.so", "vision")

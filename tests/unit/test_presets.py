"""Each preset reproduces the document it comes from, particular by particular."""

from __future__ import annotations

import json
import re
import subprocess
import tomllib
from pathlib import Path

import pytest
from tests.plans import arguments, shell_lines
from tests.unit.conftest import Run

from torchsmith import __version__
from torchsmith.facts.files import shipped
from torchsmith.host.models import Host
from torchsmith.jobs.clients import render
from torchsmith.jobs.files import load_jobs
from torchsmith.plan.build import make_plan
from torchsmith.plan.conda import CondaSpec
from torchsmith.plan.expects import Expects
from torchsmith.plan.images import ImageTask
from torchsmith.plan.models import Fetch, Plan, Step
from torchsmith.plan.publish import Delivery, Shipment
from torchsmith.plan.render.conda import render_conda
from torchsmith.plan.render.dockerfile import dockerfile_context
from torchsmith.plan.render.script import render_script
from torchsmith.recipe.compose import with_training
from torchsmith.recipe.load import LoadedRecipe, load_recipe
from torchsmith.recipe.matrix import expand
from torchsmith.recipe.presets import find_preset, presets
from torchsmith.resolve.models import Resolution
from torchsmith.resolve.resolve import resolve

pytestmark = pytest.mark.unit

HOST = Host(platform="linux-x86_64", system="debian-12")


def loaded(name: str) -> LoadedRecipe:
    return load_recipe(find_preset(name).path)


def planned(name: str) -> Plan:
    recipe = loaded(name)
    facts = shipped()
    outcomes = [resolve(item, facts, HOST, recipe.files) for item in expand(recipe.recipe)]
    resolved = [item for item in outcomes if isinstance(item, Resolution)]
    assert len(resolved) == len(outcomes), outcomes
    return make_plan(recipe.recipe, resolved, facts, __version__)


def compiling(plan: Plan, project: str) -> Step:
    return next(step for step in plan.steps if (step.kind, step.project) == ("compile", project))


def dockerfile(name: str) -> str:
    files = dockerfile_context(planned(name), loaded(name).recipe, __version__)
    return files["Dockerfile"].decode()


@pytest.mark.parametrize("name", [preset.name for preset in presets()])
def test_every_preset_can_exist_and_says_what_it_is_for(name: str) -> None:
    assert planned(name).steps
    assert len(find_preset(name).summary) > 30


# ------------------------------------------------------- every document, as docs/presets.md

ROOT = Path(__file__).parents[2]
# What tools/render_docs.py writes the tables of docs/presets.md from.
DOCUMENTS = tomllib.loads((ROOT / "docs" / "presets.toml").read_text(encoding="utf-8"))


@pytest.mark.parametrize("name", DOCUMENTS)
def test_each_line_of_a_document_is_found_where_the_page_says(name: str) -> None:
    plan = planned(name)
    files = dockerfile_context(plan, loaded(name).recipe, __version__)
    steps: list[str] = []
    for step in plan.steps:
        variables = (f"{key}={value}" for key, value in step.env)
        steps += [step.title, *variables, *step.outputs, *step.commands, *shell_lines(plan, step)]
    texts = {
        "recipe": find_preset(name).path.read_text(encoding="utf-8"),
        "plan": "\n".join(steps),
        "image": "\n".join([*files, *(content.decode() for content in files.values())]),
    }
    for line in DOCUMENTS[name]["line"]:
        cells = line["cells"]
        assert len(cells) == len(DOCUMENTS[name]["columns"])
        # Commands of torchsmith in a cell are run by test_docs.py.
        assert line.get("found") or any("`torchsmith " in cell for cell in cells), cells
        for where, wanted in line.get("found", {}).items():
            missing = [text for text in wanted if text not in texts[where]]
            assert not missing, f"{cells[0]}: not in the {where}: {missing}"


@pytest.mark.parametrize("name", DOCUMENTS)
def test_what_stands_for_a_documents_own_machine_is_a_test_that_exists(name: str) -> None:
    for item in DOCUMENTS[name]["instead"]:
        path, _, test = item["test"].partition("::")
        assert f"def {test}(" in (ROOT / path).read_text(encoding="utf-8")


# ------------------------------------------------------------------------------ orion-vgpu


def test_orion_is_torch_1_1_0_for_python_3_5_on_ubuntu_16_04() -> None:
    (resolution,) = planned("orion-vgpu").variants
    assert (resolution.torch, resolution.python) == ("1.1.0", "3.5")
    assert resolution.system == "ubuntu-16.04"
    assert resolution.source.ref == "v1.1.0"
    assert resolution.source.commit == "142c973f4179e768164cd578951489e89021b29c"
    assert resolution.wheel == "torch-1.1.0-cp35-cp35m-linux_x86_64.whl"


def test_orion_has_the_documents_build_variables_and_no_other_switches() -> None:
    env = dict(compiling(planned("orion-vgpu"), "torch").env)
    document = {
        "NO_TEST": "1",
        "NO_FBGEMM": "1",
        "NO_MIOPEN": "1",
        "NO_MKLDNN": "1",
        "NO_NNPACK": "1",
        "NO_QNNPACK": "1",
        "USE_NCCL": "1",
        "USE_SYSTEM_NCCL": "1",
        "NCCL_INCLUDE_DIR": "/usr/include",
        "NCCL_LIB_DIR": "/usr/lib/x86_64-linux-gnu",
        "NCCL_ROOT_DIR": "/usr",
        "TORCH_CUDA_ARCH_LIST": "3.5;6.0;6.1;7.0+PTX",
    }
    switches = {name for name in env if name.startswith(("NO_", "USE_", "NCCL_", "TORCH_"))}
    assert switches == set(document)
    assert {name: env[name] for name in document} == document


def test_orion_clones_recursively_at_the_tag() -> None:
    plan = planned("orion-vgpu")
    fetch = next(step for step in plan.steps if step.kind == "fetch")
    source = arguments(fetch, Fetch).source
    assert (source.kind, source.ref) == ("git", "v1.1.0")
    text = "\n".join(shell_lines(plan, fetch))
    assert "https://github.com/pytorch/pytorch" in text
    assert "submodule sync" in text
    assert "submodule update" in text
    assert "--init --recursive" in text


def test_orion_links_cuda_dynamically_and_takes_the_systems_nccl() -> None:
    (resolution,) = planned("orion-vgpu").variants
    assert resolution.feature("nccl") == "system"
    assert resolution.cuda is not None
    assert resolution.cuda.nccl == "2.4"
    assert not any("STATIC" in name for name, _ in resolution.feature_env)


def test_orion_rebuilds_vision_0_3_0_after_torch() -> None:
    plan = planned("orion-vgpu")
    vision = compiling(plan, "vision")
    assert vision.title.startswith("Compile torchvision 0.3.0")
    assert compiling(plan, "torch").id in vision.needs


def test_orion_image_holds_the_client_and_asks_for_8g_of_shared_memory() -> None:
    text = dockerfile("orion-vgpu")
    assert "FROM docker.io/library/ubuntu:16.04" in text
    assert "'libnccl2=2.4.*+cuda9.0'" in text
    assert "COPY install-client-9.0" in text
    assert "./install-client-9.0" in text
    assert "--shm-size=8G" in text
    for package in ("python3-dev", "python3-pip", "cmake", "g++", "libopenmpi-dev", "libomp-dev"):
        assert f"        {package}" in text


def test_orion_runs_distributed_over_nccl() -> None:
    (job,) = loaded("orion-vgpu").recipe.job
    assert job.remote_gpus
    assert job.distributed
    assert job.backend == "nccl"


def test_orion_has_the_program_and_the_data_of_its_job_in_the_image() -> None:
    (job,) = load_jobs(find_preset("orion-vgpu").path)
    (command,) = job.roles[0].commands
    text = dockerfile("orion-vgpu")
    program = re.search(r"python3 (\S+)/imagenet/main\.py", command)
    assert program
    assert f"git clone https://github.com/pytorch/examples.git {program[1]}" in text
    assert re.search(rf"git -C {program[1]} checkout --detach [0-9a-f]{{40}}", text)
    data = command.split()[-1]
    assert f"mkdir -p {data}/train/a" in text
    # torch 1.1 has no torchrun: the program starts its processes itself.
    rendered = next(iter(render([job], "podman").files.values())).decode()
    assert "torchrun" not in rendered


# -------------------------------------------------------------------------- gemfield-conda


def test_gemfield_is_torch_1_8_0_with_cuda_11_0_and_cudnn_8_0_5() -> None:
    (resolution,) = planned("gemfield-conda").variants
    assert (resolution.torch, resolution.python) == ("1.8.0", "3.8")
    assert resolution.cuda is not None
    assert (resolution.cuda.version, resolution.cuda.cudnn) == ("11.0", "8.0.5")
    assert resolution.base_image == "docker.io/nvidia/cuda:11.0.3-cudnn8-devel-ubuntu20.04"


def test_gemfield_packages_have_the_documents_names() -> None:
    plan = planned("gemfield-conda")
    packed = [step for step in plan.steps if step.id.startswith("package-")]
    outputs = {output for step in packed for output in step.outputs}
    names = {output.rsplit("/", 1)[-1] for output in outputs}
    assert "pytorch-1.8.0-py3.8_cuda11.0.221_cudnn8.0.5_0.tar.bz2" in names
    assert "magma-cuda110-2.5.2-1.tar.bz2" in names
    assert all("/linux-64/" in output for output in outputs)


def test_gemfield_builds_with_static_cudnn_and_nccl_and_compressed_fatbins() -> None:
    env = dict(compiling(planned("gemfield-conda"), "torch").env)
    assert env["USE_STATIC_CUDNN"] == "1"
    assert env["USE_STATIC_NCCL"] == "1"
    assert env["NCCL_ROOT_DIR"] == "/usr/local/cuda"
    assert env["TORCH_CUDA_ARCH_LIST"] == "6.1;7.0;7.5;8.0"
    assert env["TORCH_NVCC_FLAGS"] == "-Xfatbin -compress-all"
    assert env["PYTORCH_BUILD_VERSION"] == "1.8.0"


def test_gemfield_builds_magma_first_with_its_arch_flags_and_patch() -> None:
    plan = planned("gemfield-conda")
    magma = compiling(plan, "magma")
    flags = dict(magma.env)["CUDA_ARCH_LIST"]
    for arch in ("60", "61", "70", "75", "80"):
        assert f"-gencode arch=compute_{arch},code=sm_{arch}" in flags
    assert "sm_86" not in flags, "CUDA 11.0 does not know it"
    patch = next(step for step in plan.steps if (step.kind, step.project) == ("patch", "magma"))
    assert any("cuda-pointer-attributes" in name for name in patch.inputs)
    order = [step.id for step in plan.steps]
    torch = next(step for step in plan.steps if step.project == "torch" and magma.id in step.needs)
    assert order.index(magma.id) < order.index(torch.id)
    assert dict(torch.env)["MAGMA_HOME"].startswith("@/")


def test_gemfield_sets_the_rpaths_the_document_lists() -> None:
    files = render_conda(planned("gemfield-conda"))
    script = files["pytorch/build.sh"].decode()
    assert "--set-rpath '$ORIGIN:$ORIGIN/lib:$ORIGIN/../../..' " in script
    assert "--set-rpath '$ORIGIN:$ORIGIN/../../../..' " in script
    assert "--force-rpath" in script
    # What MAGMA is built with comes from conda, too.
    assert "- cmake\n" in files["magma-cuda110/recipe.yaml"].decode()


def test_gemfield_is_linked_to_mkl_and_holds_caffe2() -> None:
    plan = planned("gemfield-conda")
    env = dict(compiling(plan, "torch").env)
    assert (env["BLAS"], env["BUILD_CAFFE2"], env["BUILD_CAFFE2_OPS"]) == ("MKL", "1", "1")
    environment = next(step for step in plan.steps if step.kind == "environment")
    assert env["CMAKE_LIBRARY_PATH"] == f"@/{environment.outputs[0]}/lib"
    assert env["CMAKE_INCLUDE_PATH"] == f"@/{environment.outputs[0]}/include"
    # CMake would take the environment's own ninja, which does not compile in batches.
    assert "CMAKE_PREFIX_PATH" not in env
    assert any("mkl-static==2022.2.1" in command for command in environment.commands)
    # conda-forge has mkl-static 2022.2.1, then 2024.2.0 and newer, and none before:
    # https://anaconda.org/conda-forge/mkl-static/files
    assert b"- mkl-static ==2022.2.1\n" in render_conda(plan)["pytorch/recipe.yaml"]
    packed = next(step for step in plan.steps if step.id == "package-conda-gemfield-conda")
    assert not [name for name in arguments(packed, CondaSpec).depends if "blas" in name]


def test_a_conda_package_requires_the_blas_that_its_container_linked(tmp_path: Path) -> None:
    recipe = tmp_path / "plain.toml"
    text = find_preset("gemfield-conda").path.read_text(encoding="utf-8")
    recipe.write_text(text.replace('mkl = "static"', ""), encoding="utf-8")
    read = load_recipe(recipe)
    (variant,) = expand(read.recipe)
    resolution = resolve(variant, shipped(), HOST, read.files)
    assert isinstance(resolution, Resolution)
    plan = make_plan(read.recipe, [resolution], shipped(), __version__)
    packed = next(step for step in plan.steps if step.id.startswith("package-conda-"))
    assert "libopenblas" in arguments(packed, CondaSpec).depends
    files = dockerfile_context(plan, read.recipe, __version__)
    assert b"- libopenblas\n" in files["conda/out/pytorch/recipe.yaml"]


def test_gemfield_dockerfile_makes_the_conda_packages_of_the_same_build() -> None:
    recipe = loaded("gemfield-conda").recipe
    files = dockerfile_context(planned("gemfield-conda"), recipe, __version__)
    text = files["Dockerfile"].decode()
    stage = text[text.index("FROM verified AS conda") : text.index("FROM scratch AS wheels")]
    copied = re.findall(r"^COPY (conda/\S+) \1$", stage, re.MULTILINE)
    assert set(copied) == {name for name in files if name.startswith("conda/")}
    assert "pytorch-1.8.0-py3.8_cuda11.0.221_cudnn8.0.5_0.tar.bz2" in stage
    assert "magma-cuda110-2.5.2-1.tar.bz2" in stage
    # Where no driver is, the package could else not be tried out.
    assert stage.count("export CONDA_OVERRIDE_CUDA=11.0") == 2
    assert "COPY --from=conda /opt/torchsmith/channel/out /" in stage
    assert b"../../../dist/out/torch-1.8.0-" in files["conda/out/pytorch/recipe.yaml"]


def test_gemfield_makes_a_wheel_too_and_uploads_without_writing_the_token() -> None:
    plan = planned("gemfield-conda")
    assert compiling(plan, "torch").outputs == (
        "dist/gemfield-conda/torch-1.8.0-cp38-cp38-linux_x86_64.whl",
    )
    upload = next(step for step in plan.steps if step.kind == "publish")
    assert upload.secrets == ("ANACONDA_TOKEN",)
    assert arguments(upload, Shipment).accounts.anaconda_user == "gemfield"
    lines = shell_lines(plan, upload)
    assert any("anaconda upload --user gemfield --force" in command for command in lines)
    assert any("ANACONDA_TOKEN:?is unset" in command for command in lines)


# -------------------------------------------------------------------------- training-image


def test_training_image_has_the_companions_that_match_torch_1_9_1() -> None:
    (resolution,) = planned("training-image").variants
    versions = {item.package: item.version for item in resolution.companions}
    assert versions == {"torchvision": "0.10.1", "torchtext": "0.10.1", "torchaudio": "0.9.1"}
    assert resolution.cuda is not None
    assert resolution.cuda.arch_list == "8.6"


def test_training_image_gives_alice_and_bob_their_own_image_of_one_build() -> None:
    plan = planned("training-image")
    images = [step for step in plan.steps if step.kind == "image"]
    assert [step.title for step in images] == [
        "Build the image pytorch_source:train",
        "Build the image pytorch_source:train_alice",
        "Build the image pytorch_source:train_bob",
        "Keep the wheels as the image pytorch_source:wheels",
    ]
    assert len([step for step in plan.steps if step.kind == "compile"]) == 4
    text = dockerfile("training-image")
    alice = text[text.index("AS train-train_alice") : text.index("AS train-train_bob")]
    assert "ARG UID=1001" in alice
    assert "TZ=America/Los_Angeles" in alice
    assert "USER alice" in alice
    assert "FROM shared AS train-train_bob" in text


def test_training_image_takes_the_callers_user_and_the_documents_time_zone() -> None:
    plan = planned("training-image")
    train = next(step for step in plan.steps if step.id == "image-train-train-training-image")
    assert "UID" in arguments(train, ImageTask).caller
    assert any('UID="$(id -u)"' in command for command in shell_lines(plan, train))
    text = dockerfile("training-image")
    assert "TZ=Asia/Seoul" in text
    # As for the user's numbers, whoever builds may say another one.
    assert 'ENV TZ="$TZ"' in text
    assert "FROM scratch AS wheels" in text
    # Each image tells whoever runs it, without the recipe at hand.
    assert text.count("dev.torchsmith.shm-size=8G") == 4


# ------------------------------------------------------------------------------ jetson-tx2


def test_jetson_is_an_aarch64_wheel_for_python_3_5() -> None:
    (resolution,) = planned("jetson-tx2").variants
    assert resolution.wheel == "torch-1.1.0-cp35-cp35m-linux_aarch64.whl"
    assert resolution.cuda is not None
    assert resolution.cuda.arch_list == "6.2"
    assert resolution.jetpack == "3.3"


def test_jetson_script_names_every_package_that_the_dockerfile_installs() -> None:
    script = render_script(planned("jetson-tx2"), __version__)
    said = " ".join(line.removeprefix("#") for line in script.splitlines()[:20])
    for package in ("libopenblas-dev", "libatlas-dev", "checkinstall", "protobuf-compiler"):
        assert package in said
    toolchain = dockerfile("jetson-tx2").partition("---- sources")[0]
    names = set(re.findall(r"^ {8}([a-z0-9+.-]+);? ", toolchain, re.MULTILINE))
    assert {"cmake", "python3-dev", "libffi-dev"} <= names
    assert not names - set(said.split())


def test_jetson_dockerfile_says_at_once_that_cuda_is_on_the_board_alone() -> None:
    text = dockerfile("jetson-tx2")
    guard = text.index("test -x /usr/local/cuda/bin/nvcc || ")
    assert "JetPack 3.3 installs it on the board" in text[:guard].replace("\n# ", " ")
    assert guard < text.index("git -C sources/torch-1.1.0")


def test_jetson_compiles_more_than_the_board_holds_and_that_is_said() -> None:
    (resolution,) = planned("jetson-tx2").variants
    said = [caution.message for caution in resolution.cautions]
    assert "compiling takes about 40 GB, and the Jetson TX2 has 32 GB of its own" in said


@pytest.mark.parametrize("name", ["orion-vgpu", "jetson-tx2"])
def test_python_3_5_gets_the_last_cffi_that_was_made_for_it(name: str) -> None:
    (resolution,) = planned(name).variants
    assert "cffi<1.15" in resolution.requires


@pytest.mark.parametrize("name", ["orion-vgpu", "jetson-tx2"])
def test_python_3_5_gets_the_same_numpy_wherever_it_gets_one(name: str) -> None:
    plan = planned(name)
    texts = [dockerfile(name), render_script(plan, __version__)]
    lines = [line for text in texts for line in text.splitlines() if "pip install" in line]
    asking = [line for line in lines if "numpy" in line]
    assert len(asking) >= 5
    assert all("'numpy<1.18'" in line for line in asking), asking
    for step in plan.steps:
        if step.kind == "verify":
            assert step.task is not None
            assert isinstance(step.task.arguments, Expects)
            assert step.task.arguments.numpy == ("numpy<1.18",)


def test_jetson_finds_cudnn_where_the_document_says() -> None:
    env = dict(compiling(planned("jetson-tx2"), "torch").env)
    assert env["CUDNN_INCLUDE_DIR"] == "/usr/include"
    assert env["CUDNN_LIB_DIR"] == "/usr/lib/aarch64-linux-gnu"
    assert env["USE_NCCL"] == "0"


def test_jetson_is_patched_to_512_threads_and_without_nccl() -> None:
    plan = planned("jetson-tx2")
    patch = next(step for step in plan.steps if step.kind == "patch")
    text = b"\n".join(plan.files[name] for name in patch.inputs).decode()
    added = [line for line in text.splitlines() if line.startswith("+")]
    assert any("CUDA_NUM_THREADS = 512" in line for line in added)
    assert "aten/src/THCUNN/common.h" in text
    assert "aten/src/ATen/cuda/detail/KernelUtils.h" in text
    assert "aten/src/ATen/cuda/CUDAContext.cpp" in text
    assert "tools/setup_helpers/nccl.py" in text
    assert all("--dry-run" in command for command in patch.commands if "||" in command)


def test_jetson_says_that_magma_is_absent_and_checks_how_c_is_named() -> None:
    plan = planned("jetson-tx2")
    (resolution,) = plan.variants
    said = " ".join(caution.message for caution in resolution.cautions)
    assert "no magma" in said
    assert "no nccl" in said
    verify = next(step for step in plan.steps if step.kind == "verify")
    assert "EXTENSION_SUFFIXES" in " ".join(shell_lines(plan, verify))


# --------------------------------------------------------------------------------- openpai


def test_openpai_builds_base_and_run_image_and_pushes() -> None:
    plan = planned("openpai")
    titles = [step.title for step in plan.steps]
    assert (
        "Build the base image pai.build.base:hadoop2.7.2-cuda8.0-cudnn6-devel-ubuntu16.04" in titles
    )
    push = next(step for step in plan.steps if step.kind == "publish")
    assert arguments(push, Delivery).images
    assert any(" push " in line for line in shell_lines(plan, push))
    assert not [step for step in plan.steps if step.kind == "compile"]
    files = dockerfile_context(plan, loaded("openpai").recipe, __version__)
    # Of the packages that the deleted nvidia/cuda:8.0-cudnn6-devel-ubuntu16.04 was made of.
    assert b"FROM docker.io/library/ubuntu:16.04" in files["Dockerfile.base"]
    assert b"libcudnn6-dev=6.*+cuda8.0" in files["Dockerfile.base"]
    run = files["Dockerfile"].decode()
    bases = {line.split()[1] for line in run.splitlines() if line.startswith("FROM ")}
    assert bases == {
        "pai.build.base:hadoop2.7.2-cuda8.0-cudnn6-devel-ubuntu16.04",
        "toolchain",
        "shared",
    }
    assert "git clone https://github.com/pytorch/examples.git" in run


def test_openpai_torch_is_built_for_the_cuda_of_its_base_image() -> None:
    run = dockerfile("openpai")
    (wheel,) = re.findall(r"--index-url https://download\.pytorch\.org/whl/(\w+) (\S+);", run)
    # Those of before 1.2 bear no label of their CUDA.
    assert wheel == ("cu80", "torch==1.0.1.post2")


def test_openpai_programs_are_those_of_its_torchs_time_and_find_their_data() -> None:
    run = dockerfile("openpai")
    assert re.search(r"git -C /examples checkout --detach [0-9a-f]{40}", run)
    # mnist/main.py looks into ../data; the server this torchvision asks is gone.
    assert "/examples/data/MNIST/raw" in run
    assert run.count("ossci-datasets.s3.amazonaws.com/mnist/") == 1


def test_openpai_base_image_holds_what_pais_own_held() -> None:
    files = dockerfile_context(planned("openpai"), loaded("openpai").recipe, __version__)
    base = files["Dockerfile.base"].decode()
    for package in ("python", "python-pip", "openjdk-8-jdk", "openssh-server", "libcupti-dev"):
        assert f"        {package}" in base
    for line in (
        "JAVA_HOME=/usr/lib/jvm/java-8-openjdk-amd64",
        "HADOOP_INSTALL=/usr/local/hadoop",
        "mv /usr/local/hadoop-2.7.2 /usr/local/hadoop",
        "/usr/local/hadoop/sbin",
    ):
        assert line in base


def test_openpai_says_that_user_stands_for_a_name() -> None:
    notes = render(load_jobs(find_preset("openpai").path), "openpai-v1").notes
    assert sum("USER may stand for a name of yours" in note for note in notes) == 2


@pytest.mark.parametrize(
    ("name", "folder", "gpus"),
    [("pytorch-mnist", "mnist", 1), ("pytorch-regression", "regression", 0)],
)
def test_openpai_jobs_are_the_documents(name: str, folder: str, gpus: int, tmp_path: Path) -> None:
    path = tmp_path / "job.toml"
    path.write_bytes(planned("openpai").files[f"jobs/openpai/{name}.toml"])
    (content,) = render(load_jobs(path), "openpai-v1").files.values()
    request = json.loads(content)
    assert request == {
        "jobName": name,
        "image": "USER/pai.run.pytorch",
        "taskRoles": [
            {
                "name": "main",
                "taskNumber": 1,
                "cpuNumber": 4,
                "memoryMB": 8192,
                "gpuNumber": gpus,
                "command": f"cd examples/{folder} && python main.py",
            }
        ],
    }


def test_a_torch_without_torchtext_is_refused_with_the_flag_that_leaves_it_out(run: Run) -> None:
    asked = ("plan", "--preset", "training-image", "--torch", "v2.6.0", "--python", "3.11")
    code, out, _ = run(*asked)
    assert code == 3
    assert "--with text=none" in out
    assert "--with text=none" not in run(*asked, "--with", "text=none")[1]


def test_the_documents_tags_are_taken_as_they_are_written(run: Run) -> None:
    tags = ("--with", "vision=v0.10.1", "--with", "text=v0.10.1", "--with", "audio=v0.9.1")
    code, out, _ = run("plan", "--preset", "training-image", "--torch", "v1.9.1", *tags)
    assert code == 0
    for title in ("torchvision 0.10.1", "torchtext 0.10.1", "torchaudio 0.9.1"):
        assert title in out


def test_the_time_zone_is_said_on_the_command_line(run: Run) -> None:
    loaded = load_recipe(find_preset("training-image").path)
    changed = with_training(loaded, timezone="Europe/Berlin").recipe.image
    assert changed is not None
    assert {item.timezone for item in changed.train} == {"Europe/Berlin"}
    words = ("image", "build", "--preset", "training-image", "--dry-run", "--timezone", "Mars/City")
    code, _, err = run(*words)
    assert code == 2
    assert "--timezone: 'Mars/City' is not a time zone" in err


def test_one_line_says_all_that_the_documents_make_takes(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # What would be built can be said where no container tool is.
    monkeypatch.setenv("PATH", str(tmp_path))
    words = ("image", "build", "--preset", "training-image", "--dry-run")
    tags = ("--with", "vision=v0.10.1", "--with", "text=v0.10.1", "--with", "audio=v0.9.1")
    mine = ("--gpu", "7.5; 8.6", "--torch", "v1.9.1", *tags, "--timezone", "America/Los_Angeles")
    code, out, err = run(*words, *mine, "--only", "train", "--tag", "train_torch191")
    assert code == 0, err
    assert "torch-1.9.1+cu111.sm75.sm86-cp38" in out
    assert "Build the image pytorch_source:train_torch191" in out
    assert "train_bob" not in out


def test_flags_of_training_images_reach_those_they_mean() -> None:
    loaded = load_recipe(find_preset("training-image").path)
    changed = with_training(loaded, ["train"], tag="mine", uid=1500, gid=1600).recipe.image
    assert changed is not None
    numbers = {item.name: (item.uid, item.gid) for item in changed.train}
    assert numbers == {"mine": (1500, 1600), "train_alice": (1001, 1001), "train_bob": (1002, 1002)}


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["--tag", "mine"], "--tag is the name of one image"),
        (["--tag", "a/B", "--only", "train"], "--tag: 'a/B' is not the name of an image"),
        (["--tag", "train_bob", "--only", "train"], "train_bob is another image of this recipe"),
        (["--uid", "0"], "--uid"),
    ],
)
def test_flags_of_training_images_that_cannot_be_are_refused(
    words: list[str], told: str, run: Run
) -> None:
    code, _, err = run("image", "build", "--preset", "training-image", "--dry-run", *words)
    assert code == 2
    assert told in err


def test_without_cuda_a_preset_has_no_gpus_either(run: Run) -> None:
    code, out, err = run("plan", "--preset", "training-image", "--cuda", "none")
    assert code == 0, out + err
    assert "cpu" in out


def test_conda_packages_are_built_in_order_also_without_a_driver(tmp_path: Path) -> None:
    for name, content in render_conda(planned("gemfield-conda")).items():
        path = tmp_path / "conda" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)
    (tmp_path / "rattler-build").write_text('#!/bin/sh\necho "$CONDA_OVERRIDE_CUDA" "$@"\n')
    (tmp_path / "rattler-build").chmod(0o755)
    done = subprocess.run(
        ["sh", "conda/build-all.sh", "--no-test"],
        cwd=tmp_path,
        env={"PATH": f"{tmp_path}:/usr/bin:/bin"},
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout.splitlines() == [
        f"11.0 build --recipe {name}/recipe.yaml --output-dir output --no-test"
        for name in ("magma-cuda110", "pytorch")
    ]


def test_a_preset_finds_its_files_in_the_folder_one_is_in(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`image build --preset orion-vgpu` takes the client that lies here."""
    monkeypatch.chdir(tmp_path)
    assert load_recipe(find_preset("orion-vgpu").path).project.absolute() == tmp_path
    (tmp_path / "own").mkdir()
    recipe = tmp_path / "own/recipe.toml"
    recipe.write_text('torch = "2.6.0"\n')
    assert load_recipe(recipe).project == recipe.parent


# ------------------------------------------------- hardware that published wheels leave behind


@pytest.mark.parametrize(
    ("name", "gpus", "cuda", "platform"),
    [
        ("left-behind-gpus", "6.0;6.1;7.0", "12.9", "linux-x86_64"),
        ("jetson-orin", "8.7", "13.2", "linux-aarch64"),
        ("dgx-spark", "12.1", "13.0", "linux-aarch64"),
    ],
)
def test_left_behind_hardware_is_planned_to_the_end(
    name: str, gpus: str, cuda: str, platform: str
) -> None:
    plan = planned(name)
    (resolution,) = plan.variants
    assert (resolution.cuda and resolution.cuda.version, resolution.platform) == (cuda, platform)
    env = dict(compiling(plan, "torch").env)
    configured = dict(plan.steps[-3].env) | env
    assert configured["TORCH_CUDA_ARCH_LIST"] == gpus
    assert [step.kind for step in plan.steps][-2:] == ["verify", "package"]
    assert render_script(plan, __version__).count("TORCH_CUDA_ARCH_LIST") > 0

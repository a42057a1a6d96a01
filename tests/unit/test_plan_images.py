"""What the Dockerfiles promise: no secret in a layer, labels last, one torch for every person."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from tests.plans import arguments, shell_lines
from tests.unit.conftest import Run

from torchsmith.errors import UsageError
from torchsmith.facts.files import shipped
from torchsmith.host.models import Host
from torchsmith.images.select import image_steps
from torchsmith.plan.build import make_plan
from torchsmith.plan.images import ImageTask, split_name, task_of, with_image_options
from torchsmith.plan.models import Plan
from torchsmith.plan.render.dockerfile import dockerfile_context
from torchsmith.plan.render.instructions import apt_libraries
from torchsmith.recipe.load import parse_recipe
from torchsmith.recipe.matrix import expand
from torchsmith.recipe.models import Recipe
from torchsmith.resolve.models import Resolution
from torchsmith.resolve.resolve import resolve

pytestmark = pytest.mark.unit

HEAD = """
torch = { release = "2.13.0", use = "wheel" }
python = "3.11"
system = "debian-12"
"""
TAIL = """
[[companions.extension]]
name = "near"
git = { url = "https://example.org/near.git", ref = "main" }
"""


def plan_of(image: str, more: str = TAIL) -> tuple[Plan, Recipe]:
    loaded = parse_recipe(f"{HEAD}[image]\n{image}\n{more}", "test", None)
    facts = shipped()
    host = Host(platform="linux-x86_64", system="debian-12")
    outcomes = [resolve(item, facts, host, loaded.files) for item in expand(loaded.recipe)]
    resolved = [item for item in outcomes if isinstance(item, Resolution)]
    assert len(resolved) == len(outcomes), outcomes
    return make_plan(loaded.recipe, resolved, facts, "test"), loaded.recipe


def dockerfile(image: str, more: str = TAIL) -> str:
    return dockerfile_context(*plan_of(image, more), "test")["Dockerfile"].decode()


def stage(text: str, name: str) -> str:
    return re.split(r"^# ---- ", text.split(f" AS {name}\n")[1], flags=re.MULTILINE)[0]


PEOPLE = """
train = [
  { name = "alice", user = "alice", uid = 1001, gid = 1001 },
  { name = "bob", user = "bob", uid = 1002, gid = 1002 },
]
"""


def test_every_person_starts_from_the_stage_that_has_torch() -> None:
    text = dockerfile(PEOPLE)
    assert text.count("COPY --from=install /opt/venv") == 1
    assert "FROM shared AS train-alice" in text
    assert "FROM shared AS train-bob" in text


def test_labels_stand_last_so_that_no_layer_changes_with_them() -> None:
    text = dockerfile(PEOPLE)
    assert "LABEL" not in stage(text, "shared")
    for name in ("runtime", "train-alice", "train-bob"):
        body = stage(text, name)
        after = body[body.index("LABEL org.opencontainers.image.title") :]
        assert "RUN" not in after
        assert "dev.torchsmith.torch=2.13.0" in after
        assert re.search(r"dev\.torchsmith\.recipe-sha256=[0-9a-f]{64}\b", after)


def test_an_upload_makes_no_other_image() -> None:
    assert dockerfile(PEOPLE) == dockerfile(PEOPLE, f'{TAIL}[publish]\nindex = "index"\n')
    assert dockerfile(PEOPLE) != dockerfile(PEOPLE.replace("1002", "1003"))


def test_secrets_are_mounts_and_nothing_else() -> None:
    text = dockerfile('secrets = ["INDEX_TOKEN"]\nrun = ["fetch"]\npip = ["private"]')
    body = stage(text, "shared")
    assert body.count("--mount=type=secret,id=INDEX_TOKEN") == 2
    assert 'INDEX_TOKEN="$(cat /run/secrets/INDEX_TOKEN)"' in body
    assert not re.search(r"^(ARG|ENV).*INDEX_TOKEN", text, re.MULTILINE)
    plan = plan_of('secrets = ["INDEX_TOKEN"]')[0]
    step = image_steps(plan)[0]
    assert step.secrets == arguments(step, ImageTask).secrets == ("INDEX_TOKEN",)
    assert "--secret id=INDEX_TOKEN,env=INDEX_TOKEN" in shell_lines(plan, step)[-1]


def test_a_health_check_is_there_only_if_asked_for() -> None:
    assert "HEALTHCHECK" not in dockerfile("")
    text = dockerfile("healthcheck = \"python -c 'import torch'\"")
    assert 'CMD ["sh", "-c", "python -c \'import torch\'"]' in text


def test_a_locale_that_is_not_cs_is_made() -> None:
    text = dockerfile('train = [{ name = "a", locale = "de_DE.UTF-8" }]')
    assert "localedef -i de_DE -f UTF-8 de_DE.UTF-8" in text
    assert "        locales; " in text
    assert "localedef" not in dockerfile('train = [{ name = "a" }]')


def test_apt_takes_its_turn_at_a_cache_that_no_layer_keeps() -> None:
    text = dockerfile('apt = ["git"]\ntrain = [{ name = "a", apt = ["vim"] }]')
    mounts = text.count("--mount=type=cache,target=/var/cache/torchsmith-apt ")
    assert mounts == text.count("flock /var/cache/torchsmith-apt/turn apt-get") == 4


def test_a_port_is_no_tag() -> None:
    assert split_name("localhost:5000/lab") == ("localhost:5000/lab", "")
    assert split_name("localhost:5000/lab:v1") == ("localhost:5000/lab", "v1")
    assert split_name("lab") == ("lab", "")
    names = [task_of(step).name for step in image_steps(plan_of('name = "host:5000/lab:v1"')[0])]
    assert names == ["host:5000/lab:v1", "host:5000/lab:v1-wheels"]


def test_an_image_may_be_named_as_people_would() -> None:
    plan, _ = plan_of(f'name = "lab"\n{PEOPLE}')
    for name in ("lab:alice", "alice", "train-alice"):
        assert [task_of(step).name for step in image_steps(plan, only=[name])] == ["lab:alice"]
    assert len(image_steps(plan)) == 3
    with pytest.raises(UsageError, match="no image is named lab:alise") as caught:
        image_steps(plan, only=["lab:alise"])
    assert caught.value.hint == "Did you mean lab:alice?"
    with pytest.raises(UsageError, match="no variant"):
        image_steps(plan, variant="py27")


def test_how_the_engine_is_asked_changes_no_key_of_what_goes_in() -> None:
    plan, _ = plan_of('build = "wheels"')
    asked = with_image_options(plan, engine="docker", network="host", cache=False)
    task = task_of(image_steps(asked)[0])
    assert (task.engine, task.network, task.cache) == ("docker", "host", False)
    assert [step.key for step in asked.steps] == [step.key for step in plan.steps]
    assert task.wheels.endswith("/*.whl")


@pytest.mark.parametrize(
    ("train", "said"),
    [
        ('timezone = "Mars/Olympus"', "IANA time zone"),
        ("uid = 0", "greater than or equal to 1"),
        ('user = "a/b"', "a Linux user name: lower case, no slash"),
    ],
)
def test_a_person_who_cannot_be_is_refused_before_anything_is_built(
    run: Run, train: str, said: str
) -> None:
    Path("recipe.toml").write_text(f'{HEAD}[[image.train]]\nname = "a"\n{train}\n')
    code, _, complaint = run("image", "build")
    assert code == 2
    assert said in complaint
    assert "recipe.toml: line" in complaint


def test_a_recipe_without_an_image_says_how_to_ask_for_one(run: Run) -> None:
    code, _, complaint = run("image", "build", "--preset", "quickstart", "--dry-run")
    assert code == 2
    assert "[image]" in complaint


def cuda_dockerfile(wish: str) -> str:
    loaded = parse_recipe(f"{wish}\n[image]\nbuild = 'inside'\n", "test", None)
    facts = shipped()
    host = Host(platform="linux-x86_64", system="debian-12")
    (outcome,) = (resolve(item, facts, host) for item in expand(loaded.recipe))
    assert isinstance(outcome, Resolution), outcome
    plan = make_plan(loaded.recipe, [outcome], facts, "test")
    return dockerfile_context(plan, loaded.recipe, "test")["Dockerfile"].decode()


UBUNTU = 'torch = "2.6.0"\npython = "3.10"\nsystem = "ubuntu-22.04"\n'
OLD = 'torch = "1.1.0"\npython = "3.5"\nsystem = "ubuntu-16.04"\n'


def test_the_base_of_a_deleted_image_checks_nvidia_s_key_before_it_trusts_it() -> None:
    text = stage(cuda_dockerfile(f'{OLD}cuda = "9.0"'), "toolchain")
    key = text.index("EB693B3035CD5710E231E123A4B469963BF863CC")
    assert text.index("apt-transport-https") < key < text.index("cuda-minimal-build-9-0")
    assert "ln -s cuda-9.0 /usr/local/cuda" in text
    assert "ENV PATH=/usr/local/cuda/bin:$PATH" in text


def test_the_runtime_of_a_deleted_image_has_its_libraries_and_no_compiler() -> None:
    text = stage(cuda_dockerfile(f'{OLD}cuda = "9.0"'), "shared")
    assert "cuda-libraries-9-0" in text
    assert "minimal-build" not in text
    assert "NVIDIA_VISIBLE_DEVICES=all" in text


def test_an_image_has_the_libraries_torch_was_linked_with_and_tries_it() -> None:
    wish = 'torch = "2.6.0"\npython = "3.13"\nsystem = "debian-13"\ncuda = "none"\n'
    text = stage(cuda_dockerfile(f'{wish}[source]\nkind = "debian"'), "shared")
    asked = text.index("apt-cache depends --important")
    assert asked < text.index("libcpp-httplib-dev") < text.index("xargs -r flock")
    assert text.index("COPY --from=install") < text.index("import torch")


def test_libraries_that_are_held_at_a_release_are_not_asked_for_again() -> None:
    (asked,) = apt_libraries(["libnccl-dev", "libgloo-dev", "make"], "apt-get install")
    assert asked.startswith("apt-cache depends --important libgloo-dev |")
    assert asked.endswith("| xargs -r apt-get install")
    assert apt_libraries(["libnccl-dev", "make"], "apt-get install") == []


def test_debian_s_cuda_is_in_its_image_with_non_free_and_in_usr() -> None:
    text = cuda_dockerfile(
        'torch = "2.6.0"\npython = "3.13"\nsystem = "debian-13"\ngpus = ["8.7"]\n'
        'cuda = { version = "12.4", toolkit = "debian" }'
    )
    base = stage(text, "toolchain")
    assert "FROM docker.io/library/debian:13 AS toolchain" in text
    assert base.index("contrib non-free") < base.index("nvidia-cuda-toolkit")
    assert "g++-13" in base
    assert "export CUDA_HOME=/usr;" in text
    assert "libcudart12" in stage(text, "shared")


@pytest.mark.parametrize(
    ("wish", "word"),
    [
        ('cuda = { version = "12.6", nccl = "2.21" }', "'libnccl2=2.21.*+cuda12.6'"),
        ('cuda = { version = "12.6", nccl = "2.21.5" }', "'libnccl-dev=2.21.5-*+cuda12.6'"),
    ],
)
def test_a_release_of_nccl_that_is_asked_for_is_installed_over_the_one_held(
    wish: str, word: str
) -> None:
    text = stage(cuda_dockerfile(UBUNTU + wish), "toolchain")
    assert word in text
    assert "--allow-change-held-packages" in text


def test_nccl_without_a_release_stays_as_the_image_has_it() -> None:
    text = cuda_dockerfile(f'{UBUNTU}cuda = "12.6"\nfeatures.nccl = "system"')
    base = stage(text, "toolchain")
    assert '"libnccl-dev=${nccl:-*+cuda12.6}"' in base
    assert "--allow-change-held-packages" not in base


def test_the_base_is_complete_for_every_step() -> None:
    text = stage(cuda_dockerfile(f'{UBUNTU}cuda = "12.6"'), "toolchain")
    words = {word.rstrip(";") for word in text.split()}
    assert {"bash", "ccache", "g++", "gcc", "git", "make", "ninja-build", "patch"} <= words
    assert {"python3", "python3-dev", "python3-venv"} <= words


def test_a_python_beside_the_distributions_own_is_installed_by_its_number() -> None:
    text = stage(
        cuda_dockerfile('torch = "1.10.2"\npython = "3.7"\nsystem = "ubuntu-18.04"'), "toolchain"
    )
    words = {word.rstrip(";") for word in text.split()}
    assert {"python3.7", "python3.7-dev", "python3.7-venv"} <= words
    assert "python3-dev" not in words


def test_a_distribution_whose_servers_are_gone_takes_packages_from_the_archive() -> None:
    text = cuda_dockerfile('torch = "1.8.0"\npython = "3.7"\nsystem = "debian-10"')
    for name in ("toolchain", "shared"):
        body = stage(text, name)
        assert 0 < body.index("http://archive.debian.org") < body.index("apt-get update")

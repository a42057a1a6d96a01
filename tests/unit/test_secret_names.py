"""Secrets are known by name and by form, and no recipe may hold one."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from torchsmith.errors import RecipeError
from torchsmith.recipe.load import parse_recipe
from torchsmith.secret_names import holds_secret, is_secret_name

pytestmark = pytest.mark.unit

TOKEN = "ghp_" + "a1B2" * 9


@pytest.mark.parametrize(
    "name",
    [
        *("GITHUB_TOKEN", "GH_TOKEN", "HF_TOKEN", "TWINE_PASSWORD", "GH_PAT", "gh_pat", "GH_PAT_2"),
        *("DB_PASS", "DB_PASS1", "PASSPHRASE", "GPG_PASSPHRASE", "DB_PWD", "SENTRY_DSN", "APIKEY"),
        *("AWS_SECRET_ACCESS_KEY", "AWS_ACCESS_KEY_ID", "AZURE_STORAGE_CONNECTION_STRING"),
        *("NPM_AUTH", "CI_JOB_JWT", "SESSION_COOKIE", "SLACK_WEBHOOK_URL", "UV_PUBLISH_TOKEN"),
        *("DOCKER_AUTH_CONFIG", "PGPASS", "AUTHORIZATION"),
        *("GOOGLE_CREDENTIALS", "REGISTRY_CREDS", "SECRETS", "PASSWORD", "TOKENS", "aws.secret"),
    ],
)
def test_a_secret_is_known_by_its_name(name: str) -> None:
    assert is_secret_name(name)


@pytest.mark.parametrize(
    "name",
    [
        *("PWD", "OLDPWD", "PATH", "MANPATH", "HOME", "LANG", "TERM", "DISPLAY", "LS_COLORS"),
        *("TOKENIZERS_PARALLELISM", "KEYBOARD", "TLS_KEY_FILE", "SSH_AUTH_SOCK", "XAUTHORITY"),
        *("USE_CUDA", "TORCH_CUDA_ARCH_LIST", "CMAKE_PREFIX_PATH", "MAX_JOBS", "NVCC_APPEND_FLAGS"),
        *("BYPASS", "COMPASS", "PASS", "PAT", "AUTHOR", "GIT_AUTHOR_NAME", "KEYRING_DIR", "", "_"),
        *("FLASH_ATTENTION_FORCE_BUILD", "PYTORCH_BUILD_VERSION", "HTTPS_PROXY", "PIP_INDEX_URL"),
    ],
)
def test_what_only_sounds_alike_is_no_secret(name: str) -> None:
    assert not is_secret_name(name)


@pytest.mark.parametrize(
    "text",
    [
        "https://TOKEN@example.org/x",
        "git clone https://x-access-token:abc@github.com/o/r",
        "ssh://me:hunter2@host/x",
        "postgres://u:p@db/x",
        "https://host/x?private_token=abc",
        "https://bucket/x?X-Amz-Signature=0f",
        "https://conda.example.org/t/ab-12345678-cd/main",
        TOKEN,
        f"--token={TOKEN}",
        "AKIAABCDEFGHIJKLMNOP",
        "nvapi-" + "a1B2" * 12,
        "dckr_pat_" + "a1B2" * 6,
        "WANDB=wandb_v1_" + "a1B2" * 9,
        "https://host/x#access_token=abc",
        "export WANDB_API_KEY=0123456789abcdef && wandb login",
        "PGPASSWORD='correct-horse' psql",
        "curl -H 'Authorization: Bearer 0123456789abcdef' https://example.org",
        "-----BEGIN OPENSSH PRIVATE KEY-----",
    ],
)
def test_a_secret_is_known_by_its_form(text: str) -> None:
    assert holds_secret(text)


@pytest.mark.parametrize(
    "text",
    [
        "https://example.org/x@y",
        "git clone https://$TOKEN@github.com/o/r",
        "git clone https://user:${TOKEN}@github.com/o/r",
        "ssh://git@github.com/o/r",
        "git@github.com:o/r",
        "https://host/x?token=$TOKEN",
        "https://host/x?key_file=a&v=1",
        "mail me@example.org: see https://example.org",
        "ghp_short",
        "export WANDB_API_KEY=$KEY && wandb login",
        'PGPASSWORD="${PASSWORD}" psql',
        "SSH_KEY=/run/secrets/key TOKEN=@/run/token",
        "--tokenizer=some_long_name_of_one tokens_per_batch=100000000 MAX_TOKENS=1000000000000",
        "curl -H 'Authorization: Bearer $TOKEN' https://example.org",
        "apt-key add key.asc && python train.py --key=validation_loss",
        "https://[bad",
    ],
)
def test_what_holds_no_secret_passes(text: str) -> None:
    assert not holds_secret(text)


@pytest.mark.parametrize("part", ["://a", "https://", "eyJa.", "a/t/", "?a=", "x:", "ghp_", "@:/"])
def test_looking_for_secrets_takes_time_in_proportion(part: str) -> None:
    def seconds(count: int) -> float:
        text = part * count
        # Of this process: a busy machine takes no part.
        begin = time.process_time()
        holds_secret(text)
        return time.process_time() - begin

    seconds(100)
    # What grew by the square would take minutes.
    assert min(seconds(40_000) for _ in range(3)) < 2


SECRETS = {
    "build.env": f'[build]\nenv = {{ GITHUB_TOKEN = "{TOKEN}" }}',
    "build.env value": f'[build]\nenv = {{ WHERE = "https://{TOKEN}@host/" }}',
    "build.cmake": '[build]\ncmake = { MY_PASSWORD = "hunter2hunter2" }',
    "image.env": '[image]\nenv = { DB_PASS = "hunter2hunter2" }',
    "image.env value": f'[image]\nenv = {{ INDEX = "{TOKEN}" }}',
    "image.run": f'[image]\nrun = ["git clone https://{TOKEN}@host/x"]',
    "image.foundation": '[image.foundation]\nname = "a"\nfrom = "b"\nenv.A_TOKEN = "hunter2"',
    "source.url": f'[source]\nkind = "git"\nurl = "https://{TOKEN}@host/x"',
    "source.mirrors": f'[source]\nmirrors = ["https://host/x?access_token={TOKEN}"]',
    "description": f'description = "use {TOKEN}"',
    "extension": '[[companions.extension]]\nname = "x"\nfolder = "x"\nenv.HF_TOKEN = "hunter2"',
    "pip": f'[build]\npip = ["x @ https://{TOKEN}@host/x.whl"]',
}


@pytest.mark.parametrize("where", SECRETS)
def test_a_recipe_with_a_secret_is_refused_and_the_secret_not_repeated(where: str) -> None:
    text = SECRETS[where]
    head = 'torch = "2.6.0"\n'
    with pytest.raises(RecipeError) as refused:
        parse_recipe(head + text + "\n", "recipe.toml", Path())
    said = "\n".join(str(problem) for problem in refused.value.problems)
    assert TOKEN not in said
    assert "hunter2" not in said

"""Everything wrong with a recipe is said at once: where, what, and what was probably meant."""

from __future__ import annotations

from pathlib import Path

import pytest

from torchsmith.errors import RecipeError
from torchsmith.recipe.load import MAX_PROBLEMS, load_recipe, parse_recipe

pytestmark = pytest.mark.unit


def problems(text: str) -> list[str]:
    with pytest.raises(RecipeError) as caught:
        parse_recipe(text, "recipe.toml", None)
    return [str(problem) for problem in caught.value.problems]


def only(text: str) -> str:
    (problem,) = problems(text)
    return problem


@pytest.mark.parametrize(
    ("line", "said"),
    [
        (
            'system = "ubuntu-25.04"',
            "without it, the build is this machine's own",
        ),
        ('system = "alpine-3.20"', "apk add py3-torch"),
        ('platform = "macos-x86_64"', "pip install torch==2.2.2"),
        ('platform = "macos-arm64"', "MPS"),
    ],
)
def test_what_nothing_is_built_for_is_said_with_what_there_is(line: str, said: str) -> None:
    assert said in only(f'torch = "2.6.0"\n{line}\n')


@pytest.mark.parametrize(
    ("system", "meant"),
    [("ubuntu-25.10", "ubuntu-24.04"), ("debian-14", "debian-13"), ("debian-9", "debian-10")],
)
def test_the_distribution_to_build_in_instead_is_the_next_older_or_the_oldest(
    system: str, meant: str
) -> None:
    assert f"did you mean '{meant}'" in only(f'torch = "2.6.0"\nsystem = "{system}"\n')


@pytest.mark.parametrize(
    ("torch", "said"),
    [
        ("2.6.0.dev20241112+cu126", "release = '2.6.0', ref = the commit"),
        ("2.7.0a0+git1234abc", "release = '2.7.0', ref = the commit"),
        ("2.7.0rc1", "its tag: v2.7.0-rc1"),
        ("2.6.0+cu124", "release = '2.6.0', and cuda apart"),
        ("2.6.x", "expected a version number such as 2.6.0"),
    ],
)
def test_the_version_of_a_wheel_is_answered_with_what_to_write(torch: str, said: str) -> None:
    assert said in only(f'torch = "{torch}"\n')


def test_every_problem_is_reported_at_once_in_the_order_of_the_file() -> None:
    found = problems(
        'torhc = "2.6.0"\n'
        "python = 3.10\n"
        'gpus = ["RTX 309O"]\n'
        'board = "jetson-tx3"\n'
        'system = "ubuntu-20.40"\n'
        'profile = "relese"\n'
        "[features]\n"
        'ncll = "on"\n'
        'mkldnn = "maybe"\n'
        "[build]\n"
        "jobs = 0\n"
    )
    assert [line.split(":")[0] for line in found] == [
        "torch",
        *(f"line {number}" for number in (1, 2, 3, 4, 5, 6, 8, 9, 11)),
    ]
    wanted = ("torch", "torch", '"3.10"', "RTX 3090", "jetson-tx2", "ubuntu-20.04", "release")
    for problem, meant in zip(found, (*wanted, "nccl", "'on'", "0"), strict=True):
        assert meant in problem


def test_a_problem_shows_the_value_and_the_key() -> None:
    assert only('torch = "2.6"\n\n[build]\nmemory = "lots"\n') == (
        "line 4: build.memory: 'lots': expected a size like 8G or 512 MiB"
    )


def test_a_recipe_error_names_its_file(tmp_path: Path) -> None:
    path = tmp_path / "mine.toml"
    path.write_text("torch = 1\n")
    with pytest.raises(RecipeError) as caught:
        load_recipe(path)
    assert str(path) in caught.value.message


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ('[build]\npython = "3.11"', "line 3: build.python: does not belong here; it is"),
        ('user = "me"', "line 2: user: does not belong here; it is a key of [image.train]"),
        ('[[job]]\nname = "a"\ncpus = 2\nrole = [{command = "x"}]', "a key of [job.role]"),
        ('[build]\nmkldnn = "off"', "does not belong here; it is a key of [features]"),
        ('[image.foundation]\nname = "a"\nfrom = "b"\nfrmo = "b"', "(did you mean 'from'?)"),
        ('[companions]\ntorchvision = "match"', "(did you mean 'vision'?)"),
        ('[job]\nname = "a"', "[[job]]"),
        ("[packages]\nzzz = 1", "here it may be one of wheel, conda"),
    ],
)  # fmt: skip
def test_a_key_in_the_wrong_place_is_told_its_place(text: str, said: str) -> None:
    assert said in only(f'torch = "2.6"\n{text}\n')


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("torch = 2.6", 'must be text: write it in quotes, "2.6"'),
        ("torch = 2024-01-01", "2024-01-01: must be text or a table, not a date or time"),
        ("torch = true", "true: must be text or a table, not true or false"),
        ('torch = "2.6"\npython = 3.10', 'write it in quotes, "3.10"'),
        ('torch = "2.6"\ncpu = 07:32:00', "must be text, not a date or time"),
        ('torch = "2.6"\nname = []', "must be text, not a list"),
        ('torch = "2.6"\npackages = "conda"', "must be a table, not text"),
        ('torch = "2.6"\npackages.conda = "yes"', "must be true or false, not text"),
        ('torch = "2.6"\nbuild.jobs = 1.5', "must be a whole number, not one with a point"),
        ('torch = "2.6"\nbuild.jobs = nan', "must be a whole number"),
        ('torch = "2.6"\nbuild.jobs = true', "must be a whole number"),
        ('torch = "2.6"\nbuild.jobs = 0x' + "f" * 9999, "a number of 39,996 bits"),
        ('torch = "2.6"\npatches = "a.patch"', "must be a list, not text"),
        ('torch = ["2.6"]', "torch: is one; several are listed in [matrix]: torch = [...]"),
        ('torch = "2.6"\ncuda = ["12.4"]', "several are listed in [matrix]: cuda = [...]"),
        (
            'torch = "2.6"\ncuda = "latest"',
            "expected a CUDA release such as 12.6, or 'none' or 'host'",
        ),
        (
            'torch = "2.6"\n[[job]]\nname = "j"\n[[job.role]]\n'
            'command = "x glpat-a1B2c3D4e5F6g7H8"',
            "programs find it in their own configuration",
        ),
        ('torch = "2.6"\ngpus = []', "the list of GPUs is empty"),
        ('torch = "2.6"\ngpus = [true]', "true is not a GPU"),
    ],
)
def test_a_value_of_the_wrong_type_is_told_the_right_one(text: str, said: str) -> None:
    assert said in only(text)


@pytest.mark.parametrize(
    ("text", "lines"),
    [
        # The second entry of an array of tables, and an array in it.
        (
            '[[job]]\nname = "a"\n[[job.role]]\ncommand = "x"\n'
            '[[job]]\nname = "b"\n[[job.role]]\ncommand = "x"\n'
            '[[job.role]]\nname = "w"\ncommand = 1',
            [12],
        ),
        ('build = { jobs = 0, memory = "x" }', [2, 2]),
        ('patches = [\n  "a",\n  # ] comment [\n  "../b",\n]', [5]),
        ('description = """\n[build]\njobs = 0\n"""\n[build]\njobs = 0', [7]),
        ("description = '''\n\\\n'''\ncpu = 1", [5]),
        ('description = """a\\"""b\n""""\ncpu = 1', [4]),
        ("build.jobs = 0", [2]),
        ('build . "jobs" = 0', [2]),
        ('[  "build"  ]\n\'jobs\' = 0', [3]),
        ('["bu\\u0069ld"]\n"\\u006aobs" = 0', [3]),
        ("# [build]\n[build] # [x]\njobs = 0 # = 1", [4]),
        ("[build.env]\n# ]]\n\"a b\" = 'x'", [4]),
        ("[image]\n[[image.train]]\nname = 'a'\n[[image.train]]\nname = 'b'\nuid = 0", [7]),
        ("[matrix]\npython = ['3.11',\n'x',\n\n'y']", [4, 6]),
        ("[matrix]\ninclude = [\n{cpu = 1},\n{cpu = 'native'},\n{gpus = 'RTX 309O'},\n]", [4]),
        ("[matrix]\ninclude = [\n{cpu = 'native'},\n{gpus = 'RTX 309O'},\n]", [5]),
        ("features = { ncll = 'on' }", [2]),
        ("[build]\njobs = 0\n[build.env]\nA = 1\n[zzz]\nq = 1", [3, 5, 6]),
    ],
)  # fmt: skip
@pytest.mark.parametrize("newline", ["\n", "\r\n"])
def test_a_problem_tells_its_line(text: str, lines: list[int], newline: str) -> None:
    whole = f'torch = "2.6"\n{text}\n'.replace("\n", newline)
    assert [problem.split(":")[0] for problem in problems(whole)] == [
        f"line {number}" for number in lines
    ]


@pytest.mark.parametrize(
    ("text", "line"),
    [('torch = "2.6"\ntorch = "2.7"', 2), ("[build]\n[build]", 2), ("a = 1\n\nb = ", 3)],
)
def test_what_is_not_toml_is_told_its_line(text: str, line: int) -> None:
    assert only(text).startswith(f"line {line}: not valid TOML: ")


def test_a_key_written_twice_is_called_that() -> None:
    assert "written twice" in only('torch = "2.6"\ntorch = "2.7"')


def test_names_told_apart_by_name_must_differ() -> None:
    job = '[[job]]\nname = "a"\nrole = [{command = "x"}]\n'
    assert "line 2: job: entries 1 and 3 are both 'a'" in only(
        'torch = "2.6"\n' + job + job.replace('"a"', '"b"') + job
    )


def test_a_thousand_problems_are_cut_short() -> None:
    found = problems('torch = "2.6"\n' + "".join(f"key{index} = 1\n" for index in range(1000)))
    assert len(found) == MAX_PROBLEMS + 1
    assert found[-1] == "and there are more"


def test_a_long_value_is_shown_short() -> None:
    assert len(only('torch = "' + "9" * 100_000 + '"')) < 200


def test_what_a_terminal_would_obey_is_shown_escaped() -> None:
    found = "".join(
        problems(
            'torch = "\\u001b[2J"\n"\\u001b[1m" = 1\ncpu = "\\u202e"\n'
            '[features]\n"\\u0007" = "on"\n'
        )
    )
    assert found.isprintable()


def test_a_byte_order_mark_is_accepted(tmp_path: Path) -> None:
    path = tmp_path / "recipe.toml"
    path.write_bytes(b'\xef\xbb\xbftorch = "2.6.0"\r\n')
    assert load_recipe(path).recipe.torch.release == "2.6.0"


def test_text_that_may_not_stand_is_not_told_to_be_a_list() -> None:
    (problem,) = problems(
        'torch = "2.6"\n[[job]]\nname = "j"\n[[job.role]]\ncommand = "x glpat-a1B2c3D4e5F6g7H8"\n'
    )
    assert "a password or token stands in it" in problem
    assert "list" not in problem

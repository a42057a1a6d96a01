"""YAML as those read it who get it: Kubernetes' Go, OpenPAI's js-yaml."""

from __future__ import annotations

import pytest

from torchsmith import yaml_text

pytestmark = pytest.mark.unit

# What kubectl and js-yaml take for a number, a truth, a date or nothing where it has no quotes.
NOT_TEXT = ["1e-4", "08", "0o17", "1.e5", "+.5e3", "1_0e1", "12:30", "0x1F", "0b1", "-2", ".5"]
NOT_TEXT += ["y", "N", "yes", "on", "True", "null", "~", "2020-01-01", ".inf"]


@pytest.mark.parametrize("word", NOT_TEXT)
def test_text_stays_text_for_every_reader(word: str) -> None:
    text = yaml_text.write({"value": word, word: 1})
    assert text == f"value: '{word}'\n'{word}': 1\n"
    assert yaml_text.read(text) == {"value": word, word: 1}


@pytest.mark.parametrize("value", [7, 0, -2, 0.5, 1e-05, 1e20, True, None])
def test_values_have_no_quotes(value: float | bool | None) -> None:
    text = yaml_text.write({"value": value})
    assert "'" not in text
    assert yaml_text.read(text) == {"value": value}


def test_versions_and_names_have_no_quotes() -> None:
    for word in ("lab/torch:2.6", "9-rc", "1.2.3", "1.2.3a", "no-1", "/data", "v2"):
        assert yaml_text.write({"value": word}) == f"value: {word}\n"


@pytest.mark.parametrize(("text", "value"), [("1e-3", 0.001), ("2E5", 2e5), ("-1.5e2", -150.0)])
def test_a_number_without_a_dot_or_a_sign_is_one(text: str, value: float) -> None:
    assert yaml_text.read(f"lr: {text}") == {"lr": value}

"""Recipes: what is read and what is refused."""

from pathlib import Path

import pytest
from tests.modeling.training.recipes import LANGUAGE_MODEL, write_recipe

from ortolan.modeling.errors import RecipeError
from ortolan.modeling.training.recipe import LanguageModel, read_recipe


def test_a_recipe_is_read(tmp_path: Path) -> None:
    recipe = read_recipe(write_recipe(tmp_path, LANGUAGE_MODEL))
    assert recipe.task == LanguageModel()
    assert recipe.model["hidden_size"] == 32
    assert recipe.data == {"source": "data.py:read", "held_out": 3}
    assert recipe.training.learning_rate == 0.01
    assert recipe.training.precision == "fp32"


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("steps = 24", "steps = 24\nstep = 3", "unknown field `step`"),
        ("steps = 24\n", "", "missing required field `steps`"),
        ("steps = 24", 'steps = "24"', "Expected `int`, got `str`"),
        ("steps = 24", "steps = 0", "Expected `int` >= 1"),
        ("batch_size = 4", "batch_size = -1", "Expected `int` >= 1"),
        ("evaluate_every = 12", "evaluate_every = 0", "Expected `int` >= 1"),
        ("learning_rate = 1e-2", "learning_rate = 0.0", "Expected `float` > 0"),
        ("warmup_steps = 4", "warmup_steps = -1", "Expected `int` >= 0"),
        ("steps = 24", 'steps = 24\nprecision = "fp8"', "Invalid enum value 'fp8'"),
        ('"language-model"', '"rhyme"', "Invalid value 'rhyme'"),
        ('"language-model"', '"language-model"\nhidden = 0.2', "unknown field `hidden`"),
        ("[data]", "[data", "expected a recipe"),
        ("[tokenizer]", "[tokenizers]", "unknown field `tokenizers`|required field `tokenizer`"),
    ],
)
def test_a_wrong_recipe_is_an_error(tmp_path: Path, old: str, new: str, message: str) -> None:
    with pytest.raises(RecipeError, match=message) as caught:
        read_recipe(write_recipe(tmp_path, LANGUAGE_MODEL, old, new))
    assert "recipe.toml: " in str(caught.value)


def test_an_absent_recipe_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(RecipeError, match="expected a recipe, got No such file"):
        read_recipe(tmp_path / "recipe.toml")


def test_a_recipe_that_is_not_text_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "recipe.toml").write_bytes(b"\xff\xfe")
    with pytest.raises(RecipeError, match="expected a recipe"):
        read_recipe(tmp_path / "recipe.toml")

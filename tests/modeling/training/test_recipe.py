"""Reading a recipe, and its errors."""

from pathlib import Path

import pytest
from tests.modeling.training.recipes import LANGUAGE_MODEL, write_recipe

from ortolan.modeling.errors import RecipeError
from ortolan.modeling.training.recipe import read_recipe


def test_a_recipe_is_read(tmp_path: Path) -> None:
    recipe = read_recipe(write_recipe(tmp_path, LANGUAGE_MODEL))
    assert recipe.task == {"name": "language-model"}
    assert recipe.model["hidden_size"] == 32
    assert recipe.data == {"source": "data.py:read", "held_out": 3}
    assert recipe.training.learning_rate == 0.01
    assert recipe.training.precision == "fp32"


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("steps = 24", "steps = 24\nstep = 3", "step`"),
        ("steps = 24\n", "", "steps`"),
        ("steps = 24", 'steps = "24"', "`int`, got `str`"),
        ("steps = 24", "steps = 0", "`int` >= 1"),
        ("batch_size = 4", "batch_size = -1", "`int` >= 1"),
        ("evaluate_every = 12", "evaluate_every = 0", "`int` >= 1"),
        ("learning_rate = 1e-2", "learning_rate = 0.0", "`float` > 0"),
        ("warmup_steps = 4", "warmup_steps = -1", "`int` >= 0"),
        ("steps = 24", 'steps = 24\nprecision = "fp8"', "fp8"),
        ("[data]", "[data", "line"),
        ("[tokenizer]", "[tokenizers]", "tokenizer"),
    ],
)
def test_an_invalid_recipe_is_an_error(tmp_path: Path, old: str, new: str, message: str) -> None:
    with pytest.raises(RecipeError, match=rf"recipe\.toml: .*{message}"):
        read_recipe(write_recipe(tmp_path, LANGUAGE_MODEL, old, new))


@pytest.mark.parametrize("content", [None, b"\xff\xfe"])
def test_an_unreadable_recipe_is_an_error(tmp_path: Path, content: bytes | None) -> None:
    path = tmp_path / "recipe.toml"
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(RecipeError, match=r"recipe\.toml"):
        read_recipe(path)

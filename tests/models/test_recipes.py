"""The recipes of this repository, and their data modules."""

from pathlib import Path

import pytest

from ortolan.modeling.checkpoint.folder import config_from_hf
from ortolan.modeling.families import family_of
from ortolan.modeling.training.recipe import LanguageModel, read_recipe

MODELS = Path(__file__).parents[2] / "models"


@pytest.mark.parametrize("path", sorted(MODELS.rglob("*.toml")))
def test_the_recipes_of_this_repository_are_read(path: Path) -> None:
    recipe = read_recipe(path)
    assert family_of(recipe.model["model_type"])
    if recipe.task == LanguageModel():
        assert recipe.tokenizer is not None
        config = config_from_hf({"vocab_size": recipe.tokenizer.vocab_size, **recipe.model})
        window = recipe.training.sequence_length
        assert window is not None
        assert window <= config.context_length

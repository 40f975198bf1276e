"""Every recipe of this repository is valid, and names a task and data that exist."""

from pathlib import Path

import pytest

from ortolan.modeling.checkpoint.folder import config_from_hf
from ortolan.modeling.families import family_of
from ortolan.modeling.training.recipe import read_recipe
from ortolan.modeling.training.source import arguments_of, named_object
from ortolan.modeling.training.trainer import TASKS

MODELS = Path(__file__).parents[2] / "models"


RECIPES = sorted(path for path in MODELS.rglob("*.toml") if path.parent.name != "grammar")


@pytest.mark.parametrize("path", RECIPES, ids=lambda path: path.parent.name)
def test_a_recipe_is_valid(path: Path) -> None:
    recipe = read_recipe(path)
    assert family_of(recipe.model["model_type"])
    for table, other in (("task", ("recipe", "folder")), ("data", ())):
        options = dict(getattr(recipe, table))
        name, source = options.pop("name", None), options.pop("source", None)
        code = TASKS[name] if name else named_object(source, path.parent, table)
        assert arguments_of(code, options, table, other=other).keys() >= options.keys()
    if recipe.task == {"name": "language-model"}:
        assert recipe.tokenizer is not None
        config = config_from_hf({"vocab_size": recipe.tokenizer.vocab_size, **recipe.model})
        assert (recipe.training.sequence_length or 0) <= config.context_length

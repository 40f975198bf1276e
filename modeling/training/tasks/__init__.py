"""The objectives that a recipe can ask for.

Knows which data goes with which objective. Does not know how any of them learns.
"""

from pathlib import Path

from ortolan.modeling.training.recipe import (
    DigitsData,
    NumeralsData,
    Recipe,
    SnippetsData,
    StdlibData,
)
from ortolan.modeling.training.tasks.task import Task


def task_of(recipe: Recipe, folder: Path) -> Task:
    """The task of a recipe: its data read, its model made.

    Args:
        recipe: what to train.
        folder: of the recipe, from which the paths in it start.

    Raises:
        RecipeError: the data is absent, or the recipe's parts do not fit each other.
        ConfigError: the recipe's model is not one that Ortolan has, or of the wrong kind.
    """
    match recipe.data:
        case StdlibData() as data:
            from ortolan.modeling.training.tasks.language_model import LanguageModelTask

            return LanguageModelTask(recipe, data)
        case NumeralsData() as data:
            from ortolan.modeling.training.tasks.translation import TranslationTask

            return TranslationTask(recipe, data)
        case DigitsData() as data:
            from ortolan.modeling.training.tasks.images import ImagesTask

            return ImagesTask(recipe, data)
        case SnippetsData(objective="masked") as data:
            from ortolan.modeling.training.tasks.masked import MaskedTask

            return MaskedTask(recipe, data)
        case SnippetsData() as data:
            from ortolan.modeling.training.tasks.classification import ClassificationTask

            return ClassificationTask(recipe, data, folder)

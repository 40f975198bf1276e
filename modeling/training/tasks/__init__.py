"""The tasks that a recipe can name."""

from pathlib import Path

from ortolan.modeling.training.recipe import (
    Answering,
    ImageClassification,
    LanguageModel,
    MaskedLanguageModel,
    Recipe,
    TextClassification,
    Translation,
)
from ortolan.modeling.training.tasks.answering import AnsweringTask
from ortolan.modeling.training.tasks.image_classification import ImageClassificationTask
from ortolan.modeling.training.tasks.language_model import LanguageModelTask
from ortolan.modeling.training.tasks.masked_language_model import MaskedLanguageModelTask
from ortolan.modeling.training.tasks.task import Task
from ortolan.modeling.training.tasks.text_classification import TextClassificationTask
from ortolan.modeling.training.tasks.translation import TranslationTask


def task_of(recipe: Recipe, folder: Path) -> Task:
    """The task of a recipe: its data read, its model made.

    Args:
        recipe: what to train.
        folder: of the recipe, to which the paths in it are relative.

    Raises:
        RecipeError: the data cannot be read, or the recipe's parts do not fit each other.
        ConfigError: the recipe's model is not one that Ortolan has, or of the wrong kind.
    """
    match recipe.task:
        case LanguageModel():
            return LanguageModelTask(recipe, folder)
        case MaskedLanguageModel() as task:
            return MaskedLanguageModelTask(recipe, task, folder)
        case TextClassification() as task:
            return TextClassificationTask(recipe, task, folder)
        case ImageClassification():
            return ImageClassificationTask(recipe, folder)
        case Translation():
            return TranslationTask(recipe, folder)
        case Answering() as task:
            return AnsweringTask(recipe, task, folder)

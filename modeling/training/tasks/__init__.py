"""Training tasks.

    [task]
    name = "text-classification"
    start = "pretrained"

names a task of `TASKS`. `source = "task.py:MyTask"` names a class next to the recipe instead, which
implements `Task`. The other keys of the table are the keyword arguments of its constructor.
"""

from collections.abc import Callable
from pathlib import Path

from ortolan.modeling.errors import RecipeError
from ortolan.modeling.training.recipe import Recipe
from ortolan.modeling.training.source import arguments_of, named_object
from ortolan.modeling.training.tasks.language_model import LanguageModelTask
from ortolan.modeling.training.tasks.task import Task
from ortolan.modeling.training.tasks.text_classification import TextClassificationTask
from ortolan.modeling.training.tasks.translation import TranslationTask

TASKS: dict[str, Callable[..., Task]] = {
    "language-model": LanguageModelTask,
    "text-classification": TextClassificationTask,
    "translation": TranslationTask,
}


def task_of(recipe: Recipe, folder: Path) -> Task:
    """Construct the task of a recipe: read its data and build its model.

    Its paths are relative to `folder`.
    """
    options = dict(recipe.task)
    name, source = options.pop("name", None), options.pop("source", None)
    if (name is None) is (source is None):
        raise RecipeError(
            f"[task] needs either a name ({', '.join(TASKS)}) or a source, such as "
            "'task.py:MyTask'."
        )
    if source is not None:
        build = named_object(source, folder, "task")
    elif name in TASKS:
        build = TASKS[name]
    else:
        raise RecipeError(
            f"task.name must be one of {', '.join(TASKS)} (got {name!r}). For another task, name "
            "its class with task.source."
        )
    arguments = arguments_of(build, options, "task", other=("recipe", "folder"))
    task: Task = build(recipe, folder, **arguments)
    return task

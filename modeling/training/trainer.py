"""A small trainer: one process on one CPU."""

import math
import shutil
import time
from collections.abc import Callable
from io import BytesIO
from pathlib import Path

import torch
from torch import Tensor, nn
from tqdm import tqdm

from ortolan import files
from ortolan.modeling.checkpoint.folder import replaced, write
from ortolan.modeling.checkpoint.json_file import write_json
from ortolan.modeling.errors import RecipeError
from ortolan.modeling.training.calibration import write_calibration
from ortolan.modeling.training.recipe import OptimizerRecipe, Recipe, read_recipe
from ortolan.modeling.training.source import arguments_of, named_object
from ortolan.modeling.training.tasks.language_model import LanguageModelTask
from ortolan.modeling.training.tasks.task import Batch, Task
from ortolan.modeling.training.tasks.text_classification import TextClassificationTask
from ortolan.modeling.training.tasks.translation import TranslationTask

TASKS: dict[str, Callable[..., Task]] = {
    "language-model": LanguageModelTask,
    "text-classification": TextClassificationTask,
    "translation": TranslationTask,
}


def train(recipe_path: str | Path, out: str | Path | None = None) -> Path:
    """Train the model of a recipe and write its checkpoint.

    The folder then holds config.json, model.safetensors (bf16), the files the model needs in use
    (tokenizer.json, generation_config.json, preprocessor_config.json), a calibration file,
    loss.png, and training.json with all figures. Each save replaces the files atomically.

    That folder is `out`, or that of the recipe by default.
    """
    path = Path(recipe_path)
    folder = Path(out) if out is not None else path.parent
    recipe = read_recipe(path)
    torch.manual_seed(recipe.training.seed)
    try:
        _check(recipe.training)
        task = task_of(recipe, path.parent)
    except RecipeError as error:
        raise RecipeError(f"{path}: {error}") from error
    run = _Run(recipe.training, task, folder)
    run.train()
    run.finish()
    return folder


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


def _check(recipe: OptimizerRecipe) -> None:
    """Raise RecipeError, before any work, for settings that would fail later."""
    if recipe.compile and not any(shutil.which(name) for name in ("g++", "c++", "clang++")):
        raise RecipeError(
            "training.compile needs a C++ compiler on PATH. Install g++, or set compile = false."
        )
    if recipe.warmup_steps >= recipe.steps:
        raise RecipeError(
            f"training: warmup_steps must be below steps (got {recipe.warmup_steps} and "
            f"{recipe.steps})."
        )
    if recipe.average_last > recipe.steps:
        raise RecipeError(
            f"training: average_last must not exceed steps (got {recipe.average_last} and "
            f"{recipe.steps})."
        )


def learning_rate(recipe: OptimizerRecipe, step: int) -> float:
    """Learning rate of a step, counted from 0: linear warm-up, then the schedule."""
    if step < recipe.warmup_steps:
        return recipe.learning_rate * (step + 1) / recipe.warmup_steps
    match recipe.schedule:
        case "cosine":
            done = (step - recipe.warmup_steps) / (recipe.steps - recipe.warmup_steps)
            return recipe.learning_rate * 0.5 * (1 + math.cos(math.pi * done))
        case "inverse_sqrt":
            return recipe.learning_rate * math.sqrt(max(recipe.warmup_steps, 1) / (step + 1))


class _Run:
    """One training run and its figures so far."""

    def __init__(self, recipe: OptimizerRecipe, task: Task, folder: Path) -> None:
        self.recipe, self.task, self.folder = recipe, task, folder
        self.losses: list[float] = []
        self.measured: list[tuple[int, dict[str, float]]] = []
        self.mean: dict[str, Tensor] = {}
        self.seconds = 0.0

    def train(self) -> None:
        """Run all steps; measure and save every `evaluate_every`."""
        recipe, module = self.recipe, self.task.module
        optimizer = _adamw(module, recipe)
        loss_of = _loss_function(self.task, recipe)
        batches = self.task.batches()
        for step in tqdm(range(recipe.steps), desc="train", unit="step", smoothing=0.05):
            started = time.monotonic()
            for group in optimizer.param_groups:
                group["lr"] = learning_rate(recipe, step)
            loss = loss_of(next(batches))
            loss.backward()  # type: ignore[no-untyped-call]
            nn.utils.clip_grad_norm_(module.parameters(), recipe.clip)
            optimizer.step()
            optimizer.zero_grad(set_to_none=True)
            if step >= recipe.steps - recipe.average_last:
                self._average(step)
            self.losses.append(float(loss.detach()))
            self.seconds += time.monotonic() - started
            if (step + 1) % recipe.evaluate_every == 0 or step + 1 == recipe.steps:
                self.measure(step + 1)
                with replaced(self.folder) as folder:
                    self._write(folder)

    @torch.no_grad()
    def _average(self, step: int) -> None:
        """Add the weights after `step` to their running mean."""
        count = step - (self.recipe.steps - self.recipe.average_last) + 1
        for name, parameter in self.task.module.named_parameters():
            mean = self.mean.setdefault(name, parameter.detach().clone())
            mean.lerp_(parameter, 1 / count)

    def measure(self, step: int) -> None:
        """Measure the model on the held-out data."""
        figures = self.task.measure()
        self.measured.append((step, figures))
        text = ", ".join(f"{_words(name)} {value:.4f}" for name, value in figures.items())
        tqdm.write(f"step {step}: loss {self.losses[-1]:.3f}, {text}")

    def _write(self, folder: Path) -> None:
        self.task.companions(folder)
        write_calibration(self.task.data, folder)
        write(self.task.module, folder, dtype=torch.bfloat16)

    def finish(self) -> None:
        """Save the trained model, its figures and the loss curve."""
        # Users load the rounded checkpoint, so measure the rounded weights.
        for name, parameter in self.task.module.named_parameters():
            parameter.data = self.mean.get(name, parameter.data).to(torch.bfloat16).float()
        self.measure(self.recipe.steps)
        last = self.measured[-1][1]
        plotted = next(iter(last))
        curve = [(step, figures[plotted]) for step, figures in self.measured]
        figures = {
            "parameters": sum(p.numel() for p in self.task.module.parameters()),
            "training_seconds": round(self.seconds),
            "train_loss": sum(self.losses[-100:]) / len(self.losses[-100:]),
            **self.task.figures(),
            **self.task.data.figures(),
            **last,
            "measured": curve,
        }
        with replaced(self.folder) as folder:
            self._write(folder)
            write_json(folder / "training.json", figures)
            draw_losses(self.losses, curve, folder / "loss.png", measured_name=_words(plotted))


def _adamw(module: nn.Module, recipe: OptimizerRecipe) -> torch.optim.AdamW:
    """AdamW with weight decay for matrices only."""
    matrices = [p for p in module.parameters() if p.dim() >= 2]
    vectors = [p for p in module.parameters() if p.dim() < 2]
    return torch.optim.AdamW(
        [
            {"params": matrices, "weight_decay": recipe.weight_decay},
            {"params": vectors, "weight_decay": 0.0},
        ],
        lr=recipe.learning_rate,
        betas=(recipe.beta1, recipe.beta2),
        fused=True,
    )


def _loss_function(task: Task, recipe: OptimizerRecipe) -> Callable[[Batch], Tensor]:
    """The loss of a task at the recipe's precision, compiled if the recipe says so."""

    def loss(batch: Batch) -> Tensor:
        with torch.autocast("cpu", torch.bfloat16, enabled=recipe.precision == "bf16"):
            return task.loss(batch)

    return torch.compile(loss) if recipe.compile else loss


def draw_losses(
    losses: list[float], measured: list[tuple[int, float]], path: Path, *, measured_name: str
) -> None:
    """Plot the training loss and one held-out figure."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure, left = pyplot.subplots(figsize=(7, 4), layout="constrained")
    left.plot(range(1, len(losses) + 1), losses, color="tab:blue", linewidth=0.6)
    left.set(xlabel="step", ylabel="training loss (nats)")
    right = left.twinx()
    right.plot(*zip(*measured, strict=True), color="tab:red", marker="o")
    right.set_ylabel(measured_name, color="tab:red")
    picture = BytesIO()
    figure.savefig(picture, format="png", dpi=100, metadata={"Software": None})
    pyplot.close(figure)
    files.write(path, picture.getbuffer())


def _words(name: str) -> str:
    return name.replace("_", " ")

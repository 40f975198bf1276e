"""Training recipes: TOML files that describe how to train a model.

The classes below are the tables of a recipe. `[task]` is described in `tasks`, `[data]` in `data`.
"""

from pathlib import Path
from typing import Annotated, Any, Literal, TypeVar

import msgspec
from msgspec import Meta

from ortolan.modeling.errors import RecipeError

T = TypeVar("T")

Count = Annotated[int, Meta(ge=1)]
Natural = Annotated[int, Meta(ge=0)]
Positive = Annotated[float, Meta(gt=0)]
Fraction = Annotated[float, Meta(ge=0, lt=1)]


class _Table(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A table of the recipe; unknown fields are errors."""


class TokenizerRecipe(_Table, frozen=True, kw_only=True):
    """A byte-level BPE tokenizer, trained on the training text.

    Attributes:
        vocab_size: number of ids, special tokens included.
        end_of_text: for decoders, the token that starts every document; for encoder-decoders, the
            token that ends every sentence. Encoders use `[CLS]` and `[SEP]` instead.
        pieces: regular expression (Oniguruma) that splits text into pieces first; no token crosses
            from one piece to the next. None uses GPT-2's expression.
    """

    vocab_size: Count
    end_of_text: str = "<|endoftext|>"
    pieces: str | None = None


class OptimizerRecipe(_Table, frozen=True, kw_only=True):
    """AdamW (Loshchilov and Hutter 2019) with a linear warm-up.

    Attributes:
        steps: number of updates; each sees `batch_size` windows, pairs or images.
        sequence_length: tokens per window or text; None for data that is not text.
        schedule: after the warm-up, a cosine to zero, or the inverse square root of the step
            (Vaswani et al. 2017).
        average_last: average the weights after each of the last N steps, as Vaswani et al. (2017)
            average checkpoints; 0 keeps the final weights.
        label_smoothing: probability taken from the correct label and spread over all labels.
        clip: largest gradient norm.
        precision: `bf16` multiplies in bfloat16 and keeps float32 weights.
        compile: fuse operations with torch.compile, which needs a C++ compiler.
        evaluate_every: steps between measurements on the held-out data.
    """

    steps: Count
    batch_size: Count
    sequence_length: Count | None = None
    learning_rate: Positive
    warmup_steps: Natural
    schedule: Literal["cosine", "inverse_sqrt"] = "cosine"
    average_last: Natural = 0
    label_smoothing: Fraction = 0.0
    weight_decay: Annotated[float, Meta(ge=0)] = 0.1
    beta1: Fraction = 0.9
    beta2: Fraction = 0.95
    clip: Positive = 1.0
    seed: Natural = 0
    precision: Literal["fp32", "bf16"] = "fp32"
    compile: bool = False
    evaluate_every: Count = 500


class Recipe(_Table, frozen=True, kw_only=True):
    """A whole recipe.

    Attributes:
        task: `name` or `source`, and the options of that task.
        model: keys of a Hugging Face config.
        tokenizer: None for data that is not text, and for models that start from a checkpoint.
        data: `source`, and the arguments of the function it names.
    """

    task: dict[str, Any]
    model: dict[str, Any]
    tokenizer: TokenizerRecipe | None = None
    data: dict[str, Any]
    training: OptimizerRecipe

    def required(self, value: T | None, field: str) -> T:
        """The value of a field that only some tasks need."""
        if value is None:
            task = self.task.get("name", self.task.get("source"))
            raise RecipeError(f"{field}: the task {task} needs it. Set it.")
        return value


def read_recipe(path: Path) -> Recipe:
    """Read a recipe."""
    try:
        return msgspec.toml.decode(path.read_bytes(), type=Recipe)
    except OSError as error:
        raise RecipeError(f"{path}: cannot read it ({error.strerror}). Check the path.") from error
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise RecipeError(
            f"{path}: not a valid recipe: {error}. See models/pythonic/recipe.toml."
        ) from error

"""Training recipes: a TOML file that says how a model came to be.

The classes below are its tables; `data.py` describes `[data]`.
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
    """A table of the file; an unknown field is an error."""


class LanguageModel(_Table, frozen=True, kw_only=True, tag_field="name", tag="language-model"):
    """A decoder learns to continue `Texts`."""


class MaskedLanguageModel(
    _Table, frozen=True, kw_only=True, tag_field="name", tag="masked-language-model"
):
    """An encoder learns to guess hidden tokens of `Texts` (Devlin et al. 2019).

    Attributes:
        hidden: part of the tokens that are hidden.
        shortest: tokens of the first windows, which double to `sequence_length` in equal parts of
            the training; None for that length throughout.
    """

    hidden: Fraction = 0.15
    shortest: Count | None = None


class TextClassification(
    _Table, frozen=True, kw_only=True, tag_field="name", tag="text-classification"
):
    """An encoder learns the labels of `LabelledTexts`.

    Attributes:
        start: a checkpoint folder to start from, relative to the recipe; None for random weights.
        hidden: part of the tokens that are hidden at random, so that no single one decides.
    """

    start: str | None = None
    hidden: Fraction = 0.0


class ImageClassification(
    _Table, frozen=True, kw_only=True, tag_field="name", tag="image-classification"
):
    """An encoder learns the labels of `LabelledImages`."""


class Translation(_Table, frozen=True, kw_only=True, tag_field="name", tag="translation"):
    """An encoder-decoder learns to translate `Pairs`."""


class Answering(_Table, frozen=True, kw_only=True, tag_field="name", tag="answering"):
    """A decoder or a recurrent network learns the answers to prompts, `Answers`.

    Attributes:
        curriculum: part of the training in which the longest text grows from that of the shortest
            to that of all; 0 for all of them from the first step.
    """

    curriculum: Fraction = 0.0


TaskRecipe = (
    LanguageModel
    | MaskedLanguageModel
    | TextClassification
    | ImageClassification
    | Translation
    | Answering
)


class TokenizerRecipe(_Table, frozen=True, kw_only=True):
    """A byte-level BPE trained on the training text.

    Attributes:
        vocab_size: ids, special ones included.
        end_of_text: of decoders, the token that starts every document; of encoder-decoders, the
            token that ends every sentence. Encoders have `[CLS]` and `[SEP]` instead.
        pieces: a regular expression (Oniguruma) of the pieces into which a text is split first; no
            token spans two. None for GPT-2's words.
    """

    vocab_size: Count
    end_of_text: str = "<|endoftext|>"
    pieces: str | None = None


class OptimizerRecipe(_Table, frozen=True, kw_only=True):
    """AdamW (Loshchilov and Hutter 2019) under a linear warm-up.

    Attributes:
        steps: updates; each sees `batch_size` windows, pairs or images.
        sequence_length: tokens of a window or of a text; None for data without any.
        schedule: after the warm-up, a cosine to zero, or the inverse square root of the step
            (Vaswani et al. 2017).
        average_last: the model is the mean of its weights after each of so many last steps
            (Vaswani et al. 2017 average checkpoints); 0 for the weights of the last one.
        label_smoothing: probability taken from the right answer and given to all.
        clip: largest norm of the gradient.
        precision: `bf16` multiplies in bfloat16 and keeps weights in float32.
        compile: fuse with torch.compile, which needs a C++ compiler.
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
    """The whole recipe.

    Attributes:
        task: what is learned.
        model: the keys of a Hugging Face config.
        tokenizer: None for data that is not text, and for a model that starts from a checkpoint.
        data: `source`, and the arguments of the function that it names; see `read_data`.
    """

    task: TaskRecipe
    model: dict[str, Any]
    tokenizer: TokenizerRecipe | None = None
    data: dict[str, Any]
    training: OptimizerRecipe

    def required(self, value: T | None, field: str) -> T:
        """The value of a field that other tasks can do without.

        Raises:
            RecipeError: it is absent.
        """
        if value is None:
            task = self.task.__struct_config__.tag
            raise RecipeError(f"{field}: expected a value for {task}, got none. Set it.")
        return value


def read_recipe(path: Path) -> Recipe:
    """Read a recipe.

    Raises:
        RecipeError: no such file, not TOML, or a field unknown, missing or of the wrong type.
    """
    try:
        return msgspec.toml.decode(path.read_bytes(), type=Recipe)
    except OSError as error:
        raise RecipeError(
            f"{path}: expected a recipe, got {error.strerror}. Check the path."
        ) from error
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise RecipeError(
            f"{path}: expected a recipe, got {error}. See models/pythonic/recipe.toml."
        ) from error

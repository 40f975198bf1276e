"""Training recipes: a TOML file that says how a model of ours came to be.

Knows the fields and their ranges. Does not know whether a machine can honour them.
"""

from pathlib import Path
from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta

from ortolan.modeling.errors import RecipeError

Count = Annotated[int, Meta(ge=1)]
Natural = Annotated[int, Meta(ge=0)]
Positive = Annotated[float, Meta(gt=0)]
Fraction = Annotated[float, Meta(ge=0, lt=1)]


class _Part(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A table of the file; a field that is not understood is an error."""


class TokenizerRecipe(_Part, frozen=True, kw_only=True):
    """A byte-level BPE trained on the training text.

    Attributes:
        vocab_size: ids, special ones included.
        end_of_text: the token that starts and ends every document, or ends every sentence.
    """

    vocab_size: Count
    end_of_text: str = "<|endoftext|>"


class StdlibData(_Part, frozen=True, kw_only=True, tag_field="source", tag="stdlib"):
    """Files of the running Python's standard library, to continue (language modelling).

    Attributes:
        held_out: folders kept from training, on which bits per byte are measured.
        exclude: glob patterns of files that are neither.
    """

    held_out: tuple[str, ...]
    exclude: tuple[str, ...] = ()


class NumeralsData(_Part, frozen=True, kw_only=True, tag_field="source", tag="numerals"):
    """English sentences with numbers and their French, made by rules (translation).

    Attributes:
        pairs: to learn from.
        held_out: pairs of each of the two held-out sets.
        seed: of the sentences.
    """

    pairs: Count
    held_out: Count = 1000
    seed: Natural = 0


class DigitsData(_Part, frozen=True, kw_only=True, tag_field="source", tag="digits"):
    """Scans of handwritten digits that scikit-learn brings (image classification).

    Attributes:
        held_out: part of the images, kept from training.
        seed: of the split.
    """

    held_out: Fraction = 0.25
    seed: Natural = 0


class SnippetsData(_Part, frozen=True, kw_only=True, tag_field="source", tag="snippets"):
    """Pieces of the standard library's source (masked language modelling, classification).

    Attributes:
        objective: `masked` guesses hidden tokens, `classification` names the package.
        start: a checkpoint folder to go on from, relative to the recipe; None for random weights.
        hidden: part of the tokens that are hidden: to be guessed, or as noise where packages are.
        shortest: tokens of the first windows of masked modelling, which double to
            `sequence_length` in equal parts of the training; None for that length throughout.
        exclude: glob patterns of files that are left out.
        seed: of the split by file.
    """

    objective: Literal["masked", "classification"]
    start: str | None = None
    hidden: Fraction = 0.15
    shortest: Count | None = None
    exclude: tuple[str, ...] = ()
    seed: Natural = 0


DataRecipe = StdlibData | NumeralsData | DigitsData | SnippetsData


class OptimizerRecipe(_Part, frozen=True, kw_only=True):
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
        evaluate_every: steps between measurements on what is held out.
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


class Recipe(_Part, frozen=True, kw_only=True):
    """The whole recipe.

    Attributes:
        model: the keys of a Hugging Face config.
        tokenizer: None for data that is not text.
    """

    model: dict[str, Any]
    tokenizer: TokenizerRecipe | None = None
    data: DataRecipe
    training: OptimizerRecipe


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

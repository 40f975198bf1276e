"""Training recipes: a TOML file that says how a model of ours came to be.

Knows the fields and their ranges. Does not know whether a machine can honour them.
"""

from pathlib import Path
from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta

from ortolan.modeling.errors import RecipeError

Count = Annotated[int, Meta(ge=1)]
Positive = Annotated[float, Meta(gt=0)]
Fraction = Annotated[float, Meta(ge=0, lt=1)]


class TokenizerRecipe(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A byte-level BPE trained on the training text.

    Attributes:
        vocab_size: ids, special ones included.
        end_of_text: the token that starts and ends every document.
    """

    vocab_size: Count
    end_of_text: str = "<|endoftext|>"


class DataRecipe(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Which files are learned from, and which are only measured on.

    Attributes:
        source: `stdlib` is the source of the running Python's standard library.
        held_out: folders kept from training, on which bits per byte are measured.
        exclude: glob patterns of files that are neither.
    """

    source: Literal["stdlib"]
    held_out: tuple[str, ...]
    exclude: tuple[str, ...] = ()


class OptimizerRecipe(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """AdamW (Loshchilov and Hutter 2019), linear warm-up, cosine decay to zero.

    Attributes:
        steps: updates; each sees `batch_size` windows of `sequence_length` tokens.
        clip: largest norm of the gradient.
        precision: `bf16` multiplies in bfloat16 and keeps weights in float32.
        compile: fuse with torch.compile, which needs a C++ compiler.
        evaluate_every: steps between measurements on the held-out files.
    """

    steps: Count
    batch_size: Count
    sequence_length: Count
    learning_rate: Positive
    warmup_steps: Annotated[int, Meta(ge=0)]
    weight_decay: Annotated[float, Meta(ge=0)] = 0.1
    beta1: Fraction = 0.9
    beta2: Fraction = 0.95
    clip: Positive = 1.0
    seed: Annotated[int, Meta(ge=0)] = 0
    precision: Literal["fp32", "bf16"] = "fp32"
    compile: bool = False
    evaluate_every: Count = 500


class Recipe(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The whole recipe; `model` holds the keys of a Hugging Face config."""

    model: dict[str, Any]
    tokenizer: TokenizerRecipe
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

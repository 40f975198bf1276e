"""Training recipes: a TOML file that says how a model of ours came to be."""

from pathlib import Path
from typing import Any, Literal

import msgspec

from ortolan.modeling.errors import RecipeError


class TokenizerRecipe(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A byte-level BPE trained on the training text.

    Attributes:
        vocab_size: ids, special ones included.
        end_of_text: the token that starts and ends every document.
    """

    vocab_size: int
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

    steps: int
    batch_size: int
    sequence_length: int
    learning_rate: float
    warmup_steps: int
    weight_decay: float = 0.1
    beta1: float = 0.9
    beta2: float = 0.95
    clip: float = 1.0
    seed: int = 0
    precision: Literal["fp32", "bf16"] = "fp32"
    compile: bool = False
    evaluate_every: int = 500


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
        raise RecipeError(f"{path}: expected a recipe, got {error.strerror}.") from error
    except (msgspec.DecodeError, msgspec.ValidationError) as error:
        raise RecipeError(f"{path}: {error}.") from error

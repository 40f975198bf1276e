"""Adapters of PEFT, merged into the tensors of the checkpoint that they were trained on.

LoRA: `W + B A * alpha / r`, for each matrix that the adapter names (Hu et al. 2021,
https://arxiv.org/abs/2106.09685); `alpha / sqrt(r)` with `use_rslora`. Rows are merged as they are
read, in float32.
"""

import math
import re
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

from torch import Tensor

from ortolan.modeling.checkpoint.json_file import read_json
from ortolan.modeling.checkpoint.packed.unpacked import FileTensors, Unpacked
from ortolan.modeling.checkpoint.pickles import Pickles
from ortolan.modeling.checkpoint.safetensors import Safetensors
from ortolan.modeling.checkpoint.text_tower import TextTensors, text_name
from ortolan.modeling.errors import CheckpointError
from ortolan.modeling.weights import Coded, CodedRows, CodeFormat

CONFIG = "adapter_config.json"

WEIGHTS = ("adapter_model.safetensors", "adapter_model.bin")

MAX_CONFIG_BYTES = 1 << 20

PREFIX = "base_model.model."

SWITCHES = ("use_dora", "use_qalora", "lora_bias", "trainable_token_indices", "target_parameters")
"""Keys that change what an adapter computes, and must be off."""

STARTS = (True, False, None, "gaussian", "eva", "orthogonal")
"""Of `init_lora_weights`: ways to begin that leave the checkpoint as it was."""

FACTORS = {".lora_A.weight": False, ".lora_embedding_A": True}
"""Ends of the names of the first factors, and whether they are of an embedding: those hold the
product the other way round."""


class Product(NamedTuple):
    """What is added to a matrix: `second @ first`, transposed or not.

    Attributes:
        first: name of `A`, `(r, inputs)`.
        second: name of `B`, `(outputs, r)`.
        scale: of the product.
        transposed: the matrix is `(inputs, outputs)`.
    """

    first: str
    second: str
    scale: float
    transposed: bool


class Adapted:
    """The tensors of a checkpoint with an adapter merged into them."""

    def __init__(self, base: FileTensors, folder: Path) -> None:
        """Check that the adapter belongs to the checkpoint.

        Args:
            base: the tensors of the checkpoint.
            folder: of the adapter.

        Raises:
            CheckpointError: no adapter, one of another kind, or of another model.
        """
        self._base = base
        self.left_out = base.left_out if isinstance(base, TextTensors) else ()
        values = read_adapter_config(folder)
        self._own = _tensors(folder)
        self._products, self._replaced = _placed(values, self._own.shapes())
        self._check(folder)

    def shapes(self) -> dict[str, tuple[int, ...]]:
        """The shape of every tensor."""
        return self._base.shapes()

    def files(self) -> list[Path]:
        """The files of the checkpoint, then those of the adapter."""
        return [*self._base.files(), *self._own.files()]

    def read(self, name: str, start: int, stop: int, *, axis: int = 0) -> Tensor:
        """The slice `[start:stop]` along `axis` of one tensor; float32 where it is merged."""
        own = self._replaced.get(name)
        source, stored = (self._base, name) if own is None else (self._own, own)
        found = source.read(stored, start, stop, axis=axis)
        product = self._products.get(name)
        if product is None:
            return found
        return found.float() + product.scale * self._added(product, start, stop, axis)

    def code_format(self, name: str) -> CodeFormat | None:
        """The format of a tensor's codes; None where the adapter changes them."""
        if name in self._products or name in self._replaced:
            return None
        return self._base.code_format(name) if isinstance(self._base, Coded) else None

    def codes(self, name: str, start: int, stop: int) -> CodedRows:
        """The codes of rows `[start:stop]` of a tensor that has some."""
        if not isinstance(self._base, Coded):
            raise TypeError(f"{name}: its checkpoint stores no codes")
        return self._base.codes(name, start, stop)

    def _added(self, product: Product, start: int, stop: int, axis: int) -> Tensor:
        """The same slice of a product of factors."""
        shapes = self._own.shapes()
        first, second = (0, shapes[product.first][1]), (0, shapes[product.second][0])
        if bool(axis) != product.transposed:
            first = start, stop
        else:
            second = start, stop
        a_RK = self._own.read(product.first, *first, axis=1).float()
        b_NR = self._own.read(product.second, *second).float()
        return (b_NR @ a_RK).T if product.transposed else b_NR @ a_RK

    def _check(self, folder: Path) -> None:
        """Raise CheckpointError unless every tensor of the adapter fits one of the checkpoint."""
        base, own = self._base.shapes(), self._own.shapes()
        problems = []
        for name, product in self._products.items():
            shape = (own[product.second][0], own[product.first][1])
            problems += _misfit(name, base, shape[::-1] if product.transposed else shape)
        for name, stored in self._replaced.items():
            problems += _misfit(name, base, own[stored])
        if problems:
            more = f" and {len(problems) - 3} more" if len(problems) > 3 else ""
            raise CheckpointError(
                f"{folder}: expected an adapter of this model, got one with "
                f"{'; '.join(problems[:3])}{more}. Give the checkpoint that it was trained on."
            )


def read_adapter_config(folder: Path) -> dict[str, object]:
    """The config of an adapter.

    Raises:
        CheckpointError: none, or one of an adapter that is not a plain LoRA.
    """
    file = folder / CONFIG
    if not file.is_file():
        raise CheckpointError(
            f"{folder}: expected a folder of PEFT with {CONFIG}, got no such file. Check the path."
        )
    values = read_json(file, MAX_CONFIG_BYTES)
    if values.get("peft_type") != "LORA":
        raise _unknown(file, "peft_type LORA", values.get("peft_type"))
    for key in SWITCHES:
        if values.get(key):
            raise _unknown(file, f"{key} off", values[key])
    start = values.get("init_lora_weights")
    if start not in STARTS:
        raise _unknown(file, "init_lora_weights that leave the checkpoint as it was", start)
    return values


def _tensors(folder: Path) -> FileTensors:
    found = [folder / name for name in WEIGHTS if (folder / name).is_file()]
    if not found:
        raise CheckpointError(
            f"{folder}: expected {WEIGHTS[0]} beside {CONFIG}, got no such file. "
            "The download is incomplete."
        )
    file = found[0]
    return Unpacked(Safetensors([file]) if file.suffix == ".safetensors" else Pickles([file]))


def _placed(
    values: Mapping[str, object], shapes: Mapping[str, tuple[int, ...]]
) -> tuple[dict[str, Product], dict[str, str]]:
    """Products by the names of the matrices that they are added to; tensors that replace others."""
    products: dict[str, Product] = {}
    replaced: dict[str, str] = {}
    for name in shapes:
        place = text_name(name.removeprefix(PREFIX)) or name
        end = next((end for end in FACTORS if place.endswith(end)), None)
        if end is None:
            if "lora_" not in place:
                replaced[place.replace(".base_layer.", ".")] = name
            elif not re.search(r"\.lora_(embedding_B|B\.weight)$", place):
                raise CheckpointError(
                    f"{name}: expected a factor A or B of LoRA, got another part. Merge the "
                    "adapter with PEFT: merge_and_unload()."
                )
            continue
        module = place.removesuffix(end)
        is_table = FACTORS[end]
        second = name.removesuffix(end) + end.replace("_A", "_B")
        if second not in shapes:
            raise CheckpointError(
                f"{name}: expected {second} beside it, got none. The download is incomplete."
            )
        products[f"{module}.weight"] = Product(
            name,
            second,
            _scale(values, module, shapes[name][0]),
            is_table or bool(values.get("fan_in_fan_out")),
        )
    return products, replaced


def _scale(values: Mapping[str, object], module: str, rank: int) -> float:
    """What a product is multiplied by, as the patterns of a config say."""
    alpha = values.get("lora_alpha")
    patterns = values.get("alpha_pattern")
    for pattern, own in patterns.items() if isinstance(patterns, dict) else ():
        if re.match(rf"(.*\.)?({pattern})$", module):
            alpha = own
            break
    if not isinstance(alpha, int | float):
        raise CheckpointError(
            f"{CONFIG}: expected lora_alpha to be a number, got {alpha!r:.40}. Correct it."
        )
    return alpha / (math.sqrt(rank) if values.get("use_rslora") else rank)


def _misfit(name: str, base: Mapping[str, tuple[int, ...]], shape: tuple[int, ...]) -> list[str]:
    if name not in base:
        return [f"{name}, which it does not have"]
    return [] if base[name] == shape else [f"{name} of shape {shape}, not {base[name]}"]


def _unknown(file: Path, expected: str, got: object) -> CheckpointError:
    return CheckpointError(
        f"{file}: expected {expected}, got {got!r:.80}. Merge the adapter with PEFT: "
        "merge_and_unload()."
    )

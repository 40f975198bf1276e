"""PEFT adapters, merged into the tensors of their base checkpoint.

LoRA adds `B A * alpha / r` to each matrix that the adapter names (Hu et al. 2021,
https://arxiv.org/abs/2106.09685); `alpha / sqrt(r)` with `use_rslora`. Rows are merged in float32
as they are read.
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

SWITCHES = (
    "alora_invocation_tokens",
    "arrow_config",
    "kasa_config",
    "layer_replication",
    "lora_bias",
    "monteclora_config",
    "target_parameters",
    "trainable_token_indices",
    "use_bdlora",
    "use_dora",
    "use_qalora",
    "velora_config",
)
"""Config keys of methods other than plain LoRA; they must be off."""

STARTS = (True, False, None, "gaussian", "eva", "orthogonal")
"""Values of `init_lora_weights` that leave the base checkpoint unchanged."""

FACTORS = {".lora_A.weight": False, ".lora_embedding_A": True}
"""Suffixes of the names of first factors, and whether they belong to an embedding, whose product is
transposed."""


class Product(NamedTuple):
    """A low-rank update of a matrix: `second @ first`, or its transpose.

    Attributes:
        first: name of `A`, `(r, inputs)`.
        second: name of `B`, `(outputs, r)`.
        scale: multiplies the product.
        transposed: the matrix is `(inputs, outputs)`.
    """

    first: str
    second: str
    scale: float
    transposed: bool


class LowRank(NamedTuple):
    """A low-rank update `left @ right` of a tensor.

    Attributes:
        left: float32 `(rows, r)`.
        right: float32 `(r, columns)`.
    """

    left: Tensor
    right: Tensor


class Adapted:
    """Tensors of a checkpoint with an adapter merged in."""

    def __init__(self, base: FileTensors, folder: Path) -> None:
        """Check that the adapter belongs to the checkpoint.

        Args:
            base: tensors of the checkpoint.
            folder: folder of the adapter.

        Raises:
            CheckpointError: there is no adapter, or it is of another kind or another model.
        """
        self._base = base
        self.left_out = base.left_out if isinstance(base, TextTensors) else ()
        values = read_adapter_config(folder)
        self._own = _tensors(folder)
        self._products, self._replaced = _placed(values, self._own.shapes())
        self._check(folder)

    @property
    def ranks(self) -> dict[str, int]:
        """Rank of the update of each matrix that has one, by name."""
        shapes = self._own.shapes()
        return {name: shapes[product.first][0] for name, product in self._products.items()}

    @property
    def replaced(self) -> tuple[str, ...]:
        """Names of the tensors that the adapter replaces."""
        return tuple(self._replaced)

    def factors(self, name: str) -> LowRank | None:
        """The update of a tensor in float32, including its scale; None if it has none."""
        product = self._products.get(name)
        if product is None:
            return None
        shapes = self._own.shapes()
        a_RK = self._own.read(product.first, 0, shapes[product.first][0]).float()
        b_NR = self._own.read(product.second, 0, shapes[product.second][0]).float()
        b_NR = product.scale * b_NR
        return LowRank(a_RK.T, b_NR.T) if product.transposed else LowRank(b_NR, a_RK)

    def shapes(self) -> dict[str, tuple[int, ...]]:
        """The shape of every tensor."""
        return self._base.shapes()

    def files(self) -> list[Path]:
        """Files of the checkpoint, then those of the adapter."""
        return [*self._base.files(), *self._own.files()]

    def read(self, name: str, start: int, stop: int, *, axis: int = 0) -> Tensor:
        """Slice `[start:stop]` of a tensor along `axis`; float32 if it is merged."""
        own = self._replaced.get(name)
        source, stored = (self._base, name) if own is None else (self._own, own)
        rows = source.read(stored, start, stop, axis=axis)
        product = self._products.get(name)
        if product is None:
            return rows
        return rows.float() + product.scale * self._added(product, start, stop, axis)

    def code_format(self, name: str) -> CodeFormat | None:
        """Format of a tensor's codes; None if it has none, or the adapter changes it."""
        if name in self._products or name in self._replaced:
            return None
        return self._base.code_format(name) if isinstance(self._base, Coded) else None

    def codes(self, name: str, start: int, stop: int) -> CodedRows:
        """Codes of rows `[start:stop]` of a tensor that has a format."""
        if not isinstance(self._base, Coded):
            raise TypeError(f"{name}: this checkpoint stores no codes")
        return self._base.codes(name, start, stop)

    def _added(self, product: Product, start: int, stop: int, axis: int) -> Tensor:
        """The same slice of the low-rank update."""
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
        """Raise CheckpointError unless every tensor of the adapter fits the checkpoint."""
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
                f"{folder}: the adapter does not match this model: "
                f"{'; '.join(problems[:3])}{more}. Pass the checkpoint that it was trained on."
            )


def read_adapter_config(folder: Path) -> dict[str, object]:
    """Read the config of an adapter.

    Raises:
        CheckpointError: there is none, or the adapter is not a plain LoRA.
    """
    file = folder / CONFIG
    if not file.is_file():
        raise CheckpointError(f"{folder}: not a PEFT adapter; it has no {CONFIG}. Check the path.")
    values = read_json(file, MAX_CONFIG_BYTES)
    if values.get("peft_type") != "LORA":
        raise _unsupported(file, "peft_type", values.get("peft_type"))
    for key in SWITCHES:
        if values.get(key):
            raise _unsupported(file, key, values[key])
    start = values.get("init_lora_weights")
    if start not in STARTS:
        # The others change the weights of the checkpoint.
        raise _unsupported(file, "init_lora_weights", start)
    return values


def _tensors(folder: Path) -> FileTensors:
    weights = [folder / name for name in WEIGHTS if (folder / name).is_file()]
    if not weights:
        raise CheckpointError(
            f"{folder}: the adapter has no {WEIGHTS[0]}. The download is incomplete."
        )
    file = weights[0]
    return Unpacked(Safetensors([file]) if file.suffix == ".safetensors" else Pickles([file]))


def _placed(
    values: Mapping[str, object], shapes: Mapping[str, tuple[int, ...]]
) -> tuple[dict[str, Product], dict[str, str]]:
    """Low-rank updates by the matrix they change, and tensors that replace others."""
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
                    f"{name}: not a LoRA factor A or B. Merge the adapter with PEFT first: "
                    "merge_and_unload()."
                )
            continue
        module = place.removesuffix(end)
        is_table = FACTORS[end]
        second = name.removesuffix(end) + end.replace("_A", "_B")
        if second not in shapes:
            raise CheckpointError(
                f"{name}: its second factor, {second}, is missing. The download is incomplete."
            )
        products[f"{module}.weight"] = Product(
            name,
            second,
            _scale(values, module, shapes[name][0]),
            is_table or bool(values.get("fan_in_fan_out")),
        )
    return products, replaced


def _scale(values: Mapping[str, object], module: str, rank: int) -> float:
    """Scale of an update; `alpha_pattern` may override alpha per module."""
    alpha = values.get("lora_alpha")
    patterns = values.get("alpha_pattern")
    for pattern, own in patterns.items() if isinstance(patterns, dict) else ():
        if re.match(rf"(.*\.)?({pattern})$", module):
            alpha = own
            break
    if not isinstance(alpha, int | float):
        raise CheckpointError(f"{CONFIG}: lora_alpha must be a number (got {alpha!r:.40}).")
    return alpha / (math.sqrt(rank) if values.get("use_rslora") else rank)


def _misfit(name: str, base: Mapping[str, tuple[int, ...]], shape: tuple[int, ...]) -> list[str]:
    if name not in base:
        return [f"the model has no {name}"]
    return [] if base[name] == shape else [f"{name} has shape {shape}, not {base[name]}"]


def _unsupported(file: Path, key: str, value: object) -> CheckpointError:
    return CheckpointError(
        f"{file}: {key} {value!r:.80} is not supported. Merge the adapter with PEFT first: "
        "merge_and_unload()."
    )

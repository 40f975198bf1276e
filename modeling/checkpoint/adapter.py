"""PEFT adapters, merged into the tensors of their base checkpoint.

LoRA adds `B A * alpha / r` to each matrix that the adapter names (Hu et al. 2021,
https://arxiv.org/abs/2106.09685); `alpha / sqrt(r)` with `use_rslora`. Rows are merged in float32
as they are read.
"""

import math
import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

import torch
from torch import Tensor

from ortolan.modeling.checkpoint.adapter_config import CONFIG, MERGE, read_adapter_config
from ortolan.modeling.checkpoint.packed.unpacked import FileTensors, Unpacked
from ortolan.modeling.checkpoint.pickles import Pickles
from ortolan.modeling.checkpoint.safetensors import Safetensors
from ortolan.modeling.checkpoint.text_tower import PartTensors, TextTensors, text_name
from ortolan.modeling.codes import CodedRows, CodeFormat
from ortolan.modeling.errors import CheckpointError
from ortolan.modeling.families import FAMILIES
from ortolan.modeling.weights import HEAD as OUR_HEAD
from ortolan.modeling.weights import (
    Coded,
    Quantizable,
    Shapes,
    Table,
    Turned,
    name_template,
    targets,
)

WEIGHTS = ("adapter_model.safetensors", "adapter_model.bin")

PREFIX = "base_model.model."

ROWS_AT_ONCE = 4096
"""Rows of two tensors in memory at once while they are compared."""

HEAD = "lm_head.weight"
"""Name of the head in most formats of language models."""

LANGUAGE_MODELS = ("ForCausalLM", "LMHeadModel")
"""Suffixes of transformers' classes of causal language models."""

EMBEDDINGS = frozenset(
    {
        *("embed_tokens", "wte", "word_embeddings", "embed_in", "embeddings", "tokens_embed"),
        *("tok_embeddings", "embedding", "word_embedding"),
    }
)
"""Names of the module that a language model looks up tokens in."""

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

    def __init__(self, base: FileTensors, folder: Path, values: Mapping[str, object]) -> None:
        """Check that the adapter belongs to the checkpoint."""
        self.left_out = base.left_out if isinstance(base, TextTensors) else ()
        self._folder = folder
        config = read_adapter_config(folder)
        self._own = _tensors(folder)
        model_type = str(values.get("model_type"))
        self._products, self._replaced = _placed(config, self._own.shapes(), base, model_type)
        table, head = _table(base.shapes(), values), _head(model_type)
        self.is_untied = table is not None and not self.changed.isdisjoint({head, table})
        needs_head = self.is_untied and head not in base.shapes()
        self._base = WithHead(base, table, head) if needs_head and table else base
        self._check()

    @property
    def changed(self) -> frozenset[str]:
        """Names of the tensors that the adapter updates or replaces."""
        return frozenset({*self._products, *self._replaced})

    def check_tied(self, names: Iterable[str]) -> None:
        """Check that the adapter leaves alone the tensors that share their values in a model."""
        for name in names:
            for changed in self.changed:
                if f".{changed}".endswith(f".{name}") or name.endswith(f".{changed}"):
                    raise CheckpointError(
                        f"{self._folder}: the adapter changes {changed}, which is tied to other "
                        f"weights of this model. {MERGE}"
                    )

    @property
    def ranks(self) -> dict[str, int]:
        """Rank of the update of each matrix that has one, by name."""
        shapes = self._own.shapes()
        return {name: shapes[product.first][0] for name, product in self._products.items()}

    @property
    def replaced(self) -> tuple[str, ...]:
        """Names of the tensors that the adapter replaces by other values.

        PEFT saves an embedding and a head with their updates, even if they are those of the base.
        """
        return tuple(name for name in self._replaced if not self._is_copy(name))

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

    def has_outputs_first(self, name: str) -> bool:
        """Whether a matrix is `(outputs, inputs)` even where the published one is transposed."""
        is_own = name in self._replaced
        return not is_own and isinstance(self._base, Turned) and self._base.has_outputs_first(name)

    def is_quantized(self) -> bool:
        """Whether any tensor is stored in fewer than 16 bits per value."""
        return isinstance(self._base, Quantizable) and self._base.is_quantized()

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

    def _is_copy(self, name: str) -> bool:
        """Whether a tensor of the adapter has the values of the one that it replaces."""
        own, rows = self._replaced[name], self._base.shapes()[name][0]
        return all(
            torch.equal(
                self._own.read(own, start, start + ROWS_AT_ONCE).float(),
                self._base.read(name, start, start + ROWS_AT_ONCE).float(),
            )
            for start in range(0, rows, ROWS_AT_ONCE)
        )

    def _check(self) -> None:
        """Raise CheckpointError unless every tensor of the adapter fits the checkpoint."""
        base, own = self._base.shapes(), self._own.shapes()
        pairs = [(name, own[stored], base.get(name)) for name, stored in self._replaced.items()]
        for name, product in self._products.items():
            shape = (own[product.second][0], own[product.first][1])
            stored = self._replaced.get(name)
            expected = base.get(name) if stored is None else own[stored]
            pairs.append((name, shape[::-1] if product.transposed else shape, expected))
        misfits = [pair for pair in pairs if pair[1] != pair[2]]
        if misfits:
            problems = [
                f"the model has no {name}"
                if expected is None
                else f"{name} has shape {shape}, not {expected}"
                for name, shape, expected in misfits
            ]
            more = f" and {len(problems) - 3} more" if len(problems) > 3 else ""
            raise CheckpointError(
                f"{self._folder}: the adapter does not match this model: "
                f"{'; '.join(problems[:3])}{more}. {_advice(misfits)}"
            )


class WithHead(PartTensors):
    """Tensors of a language model whose head is its embedding, with the head as a further one."""

    def __init__(self, whole: FileTensors, table: str, head: str) -> None:
        """Name the embedding as the head, too."""
        super().__init__(whole, lambda name: name)
        self._names[head] = table


class Names:
    """Names of a checkpoint, found with or without the prefix of the base model."""

    def __init__(self, names: Iterable[str]) -> None:
        self._names = frozenset(names)
        tails = Counter(_tail(name) for name in self._names)
        self._longer = {_tail(name): name for name in self._names if tails[_tail(name)] == 1}

    def find(self, name: str) -> str:
        """The checkpoint's name of a tensor; the same name if it has none like it."""
        if name in self._names:
            return name
        return _tail(name) if _tail(name) in self._names else self._longer.get(name, name)


def _tail(name: str) -> str:
    return name.partition(".")[2]


def _tensors(folder: Path) -> FileTensors:
    weights = [folder / name for name in WEIGHTS if (folder / name).is_file()]
    if not weights:
        raise CheckpointError(
            f"{folder}: the adapter has no {WEIGHTS[0]}. The download is incomplete."
        )
    file = weights[0]
    return Unpacked(Safetensors([file]) if file.suffix == ".safetensors" else Pickles([file]))


def _placed(
    values: Mapping[str, object], shapes: Shapes, base: FileTensors, model_type: str
) -> tuple[dict[str, Product], dict[str, str]]:
    """Low-rank updates by the matrix they change, and tensors that replace others."""
    products: dict[str, Product] = {}
    replaced: dict[str, str] = {}
    stored = base.shapes()
    names = Names(stored)
    for name in shapes:
        own = name.removeprefix(PREFIX)
        place = text_name(own) or own
        end = next((end for end in FACTORS if place.endswith(end)), None)
        if end is None:
            if "lora_" not in place:
                replaced[names.find(place.replace(".base_layer.", "."))] = name
            elif not re.search(r"\.lora_(embedding_B|B\.weight)$", place):
                raise CheckpointError(f"{name}: not a LoRA factor A or B. {MERGE}")
            continue
        second = name.removesuffix(end) + end.replace("_A", "_B")
        if second not in shapes:
            raise CheckpointError(
                f"{name}: its second factor, {second}, is missing. The download is incomplete."
            )
        if {len(shapes[name]), len(shapes[second])} != {2}:
            raise CheckpointError(f"{name}: LoRA of a convolution is not supported. {MERGE}")
        weight = names.find(f"{place.removesuffix(end)}.weight")
        outputs, inputs = shapes[second][0], shapes[name][1]
        if FACTORS[end]:
            is_transposed = True
        elif outputs != inputs:
            is_transposed = stored.get(weight) == (inputs, outputs)
        else:
            is_turned = (
                weight in stored and isinstance(base, Turned) and base.has_outputs_first(weight)
            )
            is_transposed = _is_transposed(weight, model_type) and not is_turned
        scale = _scale(values, own.removesuffix(end), shapes[name][0])
        products[weight] = Product(name, second, scale, is_transposed)
    return products, replaced


def _is_transposed(name: str, model_type: str) -> bool:
    """Whether a family stores a matrix as `(inputs, outputs)`.

    The flag `fan_in_fan_out` does not tell: PEFT stores that of the last module alone.
    """
    table, place = _names_of(model_type), name_template(name)[0]
    return any(
        target.transposed
        for entry in table
        if entry == place or entry.endswith(f".{place}")
        for target in targets(table, entry)
    )


def _head(model_type: str) -> str:
    """Name of the head of a causal language model."""
    table = _names_of(model_type)
    heads = (name for name in table if any(t.name == OUR_HEAD for t in targets(table, name)))
    return next(heads, HEAD)


def _names_of(model_type: str) -> Table:
    """The table of a family; empty without one, or if it depends on more of the config."""
    family = FAMILIES.get(model_type)
    return {} if family is None or callable(family.weights) else family.weights


def _table(base: Shapes, values: Mapping[str, object]) -> str | None:
    """Name of the embedding of a causal language model; None for other models."""
    classes = values.get("architectures")
    if isinstance(classes, list) and classes:
        is_language_model = str(classes[0]).endswith(LANGUAGE_MODELS)
    else:
        is_language_model = not values.get("is_encoder_decoder")
    tables = [name for name in base if name != HEAD and _is_by_token(name)]
    return tables[0] if is_language_model and len(tables) == 1 else None


def _advice(misfits: Sequence[tuple[str, tuple[int, ...], tuple[int, ...] | None]]) -> str:
    """How to merge an adapter that does not match a checkpoint."""
    rows = {shape[0] for _, shape, expected in misfits if expected and shape[1:] == expected[1:]}
    if len(rows) == 1 and all(_is_by_token(name) and stored for name, _, stored in misfits):
        count = rows.pop()
        return (
            f"It was trained on {count} tokens: call resize_token_embeddings({count}) before the "
            "adapter is merged with PEFT, merge_and_unload(), and save the adapter's tokenizer "
            "with the result."
        )
    if all(stored is None and not name_template(name)[1] for name, _, stored in misfits):
        return f"It trains modules that the checkpoint lacks, or ties to others. {MERGE}"
    if all(stored is None and text_name(name) is None for name, _, stored in misfits):
        return f"It also adapts the encoder of images or sounds. {MERGE}"
    return "Pass the checkpoint that it was trained on."


def _is_by_token(name: str) -> bool:
    """Whether a weight has a row for each token."""
    return name == HEAD or name.removesuffix(".weight").split(".")[-1] in EMBEDDINGS


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

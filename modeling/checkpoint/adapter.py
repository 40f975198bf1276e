"""PEFT adapters, merged into the tensors of their base checkpoint.

LoRA adds `B A * alpha / r` to each matrix that the adapter names (Hu et al. 2021,
https://arxiv.org/abs/2106.09685); `alpha / sqrt(r)` with `use_rslora`. Rows are merged in float32
as they are read.
"""

import math
import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import NamedTuple

from torch import Tensor

from ortolan.modeling.checkpoint.adapter_config import CONFIG, MERGE, read_adapter_config
from ortolan.modeling.checkpoint.file_tensors import FileTensors
from ortolan.modeling.checkpoint.packed.unpacked import open_files
from ortolan.modeling.checkpoint.text_tower import text_name
from ortolan.modeling.errors import CheckpointError
from ortolan.modeling.families import FAMILIES
from ortolan.modeling.lazy_tensor import LazyTensor, LowRank, are_equal, stored_tensor, whole_of
from ortolan.modeling.weights import HEAD as OUR_HEAD
from ortolan.modeling.weights import Table, name_template, targets

Tensors = Mapping[str, LazyTensor]

WEIGHTS = ("adapter_model.safetensors", "adapter_model.bin")

PREFIX = "base_model.model."

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
        first: `A`, `(r, inputs)`.
        second: `B`, `(outputs, r)`.
        scale: multiplies the product.
        transposed: the matrix is `(inputs, outputs)`.
    """

    first: LazyTensor
    second: LazyTensor
    scale: float
    transposed: bool

    def added_to(self, base: LazyTensor, name: str) -> LazyTensor:
        """The matrix with the update, float32."""

        def read(start: int, stop: int, axis: int) -> Tensor:
            if bool(axis) != self.transposed:
                a_RK, b_NR = self.first.read(start, stop, 1), whole_of(self.second)
            else:
                a_RK, b_NR = whole_of(self.first), self.second.read(start, stop)
            product_NK = b_NR.float() @ a_RK.float()
            update = product_NK.T if self.transposed else product_NK
            return base.read(start, stop, axis).float() + self.scale * update

        left, right = self.scale * self.second.float(), self.first.float()
        if self.transposed:
            left, right = right.T, left.T
        tensor = stored_tensor(base.shape, read, axes=base.axes)
        tensor.update = LowRank(left, right, frozenset({name}))
        tensor.outputs_first = base.outputs_first
        return tensor


@dataclass(frozen=True, slots=True, kw_only=True)
class Adapter:
    """What an adapter changes in a checkpoint, by names of tensors.

    Attributes:
        folder: of the adapter.
        products: its low-rank updates.
        replaced: tensors that it replaces.
        base: tensors of the checkpoint.
        head: name of a language model's head.
        table: name of its embedding; None for other models.
    """

    folder: Path
    products: Mapping[str, Product]
    replaced: Mapping[str, LazyTensor]
    base: Tensors
    head: str
    table: str | None

    @property
    def is_untied(self) -> bool:
        """Whether it changes a head or an embedding, which may have been one."""
        return self.table is not None and not self.changed.isdisjoint({self.head, self.table})

    @property
    def changed(self) -> frozenset[str]:
        """Names of the tensors that it updates or replaces."""
        return frozenset({*self.products, *self.replaced})

    @property
    def embedding(self) -> LazyTensor | None:
        """The embedding of a language model, if the adapter does not update it."""
        if self.table is None:
            return None
        return self.replaced.get(self.table, self.base[self.table])

    @property
    def ranks(self) -> dict[str, int]:
        """Rank of the update of each matrix that has one."""
        return {name: len(product.first) for name, product in self.products.items()}

    @property
    def new(self) -> tuple[str, ...]:
        """Names of the tensors that the adapter replaces by other values.

        PEFT saves an embedding and a head with their updates, even if they are those of the base.
        """
        return tuple(
            name for name, own in self.replaced.items() if not are_equal(own, self.base[name])
        )

    def check_tied(self, names: Iterable[str]) -> None:
        """Check that the adapter leaves alone the tensors that share their values in a model."""
        for name in names:
            for changed in self.changed:
                if f".{changed}".endswith(f".{name}") or name.endswith(f".{changed}"):
                    raise CheckpointError(
                        f"{self.folder}: the adapter changes {changed}, which is tied to other "
                        f"weights of this model. {MERGE}"
                    )

    def check(self) -> None:
        """Raise CheckpointError unless every tensor of the adapter fits the checkpoint."""
        shapes = {name: tuple(own.shape) for name, own in self.replaced.items()}
        stored = {name: tuple(tensor.shape) for name, tensor in self.base.items()}
        pairs = [(name, shape, stored.get(name)) for name, shape in shapes.items()]
        for name, product in self.products.items():
            shape = (len(product.second), product.first.shape[1])
            expected = shapes.get(name, stored.get(name))
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
                f"{self.folder}: the adapter does not match this model: "
                f"{'; '.join(problems[:3])}{more}. {_advice(misfits)}"
            )


def adapted(
    files: FileTensors, folder: Path, values: Mapping[str, object]
) -> tuple[FileTensors, Adapter]:
    """Tensors of a checkpoint with an adapter merged in."""
    own, base = _tensors(folder), dict(files.tensors)
    model_type = str(values.get("model_type"))
    products, replaced = _placed(read_adapter_config(folder), own.tensors, base, model_type)
    adapter = Adapter(
        folder=folder,
        products=products,
        replaced=replaced,
        base=base,
        head=_head(model_type),
        table=_table(base, values),
    )
    if adapter.table is not None and adapter.is_untied:
        base.setdefault(adapter.head, base[adapter.table])  # a tied model has no head of its own
    adapter.check()
    merged = base | replaced
    merged |= {name: product.added_to(merged[name], name) for name, product in products.items()}
    return replace(files, tensors=merged, files=(*files.files, *own.files)), adapter


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
    return open_files(weights[:1])


def _placed(
    values: Mapping[str, object], tensors: Tensors, base: Tensors, model_type: str
) -> tuple[dict[str, Product], dict[str, LazyTensor]]:
    """Low-rank updates by the matrix they change, and tensors that replace others."""
    products: dict[str, Product] = {}
    replaced: dict[str, LazyTensor] = {}
    names = Names(base)
    for name, tensor in tensors.items():
        own = name.removeprefix(PREFIX)
        place = text_name(own) or own
        end = next((end for end in FACTORS if place.endswith(end)), None)
        if end is None:
            if "lora_" not in place:
                replaced[names.find(place.replace(".base_layer.", "."))] = tensor
            elif not re.search(r"\.lora_(embedding_B|B\.weight)$", place):
                raise CheckpointError(f"{name}: not a LoRA factor A or B. {MERGE}")
            continue
        second = tensors.get(other := name.removesuffix(end) + end.replace("_A", "_B"))
        if second is None:
            raise CheckpointError(
                f"{name}: its second factor, {other}, is missing. The download is incomplete."
            )
        if {tensor.dim(), second.dim()} != {2}:
            raise CheckpointError(f"{name}: LoRA of a convolution is not supported. {MERGE}")
        weight = names.find(f"{place.removesuffix(end)}.weight")
        outputs, inputs = len(second), tensor.shape[1]
        if FACTORS[end]:
            is_transposed = True
        elif outputs != inputs:
            is_transposed = weight in base and base[weight].shape == (inputs, outputs)
        else:
            is_turned = weight in base and base[weight].outputs_first
            is_transposed = _is_transposed(weight, model_type) and not is_turned
        scale = _scale(values, own.removesuffix(end), len(tensor))
        products[weight] = Product(tensor, second, scale, is_transposed)
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


def _table(base: Iterable[str], values: Mapping[str, object]) -> str | None:
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

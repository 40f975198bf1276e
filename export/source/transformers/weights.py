"""Reads a published checkpoint as the weights of a model of transformers.

transformers' own renamings and conversions turn published tensors into the model's weights. They
run on lazy tensors.
"""

import re
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any

from torch import Tensor

from ortolan.export.source.transformers.private import (
    Conversions,
    absent_patterns,
    in_natural_order,
    tied_weights,
    transposed_weights,
    unread_patterns,
)
from ortolan.modeling.checkpoint.mapped_weights import UNEXPECTED, differing
from ortolan.modeling.checkpoint.packed.leftovers import is_idle
from ortolan.modeling.errors import WeightError
from ortolan.modeling.lazy_tensor import LazyTensor, are_equal, whole_of

if TYPE_CHECKING:
    from transformers import PreTrainedModel


def convert_weights(
    source: Mapping[str, LazyTensor], model: "PreTrainedModel"
) -> dict[str, Tensor]:
    """Check a checkpoint against a model, and name its weights as the model does."""
    expected = {name: tuple(tensor.shape) for name, tensor in model.state_dict().items()}
    converted, problems = _converted(source, model, expected)
    tied = _tied(model, converted)
    for name, shape in expected.items():
        tensor = converted.get(tied.get(name, name))
        if tensor is None and not _ignored(absent_patterns(model), name):
            problems.append(f"missing {name}")
        elif tensor is not None and tuple(tensor.shape) != shape:
            problems.append(f"{name}: expected shape {shape}, got {tuple(tensor.shape)}")
    unexpected = [*unread_patterns(model), *_former_buffers(model)]
    problems += [
        f"{UNEXPECTED}{name}"
        for name in converted
        if name not in expected and not _ignored(unexpected, name) and not is_idle(name)
    ]
    if problems:
        raise differing(problems)
    _check_tied(model, converted)
    weights = {name: tensor for name, tensor in converted.items() if name in expected}
    return weights | {name: converted[held] for name, held in tied.items() if held in converted}


def load_buffers(model: "PreTrainedModel", weights: Mapping[str, Tensor]) -> None:
    """Load the buffers that the checkpoint holds; they are small."""
    for name, buffer in list(model.named_buffers()):
        if buffer.device.type != "meta":
            continue
        values = whole_of(weights[name])
        path, _, own = name.rpartition(".")
        model.get_submodule(path).register_buffer(own, values.to(buffer.dtype))


def _converted(
    source: Mapping[str, LazyTensor],
    model: "PreTrainedModel",
    expected: Mapping[str, tuple[int, ...]],
) -> tuple[dict[str, Tensor], list[str]]:
    """The published tensors by the model's names, and a list of problems."""
    turned = set(transposed_weights(model))
    conversions = Conversions(model, expected)
    converters: dict[str, Any] = {}
    converted: dict[str, Tensor] = {}
    for published in in_natural_order(source):
        name, pattern = conversions.renamed(published)
        tensor: Tensor = source[published]
        if source[published].outputs_first and name in turned:
            tensor = tensor.T
        if pattern is None:
            converted[name] = tensor
        else:
            if name not in converters:
                converters[name] = conversions.converter(pattern)
            converters[name].add_tensor(name, published, pattern, tensor)
    problems = []
    for name, converter in converters.items():
        try:
            converted |= conversions.converted(name, converter)
        except Exception as error:  # wrong shapes can raise anything in a conversion
            problems.append(f"{name}: its tensors do not fit together ({str(error)[:100]!r})")
    return converted, problems


def _tied(model: "PreTrainedModel", converted: Mapping[str, Tensor]) -> dict[str, str]:
    """Every weight that shares its values with another, and the one that the checkpoint holds."""
    tied: dict[str, str] = {}
    for copy, original in tied_weights(model).items():
        copies = [c for c, other in tied_weights(model).items() if other == original]
        held = next((name for name in (original, *copies) if name in converted), original)
        tied |= {name: held for name in (copy, original) if name != held}
    return tied


def _check_tied(model: "PreTrainedModel", converted: Mapping[str, Tensor]) -> None:
    """Refuse a checkpoint that holds different values for weights that share them."""
    for copy, original in tied_weights(model).items():
        if copy not in converted or original not in converted:
            continue
        if not are_equal(converted[original], converted[copy]):
            raise WeightError(
                f"{copy} differs from {original}, to which config.json ties it. If they were "
                "trained apart, set tie_word_embeddings to false."
            )


def _ignored(patterns: Iterable[str], name: str) -> bool:
    return any(re.search(pattern, name) for pattern in patterns)


def _former_buffers(model: "PreTrainedModel") -> list[str]:
    """Patterns of buffers that older checkpoints hold but the model computes."""
    own = {name.rpartition(".")[2] for name, _ in model.named_buffers()}
    patterns = {"inv_freq": r"rotary_emb\.inv_freq", "position_ids": r"(^|\.)position_ids$"}
    return [pattern for name, pattern in patterns.items() if name in own]

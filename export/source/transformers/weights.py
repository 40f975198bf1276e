"""The weights of a model of transformers by its own names, from a published checkpoint.

Published names become the model's by the renamings and conversions of transformers, which are run
on tensors that are read when their rows are (`lazy`).
"""

import re
from collections.abc import Iterable, Mapping
from copy import deepcopy
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from ortolan.export.source.transformers.lazy import LazyTensor, rows_of
from ortolan.modeling.checkpoint.mapped_weights import differing
from ortolan.modeling.errors import WeightError
from ortolan.modeling.weights import TensorSource

if TYPE_CHECKING:
    from transformers import PreTrainedModel

ROWS_AT_ONCE = 4096
"""Rows of two weights in memory while they are compared."""


class ConvertedWeights:
    """The weights of a model of transformers by its own names; see `convert_weights`."""

    def __init__(self, tensors: Mapping[str, Tensor], tied: Mapping[str, str]) -> None:
        self._tensors = tensors
        self._tied = tied
        self._held: tuple[str, Tensor] | None = None

    def shape(self, name: str) -> tuple[int, ...]:
        """The shape of a weight."""
        return tuple(self._tensors[self._tied.get(name, name)].shape)

    def rows(self, name: str, start: int, stop: int) -> Tensor:
        """Rows `[start:stop]` of a weight, in the dtype that its tensors are stored in."""
        original = self._tied.get(name, name)
        tensor = self._tensors[original]
        if not isinstance(tensor, LazyTensor) or tensor.is_sliced:
            return rows_of(tensor, start, stop)
        # All of it is needed for any row: kept until another weight is read.
        if self._held is None or self._held[0] != original:
            self._held = (original, rows_of(tensor, 0, tensor.shape[0]))
        return self._held[1][start:stop]


def convert_weights(source: TensorSource, model: "PreTrainedModel") -> ConvertedWeights:
    """Check a checkpoint against a model and give access to its weights by the model's names.

    Args:
        source: the published tensors.
        model: without weights, as `build_skeleton` gives it.

    Raises:
        WeightError: names weights that are missing, unexpected or of the wrong shape.
    """
    expected = {name: tuple(tensor.shape) for name, tensor in model.state_dict().items()}
    made, problems = _converted(source, model, expected)
    tied = _tied(model, made)
    for name, shape in expected.items():
        found = made.get(tied.get(name, name))
        if found is None and not _ignored(model._keys_to_ignore_on_load_missing, name):
            problems.append(f"missing {name}")
        elif found is not None and tuple(found.shape) != shape:
            problems.append(f"{name}: expected shape {shape}, got {tuple(found.shape)}")
    unexpected = [*(model._keys_to_ignore_on_load_unexpected or ()), *_former_buffers(model)]
    problems += [
        f"unexpected {name}"
        for name in made
        if name not in expected and not _ignored(unexpected, name)
    ]
    if problems:
        raise differing(problems)
    _check_tied(model, made)
    return ConvertedWeights({name: made[name] for name in made if name in expected}, tied)


def load_buffers(model: "PreTrainedModel", weights: ConvertedWeights) -> None:
    """Give the buffers that the checkpoint holds their values; they are small.

    Args:
        model: as `build_skeleton` gives it.
        weights: of the model.
    """
    for name, buffer in list(model.named_buffers()):
        if buffer.device.type != "meta":
            continue
        values = weights.rows(name, 0, buffer.shape[0] if buffer.dim() else 1)
        place, _, own = name.rpartition(".")
        model.get_submodule(place).register_buffer(own, values.to(buffer.dtype))


def _converted(
    source: TensorSource, model: "PreTrainedModel", expected: Mapping[str, tuple[int, ...]]
) -> tuple[dict[str, Tensor], list[str]]:
    """What becomes of every published tensor, by the model's names, and what goes wrong."""
    from transformers.conversion_mapping import get_model_conversion_mapping
    from transformers.core_model_loading import (
        WeightConverter,
        WeightRenaming,
        dot_natural_key,
        rename_source_key,
    )

    mapping = get_model_conversion_mapping(model)
    renamings = [each for each in mapping if isinstance(each, WeightRenaming)]
    converters = [each for each in mapping if isinstance(each, WeightConverter)]
    by_pattern = {pattern: each for each in converters for pattern in each.source_patterns}
    names = dict.fromkeys(expected, True)
    plans: dict[str, Any] = {}
    made: dict[str, Tensor] = {}
    for published, shape in sorted(
        source.shapes().items(), key=lambda each: dot_natural_key(each[0])
    ):
        prefix = model.base_model_prefix
        name, pattern = rename_source_key(published, renamings, converters, prefix, names)
        if name not in expected and published in expected:
            name, pattern = rename_source_key(published, [], [], prefix, names)
        tensor = _lazy(source, published, shape)
        if pattern is None:
            made[name] = tensor
        else:
            plan = plans.setdefault(name, deepcopy(by_pattern[pattern]))
            plan.add_tensor(name, published, pattern, tensor)
    problems = []
    for name, plan in plans.items():
        try:
            with torch.no_grad():
                outputs = plan.convert(name, model=model, config=model.config)
        except Exception as error:  # a conversion raises whatever wrong shapes lead to
            problems.append(f"{name}: expected tensors to make it of, got {str(error)[:100]!r}")
            continue
        for full, output in outputs.items():
            made[full] = output[0] if isinstance(output, list) else output
    return made, problems


def _lazy(source: TensorSource, name: str, shape: tuple[int, ...]) -> LazyTensor:
    return LazyTensor.read(shape, lambda start, stop: source.read(name, start, stop))


def _tied(model: "PreTrainedModel", made: Mapping[str, Tensor]) -> dict[str, str]:
    """Each weight that shares the values of another, and the one that the checkpoint holds."""
    tied: dict[str, str] = {}
    for copy, original in model.all_tied_weights_keys.items():
        group = (original, *_copies(model, original))
        held = next((name for name in group if name in made), original)
        tied |= {name: held for name in (copy, original) if name != held}
    return tied


def _copies(model: "PreTrainedModel", original: str) -> list[str]:
    return [copy for copy, other in model.all_tied_weights_keys.items() if other == original]


def _check_tied(model: "PreTrainedModel", made: Mapping[str, Tensor]) -> None:
    """Raise WeightError where two weights that share their values differ in the checkpoint."""
    for copy, original in model.all_tied_weights_keys.items():
        if copy not in made or original not in made:
            continue
        length = made[original].shape[0]
        for start in range(0, length, ROWS_AT_ONCE):
            stop = min(start + ROWS_AT_ONCE, length)
            ours, theirs = (rows_of(made[name], start, stop) for name in (original, copy))
            if not torch.equal(ours, theirs):
                raise WeightError(
                    f"{copy}: expected a copy of {original}, got other values. "
                    "If they were trained apart, set tie_word_embeddings in config.json to false."
                )


def _ignored(patterns: Iterable[str] | None, name: str) -> bool:
    return any(re.search(pattern, name) for pattern in patterns or ())


def _former_buffers(model: "PreTrainedModel") -> list[str]:
    """Patterns of buffers that older checkpoints hold, which the model computes."""
    own = {name.rpartition(".")[2] for name, _ in model.named_buffers()}
    patterns = {"inv_freq": r"rotary_emb\.inv_freq", "position_ids": r"(^|\.)position_ids$"}
    return [pattern for name, pattern in patterns.items() if name in own]

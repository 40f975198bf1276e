"""Loads a model of transformers in float32, whatever its checkpoint stores.

None of Ortolan's readers is imported here, as in `publisher.py`.
"""

import errno
import inspect
import os
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from importlib.metadata import version
from pathlib import Path
from typing import Any

import torch
from torch import nn
from transformers import integrations, modeling_gguf_pytorch_utils

from ortolan.export.witness.known import BIASED

NAME = f"transformers {version('transformers')}"
"""The library and its version."""

DEQUANTIZED = ("compressed-tensors", "fp8", "mxfp4")
"""Methods whose kernels may need a GPU, and which transformers can load as floats instead."""

ROUNDED = {"awq": 0.1, "compressed-tensors": 0.1, "gptq": 0.1}
"""Largest difference of numbers, relative to the largest, for methods whose weights are rounded to
16 bits as they are loaded. Measured: 3e-3 with two layers and scales in float16."""

IMPLIED = ("attention.key_length", "attention.value_length")
"""Keys of GGUF files that the shapes of tensors say as well."""


FINDER = "get_gguf_hf_weights_map"
"""Function that names the parameters of the tensors of a GGUF file."""


class UnansweredError(Exception):
    """The publisher's code cannot answer. The message says why, in a few words."""


def is_out_of_memory(error: BaseException) -> bool:
    """Whether an allocation failed; PyTorch and safetensors raise errors of their own for it."""
    return isinstance(error, MemoryError) or os.strerror(errno.ENOMEM) in str(error)


def skeleton(kind: Any, config: Any) -> nn.Module:
    """A model without its weights."""
    with torch.device("meta"):
        model: nn.Module = (
            kind.from_config(config) if hasattr(kind, "from_config") else kind(config)
        )
    return model


def load_floats(kind: Any, folder: Path, config: Any, **file: str) -> tuple[Any, float]:
    """Load a model in float32, and tell which difference of its numbers is due to rounding."""
    quantization = getattr(config, "quantization_config", None) or {}
    values = quantization if isinstance(quantization, dict) else vars(quantization)
    method = values.get("quant_method", "")
    if method in DEQUANTIZED:
        values["dequantize"] = True
    options: dict[str, Any] = {"config": config, "dtype": torch.float32, **file}
    if "add_pooling_layer" in inspect.signature(kind.__init__).parameters:
        options["add_pooling_layer"] = False  # many folders have no weights for it
    with left_out(config) as unread:
        try:
            model, report = kind.from_pretrained(
                folder, attn_implementation=_attention(config), output_loading_info=True, **options
            )
        except ValueError as error:
            if "attention" not in str(error):
                raise
            model, report = kind.from_pretrained(folder, output_loading_info=True, **options)
    if file and (unread := [*unread, *sorted(report["unexpected_keys"])]):
        raise UnansweredError(f"{NAME} does not read {unread[0]} of this GGUF file")
    if missing := sorted(report["missing_keys"]):
        raise UnansweredError(f"{NAME} finds no weights for {missing[0]}")
    if mismatched := sorted(str(key) for key in report["mismatched_keys"]):
        raise UnansweredError(f"{NAME} finds weights of another shape for {mismatched[0]}")
    if _has_cut_blocks(model, values.get("weight_block_size") or ()):
        raise UnansweredError(f"{NAME} takes cut blocks of scales for smaller whole ones")
    if getattr(model, "hf_quantizer", None) is not None:
        with suppress(NotImplementedError):  # such a product rounds its inputs
            model = model.dequantize(dtype=torch.float32)
    return model, ROUNDED.get(method, 0.0)


def _attention(config: Any) -> str:
    """An implementation of attention: operations one by one, where they are right."""
    key = BIASED.get(config.model_type)
    return "sdpa" if key is not None and getattr(config, key) else "eager"


class _Named(dict[str, str]):
    """Names of parameters by those of a GGUF file; reports each tensor that has none."""

    def __init__(self, names: Mapping[str, str], report: Callable[[str], None]) -> None:
        super().__init__(names)
        self._report = report

    def __contains__(self, name: object) -> bool:
        is_named = super().__contains__(name)
        if isinstance(name, str) and not is_named:
            self._report(name)
        return is_named


@contextmanager
def left_out(config: Any) -> Iterator[list[str]]:
    """Collect the tensors of a GGUF file that transformers skips without a word."""
    names: list[str] = []
    layers = getattr(config, "num_hidden_layers", 0)

    def report(name: str) -> None:
        layer = re.match(r"blk\.(\d+)\.", name)
        if layer is None or int(layer[1]) < layers:  # a shallow model has no others
            names.append(name)

    find = getattr(modeling_gguf_pytorch_utils, FINDER, None)
    if find is None:
        yield names
        return
    setattr(
        modeling_gguf_pytorch_utils,
        FINDER,
        lambda *own, **named: _Named(find(*own, **named), report),
    )
    try:
        yield names
    finally:
        setattr(modeling_gguf_pytorch_utils, FINDER, find)


def unread_key(keys: Sequence[str]) -> str | None:
    """The first key of a GGUF file that says something of the model, and is not read."""
    of_kinds: Any = getattr(integrations, "GGUF_CONFIG_MAPPING", {})
    for key in keys:
        kind, _, name = key.partition(".")
        if kind in of_kinds and name not in of_kinds[kind] and name not in IMPLIED:
            return key
    return None


def _has_cut_blocks(model: nn.Module, sizes: Any) -> bool:
    """Whether the last block of a weight has fewer values, but all could be of one size."""
    return any(
        length % size and length > size and length % -(-length // size) == 0
        for module in model.modules()
        if isinstance(module, nn.Linear)
        for length, size in zip(module.weight.shape, sizes, strict=False)
    )

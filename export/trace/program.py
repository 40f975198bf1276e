"""A module to a graph, without weights.

The module is built and traced under FakeTensorMode: tensors have shapes and no memory, so a
model larger than this machine's memory can be traced. `ortolan.export.weights` fills the
initializers.
"""

import contextlib
import logging
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from io import StringIO
from typing import TypeVar

import onnx_ir as ir
import torch
from torch import nn
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode

from ortolan.export.trace.repeat import UnlikeBlocksError, repeat
from ortolan.export.trace.shorten import mark, shorten
from ortolan.export.values import share_initializer
from ortolan.modeling.config import ModelConfig
from ortolan.modeling.models.model import TransformerModel
from ortolan.modeling.models.transformer import build

C = TypeVar("C", bound=ModelConfig)

OPSET = 24
"""Below 23 norms are decomposed; above 24 onnxruntime's support is partial."""

PREFIX = "model."
"""Before the names of parameters in what is traced: see `Entry`."""


class Entry(nn.Module):
    """A way into a model that has the inputs and outputs of a graph."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model


@dataclass(frozen=True, slots=True, kw_only=True)
class Signature:
    """Inputs and outputs of a graph.

    Attributes:
        arguments: to trace with.
        axes: names of the axes of each that vary.
        inputs: names, in order.
        outputs: names, in order.
    """

    arguments: tuple[object, ...]
    axes: tuple[object, ...]
    inputs: Sequence[str]
    outputs: Sequence[str]


def trace(
    config: C,
    dtype: torch.dtype,
    entry: Callable[[TransformerModel], Entry],
    signature: Callable[[C], Signature],
) -> ir.Model:
    """Trace one way into a model of a config, with one block of each kind if that will do.

    Args:
        config: the model.
        dtype: of weights and activations.
        entry: the way in.
        signature: makes the arguments for a model, in the mode of the trace.

    Returns:
        A graph whose initializers carry the names of the model's parameters and tables and no
        data.
    """
    short, blocks = shorten(config)
    with FakeTensorMode():
        whole = signature(config)
        if blocks.repeat:
            model = model_in(short, dtype)
            mark(model, blocks)
            traced = trace_entry(entry(model), signature(short), model.tied)
            # Slower, and the same graph: the model is traced whole instead.
            with contextlib.suppress(UnlikeBlocksError):
                repeat(traced, blocks, inputs=whole.inputs, outputs=whole.outputs)
                return traced
        model = model_in(config, dtype)
        return trace_entry(entry(model), whole, model.tied)


def trace_entry(entry: Entry, io: Signature, tied: Mapping[str, str]) -> ir.Model:
    """Trace one way into a model that has no memory; call it in the mode of the trace.

    Args:
        entry: the way in.
        io: inputs and outputs.
        tied: names that a parameter has besides its own, and its own.
    """
    with _quiet():
        program = torch.onnx.export(
            entry.eval(),
            io.arguments,
            dynamic_shapes=io.axes,
            input_names=list(io.inputs),
            output_names=list(io.outputs),
            opset_version=OPSET,
            dynamo=True,
            optimize=False,
            verbose=False,
        )
    if program is None:
        raise RuntimeError("torch.onnx.export returned no program")
    traced: ir.Model = program.model
    for name, value in list(traced.graph.initializers.items()):
        value.name = name.removeprefix(PREFIX)
        if value.const_value is not None and isinstance(value.const_value.raw, FakeTensor):
            value.const_value = None
    for name, original in tied.items():
        share_initializer(traced.graph, name, original)
    return traced


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """Keep what the exporter says of its own internals from the user.

    It warns, it prints progress even when it is told not to, and it logs that torchvision,
    which nothing here needs, is not installed.
    """
    logger = logging.getLogger("torch.onnx._internal.exporter._registration")
    level = logger.level
    logger.setLevel(logging.ERROR)
    try:
        with warnings.catch_warnings(), contextlib.redirect_stdout(StringIO()):
            warnings.simplefilter("ignore")
            yield
    finally:
        logger.setLevel(level)


def model_in(config: ModelConfig, dtype: torch.dtype) -> TransformerModel:
    """A model in `dtype`. `Module.to` cannot swap fake parameters, so it is born in it."""
    default = torch.get_default_dtype()
    torch.set_default_dtype(dtype)
    try:
        model = build(config)
    finally:
        torch.set_default_dtype(default)
    for module in model.modules():
        for name, table in list(module.named_buffers(recurse=False)):
            if table.is_floating_point():
                module.register_buffer(name, table.to(dtype), persistent=False)
    return model

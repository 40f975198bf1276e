"""Traces a module to a graph without weights.

The module is built and traced under FakeTensorMode: tensors have shapes and no memory, so a model
that does not fit into memory can be traced. `ortolan.export.weights` fills the initializers later.
"""

import contextlib
import logging
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from io import StringIO
from types import MappingProxyType
from typing import NamedTuple, TypeVar

import onnx_ir as ir
import torch
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode

from ortolan.export.trace.lines import causes, first_line, line_of_model
from ortolan.export.trace.repeat import UnlikeBlocksError, repeat
from ortolan.export.trace.shorten import mark, shorten
from ortolan.export.values import share_initializer
from ortolan.modeling.config import ModelConfig
from ortolan.modeling.errors import ConfigError
from ortolan.modeling.models.model import TransformerModel
from ortolan.modeling.models.transformer import build

C = TypeVar("C", bound=ModelConfig)

OPSET = 24
"""ONNX opset. Before 23 norms are decomposed; after 24 onnxruntime's support is partial."""

PREFIX = "model."
"""Prefix of parameter names in a traced `Entry`."""


Feeds = dict[str, Tensor]
"""The inputs of a graph, by name."""


class Entry(nn.Module):
    """A module around a model, from `Feeds` to the outputs of a graph."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model


class GraphInput(NamedTuple):
    """An input of a graph: its name, an example, and the names of its axes that vary."""

    name: str
    example: Tensor
    axes: Mapping[int, str] = MappingProxyType({})


@dataclass(frozen=True, slots=True)
class Signature:
    """The inputs of a graph and the names of its outputs, in order."""

    inputs: Sequence[GraphInput]
    outputs: Sequence[str]

    @property
    def names(self) -> list[str]:
        """Names of the inputs."""
        return [each.name for each in self.inputs]


def trace(
    config: C,
    dtype: torch.dtype,
    entry: Callable[[TransformerModel], Entry],
    signature: Callable[[C], Signature],
) -> ir.Model:
    """Trace a model through an entry.

    Blocks of equal configs are traced once and repeated in the graph, if that is possible.
    """
    short, blocks = shorten(config)
    with _explained(config.model_type), FakeTensorMode():
        whole = signature(config)
        if blocks.repeat:
            model = model_in(short, dtype)
            mark(model, blocks)
            traced = trace_entry(entry(model), signature(short), model.tied)
            # Otherwise trace the whole model: slower, but the same graph.
            with contextlib.suppress(UnlikeBlocksError):
                repeat(traced, blocks, inputs=whole.names, outputs=whole.outputs)
                return traced
        model = model_in(config, dtype)
        return trace_entry(entry(model), whole, model.tied)


@contextlib.contextmanager
def _explained(model_type: str) -> Iterator[None]:
    """Name the module and the line that torch cannot trace, in one sentence."""
    try:
        yield
    except torch.onnx.errors.OnnxExporterError as error:
        *_, root = causes(error)
        raise ConfigError(
            f"{model_type}: PyTorch {torch.__version__} cannot trace this model: "
            f"{type(root).__name__}: {first_line(root)}{line_of_model(root)}. Its sizes may be "
            "unusual. Try another version of PyTorch or, for a language model, --via transformers."
        ) from error


def trace_entry(entry: Entry, io: Signature, tied: Mapping[str, str]) -> ir.Model:
    """Trace an entry under the caller's FakeTensorMode."""
    with _quiet():
        program = torch.onnx.export(
            entry.eval(),
            kwargs={"feeds": {each.name: each.example for each in io.inputs}},
            dynamic_shapes={"feeds": {each.name: dict(each.axes) for each in io.inputs}},
            input_names=io.names,
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
    """Silence the exporter's messages about its own internals.

    It warns, prints progress even with `verbose=False`, and logs that torchvision, which nothing
    here needs, is not installed.
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
    """Build a model in `dtype`: `Module.to` cannot convert fake parameters."""
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

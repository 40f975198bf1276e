"""PyTorch to a graph, without weights.

The module is built and traced under FakeTensorMode: tensors have shapes and no memory, so a
model larger than this machine's memory can be traced. `weights.py` fills the initializers.
"""

import contextlib
import io
import logging
import warnings
from collections.abc import Iterator, Sequence

import onnx_ir as ir
import torch
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensorMode

from ortolan.modeling import Decoder, TransformerConfig
from ortolan.modeling.cache import LayerCache, Step, empty_cache

OPSET = 24
"""Below 23 norms are decomposed; above 24 onnxruntime's support is partial."""

STEP_INPUTS = ("input_ids", "seqlens_k", "total_sequence_length", "logit_positions")


class _DecoderGraph(nn.Module):
    """A decoder's step with the inputs and outputs of the graph contract."""

    def __init__(self, decoder: Decoder) -> None:
        super().__init__()
        self.decoder = decoder

    def forward(
        self,
        input_ids: Tensor,
        seqlens_k: Tensor,
        total: Tensor,
        logit_positions: Tensor,
        cache: Sequence[tuple[Tensor, Tensor]],
    ) -> tuple[Tensor, list[LayerCache]]:
        past = [LayerCache(key, value) for key, value in cache]
        step = Step(seqlens_k, total)
        logits, present = self.decoder.step(input_ids, step, past, logit_positions)
        return logits.float(), present


def trace_decoder(
    config: TransformerConfig, *, dtype: torch.dtype, sequence: int | None = None
) -> ir.Model:
    """Trace one step of a decoder.

    Args:
        config: what to trace.
        dtype: of weights, activations and cache; logits are float32 in any case.
        sequence: new tokens of a step, if their number is fixed.

    Returns:
        A graph with the inputs and outputs of the bundle's contract, whose initializers carry
        the names of the decoder's parameters and tables and no data.
    """
    with FakeTensorMode(), _quiet():
        graph = _DecoderGraph(_decoder(config, dtype)).eval()
        arguments, shapes = _example(config, dtype, sequence)
        program = torch.onnx.export(
            graph,
            arguments,
            dynamic_shapes=shapes,
            input_names=[*STEP_INPUTS, *cache_names("past_key_values", config)],
            output_names=["logits", *cache_names("present", config)],
            opset_version=OPSET,
            dynamo=True,
            optimize=False,
            verbose=False,
        )
    if program is None:
        raise RuntimeError("torch.onnx.export returned no program")
    model: ir.Model = program.model
    for name in list(model.graph.initializers):
        model.graph.initializers[name].name = name.removeprefix("decoder.")
    return model


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
        with warnings.catch_warnings(), contextlib.redirect_stdout(io.StringIO()):
            warnings.simplefilter("ignore")
            yield
    finally:
        logger.setLevel(level)


def _decoder(config: TransformerConfig, dtype: torch.dtype) -> Decoder:
    """A decoder in `dtype`. `Module.to` cannot swap fake parameters, so it is born in it."""
    default = torch.get_default_dtype()
    torch.set_default_dtype(dtype)
    try:
        decoder = Decoder(config)
    finally:
        torch.set_default_dtype(default)
    for name, table in list(decoder.named_buffers()):
        decoder.register_buffer(name, table.to(dtype), persistent=False)
    return decoder


def cache_names(prefix: str, config: TransformerConfig) -> list[str]:
    """Names of the cache's tensors, two a layer, in the order of the graph."""
    return [f"{prefix}.{i}.{kind}" for i in range(len(config.blocks)) for kind in ("key", "value")]


def _example(
    config: TransformerConfig, dtype: torch.dtype, sequence: int | None
) -> tuple[tuple[object, ...], tuple[object, ...]]:
    """Arguments to trace with, and the names of the axes that vary."""
    batch, new_tokens, capacity = 2, sequence or 4, 8
    cache = [
        (key.to(dtype), value.to(dtype))
        for key, value in empty_cache(config, batch=batch, capacity=capacity)
    ]
    arguments = (
        torch.zeros(batch, new_tokens, dtype=torch.int64),
        torch.zeros(batch, dtype=torch.int32),
        torch.zeros((), dtype=torch.int32),
        torch.zeros(batch, sequence or 3, dtype=torch.int64),
        cache,
    )
    buffer = {0: "batch", 2: "capacity"}
    shapes: tuple[object, ...] = (
        {0: "batch"} if sequence else {0: "batch", 1: "sequence"},
        {0: "batch"},
        {},
        {0: "batch"} if sequence else {0: "batch", 1: "rows"},
        [(buffer, buffer) for _ in cache],
    )
    return arguments, shapes

"""Opens a recurrent network of `ortolan.modeling`, live or a checkpoint, as a user's module."""

from dataclasses import replace
from functools import cache, partial
from pathlib import Path

import onnx_ir as ir
import torch

from ortolan.export.exportable import Exportable, Origin
from ortolan.export.passes.normalize import fold, normalize
from ortolan.export.source.family import module_sha256
from ortolan.export.source.module import folder_or_file, open_empty
from ortolan.export.trace.attention_maps import recurrent_map_names, trace_recurrent_maps
from ortolan.export.trace.module import find_carried
from ortolan.modeling.checkpoint.checkpoint import Checkpoint
from ortolan.modeling.checkpoint.folder import (
    empty_model,
    limit_context,
    open_weights,
)
from ortolan.modeling.config import RecurrentConfig
from ortolan.modeling.families.reader import ConfigKeys
from ortolan.modeling.models.recurrent import RecurrentModel
from ortolan.modeling.weights import Weights, module_weights
from ortolan.runtime.bundle.kinds import MAPS_ROLE
from ortolan.runtime.bundle.manifest import Graph, Tokens


def open_recurrent_model(
    model: RecurrentModel, *, tokenizer: str | Path | None, max_context: int | None
) -> Exportable:
    """Open a live model."""
    folder, path = folder_or_file(tokenizer)
    sha256 = cache(partial(module_sha256, model))
    origin = Origin(model_type=model.config.model_type, sha256=sha256, folder=folder)
    return _open(model.config, module_weights(model), origin, path, max_context)


def open_recurrent(
    config: RecurrentConfig,
    keys: ConfigKeys,
    checkpoint: Checkpoint,
    *,
    tokenizer: str | Path | None,
    max_context: int | None,
) -> Exportable:
    """Open a checkpoint."""
    origin = Origin.of_checkpoint(checkpoint, config.model_type, keys)
    return _open(config, open_weights(checkpoint, config), origin, tokenizer, max_context)


def _open(
    config: RecurrentConfig,
    weights: Weights,
    origin: Origin,
    tokenizer: str | Path | None,
    max_context: int | None,
) -> Exportable:
    opened = open_empty(
        empty_model(config).eval(),
        weights,
        origin,
        context=limit_context(config, max_context).context_length,
        tokens=Tokens(bos=config.bos_token_id, eos=config.eos_token_ids, pad=config.pad_token_id),
        tokenizer=tokenizer,
    )
    if config.cell != "feed_forward":
        # WebGPU has no LSTM, GRU or RNN; one token of them is products.
        opened = replace(opened, takes_one_on=frozenset({"webgpu", "web"}))
    return _with_maps(opened, config)


def _with_maps(opened: Exportable, config: RecurrentConfig) -> Exportable:
    """Add a graph of attention maps, if the network has attention or a memory."""
    names = recurrent_map_names(config)
    if not names:
        return opened
    kept = find_carried(opened.module).kept

    def trace(role: str, graph: Graph, dtype: torch.dtype) -> ir.Model:
        if role != MAPS_ROLE:
            return opened.trace(role, graph, dtype)
        traced = trace_recurrent_maps(config, kept, dtype=dtype)
        return normalize(fold(traced, {}), context_length=opened.context_length)

    return replace(opened, trace=trace, maps=names)

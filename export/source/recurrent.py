"""Opens a recurrent network of `ortolan.modeling`, live or a checkpoint, as a user's module."""

from collections.abc import Callable
from dataclasses import replace
from functools import cache, partial
from pathlib import Path

import onnx_ir as ir
import torch

from ortolan.export.exportable import Exportable
from ortolan.export.passes.simplify import simplify
from ortolan.export.source.family import module_sha256
from ortolan.export.source.module import Described, folder_or_file, open_empty
from ortolan.export.trace.attention_maps import recurrent_map_names, trace_recurrent_maps
from ortolan.export.trace.module import find_carried
from ortolan.modeling.checkpoint.checkpoint import Checkpoint
from ortolan.modeling.checkpoint.folder import (
    empty_model,
    limit_context,
    open_weights,
    read_config_keys,
)
from ortolan.modeling.config import RecurrentConfig
from ortolan.modeling.models.recurrent import RecurrentModel
from ortolan.modeling.weights import ModuleWeights, Weights
from ortolan.runtime.bundle.kinds import MAPS_ROLE
from ortolan.runtime.bundle.manifest import Graph, Tokens


def open_recurrent_model(
    model: RecurrentModel, *, tokenizer: str | Path | None, max_context: int | None
) -> Exportable:
    """Open a live model. Same options and errors as `open_exportable`."""
    folder, path = folder_or_file(tokenizer)
    sha256 = partial(module_sha256, model)
    return _open(
        model.config,
        ModuleWeights(model),
        sha256,
        folder,
        tokenizer=path,
        max_context=max_context,
    )


def open_recurrent(
    config: RecurrentConfig,
    checkpoint: Checkpoint,
    *,
    tokenizer: str | Path | None,
    max_context: int | None,
    accept_unknown: tuple[str, ...] = (),
) -> Exportable:
    """Open a checkpoint. Same options and errors as `open_exportable`."""
    opened = _open(
        config,
        open_weights(checkpoint, config),
        checkpoint.sha256,
        checkpoint.folder,
        tokenizer=None if tokenizer is None else Path(tokenizer),
        max_context=max_context,
    )
    return replace(opened, keys=read_config_keys(checkpoint, accept_unknown))


def _open(
    config: RecurrentConfig,
    weights: Weights,
    sha256: Callable[[], str],
    folder: Path | None,
    *,
    tokenizer: Path | None,
    max_context: int | None,
) -> Exportable:
    limited = limit_context(config, max_context)
    described = Described(
        model_type=limited.model_type,
        context_length=limited.context_length,
        tokens=Tokens(
            bos=limited.bos_token_id, eos=limited.eos_token_ids, pad=limited.pad_token_id
        ),
        sha256=cache(sha256),
        folder=folder,
    )
    opened = open_empty(empty_model(config).eval(), weights, described, tokenizer=tokenizer)
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
        return simplify(traced, tables={}, context_length=opened.context_length)

    return replace(opened, trace=trace, maps=names)

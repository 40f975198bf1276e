"""A recurrent network of `ortolan.modeling`, live or as a checkpoint: a module over a `State`."""

from dataclasses import replace
from functools import cache, partial
from pathlib import Path

import onnx_ir as ir
import torch

from ortolan.export.exportable import Exportable
from ortolan.export.passes.simplify import simplify
from ortolan.export.source.family import module_sha256
from ortolan.export.source.module import Described, open_empty
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
from ortolan.modeling.weights import ModuleWeights
from ortolan.runtime.bundle.kinds import MAPS_ROLE
from ortolan.runtime.bundle.manifest import Graph, Tokens


def open_recurrent_model(
    model: RecurrentModel, *, tokenizer: str | Path | None, max_context: int | None
) -> Exportable:
    """Open a live model; see `open_family` for the arguments and what is raised."""
    given = None if tokenizer is None else Path(tokenizer)
    folder = given if given is not None and given.is_dir() else None
    described = _described(limit_context(model.config, max_context))
    opened = open_empty(
        empty_model(model.config).eval(),
        ModuleWeights(model),
        replace(described, sha256=cache(partial(module_sha256, model)), folder=folder),
        tokenizer=None if folder is not None else given,
    )
    return _with_maps(opened, model.config)


def open_recurrent(
    config: RecurrentConfig,
    checkpoint: Checkpoint,
    *,
    tokenizer: str | Path | None,
    max_context: int | None,
    accept_unknown: tuple[str, ...] = (),
) -> Exportable:
    """Open a checkpoint; see `open_family` for the arguments and what is raised."""
    described = _described(limit_context(config, max_context))
    opened = open_empty(
        empty_model(config).eval(),
        open_weights(checkpoint, config),
        replace(described, sha256=cache(checkpoint.sha256), folder=checkpoint.folder),
        tokenizer=None if tokenizer is None else Path(tokenizer),
    )
    return replace(_with_maps(opened, config), keys=read_config_keys(checkpoint, accept_unknown))


def _with_maps(opened: Exportable, config: RecurrentConfig) -> Exportable:
    """The same, of which is shown what it looks at, if it does."""
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


def _described(config: RecurrentConfig) -> Described:
    return Described(
        model_type=config.model_type,
        context_length=config.context_length,
        tokens=Tokens(bos=config.bos_token_id, eos=config.eos_token_ids, pad=config.pad_token_id),
        sha256=lambda: "",
        folder=None,
    )

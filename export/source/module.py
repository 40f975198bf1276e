"""Opens a user's own module: any `torch.nn.Module` whose `forward(ids, state)` returns logits.

See `ortolan.modeling.state`. One forward without memory shows what it carries; nothing is declared.
"""

import copy
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import cache, partial
from pathlib import Path
from typing import Any

import onnx_ir as ir
import torch
from torch import Tensor, nn

from ortolan.export.errors import OptionError
from ortolan.export.exportable import Exportable, Origin
from ortolan.export.locality.check import check_locality
from ortolan.export.passes.normalize import fold, normalize
from ortolan.export.source.companions import companions_of, tokenizer_of
from ortolan.export.source.family import module_sha256
from ortolan.export.source.special_tokens import GENERATION_CONFIG, special_tokens
from ortolan.export.trace.module import (
    Carried,
    apart,
    find_carried,
    loose_tensors,
    trace_module,
)
from ortolan.modeling.config import AttentionConfig
from ortolan.modeling.layers.cache import LayerCache, StepLengths
from ortolan.modeling.state import CachedState, State
from ortolan.modeling.weights import Weights, module_weights
from ortolan.runtime.bundle.kinds import MAPS_ROLE
from ortolan.runtime.bundle.manifest import Graph, Tokens


def open_module(
    module: nn.Module, *, tokenizer: str | Path | None, max_context: int | None
) -> Exportable:
    """Open a live module."""
    context = max_context or getattr(module, "context_length", None)
    if not isinstance(context, int) or context < 1:
        raise OptionError(
            f"max_context: {type(module).__name__} has no context_length (got {context}). Pass the "
            "number of tokens that have to fit."
        )
    folder, path = folder_or_file(tokenizer)
    sha256 = cache(partial(module_sha256, module))
    opened = open_empty(
        without_memory(module),
        module_weights(module),
        Origin(model_type=type(module).__name__, sha256=sha256, folder=folder),
        context=context,
        tokens=Tokens(),
        tokenizer=path,
    )
    empty = opened.module
    return replace(
        opened,
        check=partial(_check, module, opened),
        # Inputs run in turns: attributes that one sets must not reach another.
        forward=lambda source, ids: _forward(apart(empty), source, ids),
    )


def folder_or_file(tokenizer: str | Path | None) -> tuple[Path | None, Path | None]:
    """A live model's tokenizer, as a folder with companions or as a file alone."""
    path = None if tokenizer is None else Path(tokenizer)
    return (path, None) if path is not None and path.is_dir() else (None, path)


def _check(live: nn.Module, opened: Exportable) -> None:
    """Refuse a module that reads other tokens, or remembers anything, without its state."""
    tokens, empty = opened.tokens, opened.module
    special = [each for each in (tokens.bos, *tokens.eos, tokens.pad) if each is not None]
    check_locality(live, empty, find_carried(empty), context=opened.context_length, special=special)


def open_empty(
    module: nn.Module,
    weights: Weights,
    origin: Origin,
    *,
    context: int,
    tokens: Tokens,
    tokenizer: str | Path | None,
) -> Exportable:
    """Open a module without memory; a generation_config.json completes its special tokens."""
    carried, tables = find_carried(module), dict(module.named_buffers())
    companions = companions_of(
        origin.folder,
        tokenizer,
        vocab_size=carried.vocab_size,
        has_vocabulary=True,
        has_decoder=True,
    )
    generation = companions.get(GENERATION_CONFIG)
    return Exportable(
        kind="decoder",
        origin=origin,
        context_length=context,
        vocab_size=carried.vocab_size,
        source_vocab_size=carried.vocab_size,
        module=module,
        forward=partial(_forward, module),
        weights=weights,
        tables=tables,
        trace=lambda role, graph, dtype: normalize(
            _trace(module, carried, tables, role, graph, dtype), context_length=context
        ),
        states=carried.states,
        companions=companions,
        tokens=special_tokens(
            tokens,
            generation.parent if isinstance(generation, Path) else None,
            vocab_size=carried.vocab_size,
        ),
        tokenizer=tokenizer_of(companions, carried.vocab_size),
        cached=partial(_cached, module, carried),
        takes_one=carried.takes_one,
    )


def without_memory(module: nn.Module) -> nn.Module:
    """Copy a module with its parameters on `meta`; buffers are shared."""
    memo: dict[int, Any] = {
        id(parameter): nn.Parameter(
            torch.empty_like(parameter, device="meta", dtype=torch.float32), requires_grad=False
        )
        for parameter in module.parameters()
    }
    memo |= {id(buffer): buffer for buffer in module.buffers()}
    memo |= {id(tensor): tensor.detach() for tensor in loose_tensors(module)}
    return copy.deepcopy(module, memo).eval()


def _forward(module: nn.Module, _: Tensor | None, ids: Tensor | None) -> Tensor:
    if ids is None:
        raise TypeError("a decoder takes ids")
    out: Tensor = module(ids[None], State.whole())
    return out[0]


def _cached(module: nn.Module, carried: Carried, ids: Tensor) -> Sequence[LayerCache]:
    tokens = len(ids)
    state = CachedState(
        StepLengths.first(tokens),
        {layer: _empty(spec, tokens) for layer, spec in carried.layers.items()},
        {name: torch.zeros(1, *shape) for name, shape in carried.kept.items()},
        torch.tensor([[tokens - 1]]),
        {name: torch.zeros(1, tokens, width) for name, width in carried.extended.items()},
    )
    apart(module)(ids[None], state)
    return [state.presents[layer] for layer in carried.layers]


def _empty(spec: AttentionConfig, tokens: int) -> LayerCache:
    shape = (1, spec.num_kv_heads, tokens, spec.head_dim)
    return LayerCache(torch.zeros(shape), torch.zeros(shape))


def _trace(
    module: nn.Module,
    carried: Carried,
    tables: Mapping[str, Tensor],
    role: str,
    graph: Graph,
    dtype: torch.dtype,
) -> ir.Model:
    if role == MAPS_ROLE:
        raise OptionError(
            "attention_maps: only models of Ortolan's own families have them, not this module. "
            "Leave it out."
        )
    return trace_module(
        module,
        carried,
        dtype=dtype,
        tied=_tied(module),
        sequence=graph.sequence,
        fold=partial(fold, tables=tables),
    )


def _tied(module: nn.Module) -> Mapping[str, str]:
    """Second names of shared parameters, and the first name of each."""
    first: dict[int, str] = {}
    return {
        name: original
        for name, parameter in module.named_parameters(remove_duplicate=False)
        if (original := first.setdefault(id(parameter), name)) != name
    }

"""Opens causal language models of transformers whose attention is its `AttentionInterface`.

Weights keep their own names.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import onnx_ir as ir
import torch
from torch import Tensor

from ortolan.export.errors import OptionError
from ortolan.export.exportable import Exportable, Origin
from ortolan.export.source.companions import COMPANIONS, TOKENIZER
from ortolan.export.source.context import context_notes
from ortolan.export.source.module import open_empty
from ortolan.export.source.transformers.adapter import (
    TransformersModule,
    first_position,
    longest_context,
)
from ortolan.export.source.transformers.experts import interleaved
from ortolan.export.source.transformers.keys import read_keys
from ortolan.export.source.transformers.private import set_experts, tied_weights
from ortolan.export.source.transformers.rotary import pin_rotary, switches_after
from ortolan.export.source.transformers.skeleton import build_skeleton, config_of
from ortolan.export.source.transformers.weights import convert_weights, load_buffers
from ortolan.modeling.checkpoint.checkpoint import Checkpoint
from ortolan.modeling.errors import ConfigError
from ortolan.modeling.weights import TensorWeights
from ortolan.runtime.bundle.manifest import Graph, Tokens

if TYPE_CHECKING:
    from transformers import PreTrainedConfig, PreTrainedModel

__all__ = ["open_transformers"]


def open_transformers(
    checkpoint: Checkpoint,
    *,
    tokenizer: str | Path | None,
    max_context: int | None,
    accept_unknown: tuple[str, ...] = (),
) -> Exportable:
    """Open a checkpoint, with the options and errors of `open_exportable`.

    The reference is transformers' own forward, with its attention, masks and experts. The trace is
    of the same model over a `State`. By default the context is the model's own, or the longest one
    in which all lengths have the same rotary frequencies; see `pin_rotary`.
    """
    reference = build_skeleton(checkpoint.values)
    set_experts(reference, "eager")  # reads one expert at a time
    keys = read_keys(checkpoint.values, config_of(checkpoint.values), accept_unknown)
    if checkpoint.adapter is not None:
        tied = tied_weights(reference)
        checkpoint.adapter.check_tied((*tied, *tied.values()))
    weights = convert_weights(checkpoint.tensors, reference)
    traced = build_skeleton(checkpoint.values)
    last = switches_after(reference)
    context = _context(reference, max_context, last)
    for model in (reference, traced):
        load_buffers(model, weights)
    # Up to `last` the reference chooses frequencies itself. Beyond, probes are too short for it to
    # choose those of the whole context.
    for model in (traced,) if last is None or context <= last else (traced, reference):
        pin_rotary(model, context)
    model_type, reach = reference.config.model_type, longest_context(reference)
    _write_companions(checkpoint, with_tokenizer=tokenizer is None)
    with _explained(model_type):
        adapter = TransformersModule(traced, context)
        opened = open_empty(
            adapter,
            TensorWeights(interleaved(weights)),
            Origin.of_checkpoint(checkpoint, model_type, keys),
            context=context,
            tokens=_tokens(reference.config),
            tokenizer=tokenizer,
        )

    def trace(role: str, graph: Graph, dtype: torch.dtype) -> ir.Model:
        with _explained(model_type):
            return opened.trace(role, graph, dtype)

    return replace(
        opened,
        trace=trace,
        module=reference,
        forward=lambda _, ids: _forward(reference, ids),
        switches_after=last,
        notes=context_notes(context, switches_after=last, reach=reach),
    )


@contextmanager
def _explained(model_type: str) -> Iterator[None]:
    try:
        yield
    except ConfigError as error:
        raise ConfigError(
            f"{model_type}: cannot be computed step by step over a State: {error} It needs a "
            "family of its own."
        ) from error


def _forward(model: "PreTrainedModel", ids: Tensor | None) -> Tensor:
    if ids is None:
        raise TypeError("a decoder takes ids")
    first = first_position(model)
    # Such a model counts positions without padding, but a prompt may contain the padding's id.
    positions = {"position_ids": torch.arange(first, first + len(ids))[None]} if first else {}
    out: Tensor = model(input_ids=ids[None], use_cache=False, **positions).logits
    return out[0]


def _context(model: "PreTrainedModel", max_context: int | None, last: int | None) -> int:
    """Tokens that have to fit; by default as long as the frequencies stay the same."""
    longest = longest_context(model)
    if max_context is None and longest is None:
        raise OptionError(
            f"max_context: the config of {model.config.model_type} has no number of positions. "
            "Pass the number of tokens that have to fit."
        )
    context = max_context
    if context is None:
        context = longest if last is None or longest is None else min(longest, last)
    if context is None or not 1 <= context <= (longest or context):
        raise OptionError(
            f"max_context must be from 1 to {longest} (got {context}), the model's last position."
        )
    return context


def _tokens(config: "PreTrainedConfig") -> Tokens:
    text = config.get_text_config()
    bos, eos, pad = (getattr(text, f"{name}_token_id", None) for name in ("bos", "eos", "pad"))
    ends = tuple(eos) if isinstance(eos, (list, tuple)) else (eos,)
    return Tokens(bos=bos, eos=tuple(token for token in ends if token is not None), pad=pad)


def _write_companions(checkpoint: Checkpoint, *, with_tokenizer: bool) -> None:
    """Make a single-file checkpoint write its companions into its folder."""
    for name in COMPANIONS:
        if with_tokenizer or name != TOKENIZER:
            checkpoint.companion(name)

"""Any causal language model of transformers: built without weights, read under its own names."""

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from ortolan.export.errors import OptionError
from ortolan.export.exportable import Exportable
from ortolan.export.source.companions import COMPANIONS, TOKENIZER
from ortolan.export.source.module import Described, open_empty
from ortolan.export.source.transformers.adapter import (
    TransformersModule,
    first_position,
    longest_context,
)
from ortolan.export.source.transformers.experts import WeightsInTurn
from ortolan.export.source.transformers.keys import read_keys
from ortolan.export.source.transformers.rotary import pin_rotary
from ortolan.export.source.transformers.skeleton import build_skeleton, config_of
from ortolan.export.source.transformers.weights import convert_weights, load_buffers
from ortolan.modeling.checkpoint.checkpoint import Checkpoint
from ortolan.modeling.errors import ConfigError
from ortolan.runtime.bundle.manifest import Tokens

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
    """Open a checkpoint of a causal language model that transformers has.

    The reference is transformers' own forward, with its attention, masks and experts; what is
    traced is the same model over a `State`. In both, `max_context` chooses rotary frequencies that
    transformers chooses by the length of a text.

    Args:
        checkpoint: as it was published.
        tokenizer: a tokenizer.json for it; the checkpoint's own by default.
        max_context: tokens that have to fit; the model's own by default.
        accept_unknown: keys of config.json to ignore although nothing is known of them.

    Raises:
        CheckpointError: the files cannot be read.
        ConfigError: transformers is not installed or does not have the model, or the model's
            attention cannot be exported like this.
        WeightError: names weights that are missing, unexpected or of the wrong shape.
        OptionError: nothing says how many tokens have to fit.
        TokenizerError: tokenizer.json is damaged, or belongs to another model.
    """
    reference = build_skeleton(checkpoint.values)
    if reference._can_set_experts_implementation():
        reference.set_experts_implementation("eager")  # reads one expert at a time
    keys = read_keys(checkpoint.values, config_of(checkpoint.values), accept_unknown)
    weights = convert_weights(checkpoint.tensors, reference)
    traced = build_skeleton(checkpoint.values)
    context = _context(reference, max_context)
    for model in (reference, traced):
        load_buffers(model, weights)
        pin_rotary(model, context)
    model_type = reference.config.model_type
    described = Described(
        model_type=model_type,
        context_length=context,
        tokens=_tokens(reference.config),
        sha256=checkpoint.sha256,
        folder=checkpoint.folder,
    )
    given = None if tokenizer is None else Path(tokenizer)
    _make_companions(checkpoint, with_tokenizer=given is None)
    try:
        adapter = TransformersModule(traced, context)
        opened = open_empty(adapter, WeightsInTurn(weights), described, tokenizer=given)
    except ConfigError as error:
        raise ConfigError(
            f"{model_type}: expected a model that can be computed a step at a time over a State, "
            f"got: {error} It needs a family of its own."
        ) from error
    opened = replace(opened, keys=keys, left_out=checkpoint.left_out)
    return replace(opened, module=reference, forward=lambda _, ids: _forward(reference, ids))


def _forward(model: "PreTrainedModel", ids: Tensor | None) -> Tensor:
    if ids is None:
        raise TypeError("a decoder takes ids")
    first = first_position(model)
    # Such a model does not count a token of the padding's id, which a text may hold.
    given = {"position_ids": torch.arange(first, first + len(ids))[None]} if first else {}
    out: Tensor = model(input_ids=ids[None], use_cache=False, **given).logits
    return out[0]


def _context(model: "PreTrainedModel", max_context: int | None) -> int:
    longest = longest_context(model)
    if max_context is None and longest is None:
        raise OptionError(
            f"{model.config.model_type}: expected max_context, since its config names no number of "
            "positions, got none. Give the tokens that have to fit."
        )
    context = longest if max_context is None else max_context
    if context is None or not 1 <= context <= (longest or context):
        raise OptionError(
            f"max_context: expected 1 to {longest}, got {context}. "
            "The model's positions reach no further."
        )
    return context


def _tokens(config: "PreTrainedConfig") -> Tokens:
    text = config.get_text_config()
    bos, eos, pad = (getattr(text, f"{name}_token_id", None) for name in ("bos", "eos", "pad"))
    several = tuple(eos) if isinstance(eos, (list, tuple)) else (eos,)
    return Tokens(
        bos=bos,
        eos=tuple(token for token in several if token is not None),
        pad=pad,
    )


def _make_companions(checkpoint: Checkpoint, *, with_tokenizer: bool) -> None:
    """Let a checkpoint that is a single file write what belongs beside it into its folder."""
    for name in COMPANIONS:
        if with_tokenizer or name != TOKENIZER:
            checkpoint.companion(name)

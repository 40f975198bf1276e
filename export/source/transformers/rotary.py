"""Rotary frequencies that transformers chooses by the length of a text, chosen once and for all.

Other frequencies would change the angles of keys that a cache already holds. The context that was
chosen takes the place of the length, as in `ortolan.modeling.config.LongRopeScaling`
(docs/adr/0032).
"""

from typing import Any

import torch
from torch import nn

PINNED = "pinned"
"""A type of rotary positions by which transformers does not look at lengths."""


def switches_after(model: nn.Module) -> int | None:
    """Tokens of the longest text before a model of transformers takes other frequencies.

    None where they are the same for all texts that it takes.
    """
    found = []
    for module in model.modules():
        kinds = getattr(module, "rope_type", None)
        if isinstance(kinds, str):
            kinds = {None: kinds}
        for layers, kind in (kinds or {}).items():
            parameters = _parameters(module, layers)
            if kind == "longrope" and parameters["short_factor"] != parameters["long_factor"]:
                found.append(int(parameters["original_max_position_embeddings"]))
    return min(found, default=None)


def pin_rotary(model: nn.Module, context_length: int) -> None:
    """Give rotary positions that depend on a length those of a context.

    Args:
        model: of transformers, with its buffers.
        context_length: tokens that have to fit.
    """
    module: Any
    for module in model.modules():
        match getattr(module, "rope_type", None):
            case str() as kind:
                module.rope_type = _pinned(module, kind, None, context_length)
            case dict() as kinds:
                module.rope_type = {
                    layers: _pinned(module, kind, layers, context_length)
                    for layers, kind in kinds.items()
                }


def _pinned(module: Any, kind: str, layers: str | None, context_length: int) -> str:
    """The type of some layers of a module from now on; of all where None."""
    if kind != "longrope" and "dynamic" not in kind:
        return kind
    original = _parameters(module, layers).get("original_max_position_embeddings")
    if kind == "longrope" and context_length > original:
        from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

        chosen = {} if layers is None else {"layer_type": layers}
        frequencies, _ = ROPE_INIT_FUNCTIONS[kind](
            module.config, torch.device("cpu"), seq_len=original + 1, **chosen
        )
        name = "inv_freq" if layers is None else f"{layers}_inv_freq"
        module.register_buffer(name, frequencies, persistent=False)
    return PINNED


def _parameters(module: Any, layers: str | None) -> Any:
    """What the config says of the rotary positions of some layers."""
    given = module.config.rope_parameters
    return given if layers is None else given[layers]

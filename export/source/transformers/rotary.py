"""Fixes the rotary frequencies that transformers would choose by the length of a sequence.

Changing them in the middle of a sequence would change the angles of cached keys. They are chosen
for the whole context instead, as in `ortolan.modeling.config.LongRopeScaling` (docs/adr/0032).
"""

from typing import Any

from torch import nn

from ortolan.export.source.transformers.private import rotary_frequencies

PINNED = "pinned"
"""A `rope_type` for which transformers does not look at lengths."""


def switches_after(model: nn.Module) -> int | None:
    """The longest sequence before a model changes its rotary frequencies.

    None if they are the same for all lengths.
    """
    lengths = []
    for module in model.modules():
        kinds = getattr(module, "rope_type", None)
        if isinstance(kinds, str):
            kinds = {None: kinds}
        for layers, kind in (kinds or {}).items():
            parameters = _parameters(module, layers)
            if kind == "longrope" and parameters["short_factor"] != parameters["long_factor"]:
                lengths.append(int(parameters["original_max_position_embeddings"]))
    return min(lengths, default=None)


def pin_rotary(model: nn.Module, context_length: int) -> None:
    """Fix rotary frequencies that depend on the length to those of a context."""
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
    """Fix the frequencies of some layers, or of all (None), and return their new type."""
    if kind != "longrope" and "dynamic" not in kind:
        return kind
    original = _parameters(module, layers).get("original_max_position_embeddings")
    if kind == "longrope" and context_length > original:
        frequencies = rotary_frequencies(module.config, kind, layers=layers, length=original + 1)
        name = "inv_freq" if layers is None else f"{layers}_inv_freq"
        module.register_buffer(name, frequencies, persistent=False)
    return PINNED


def _parameters(module: Any, layers: str | None) -> Any:
    parameters = module.config.rope_parameters
    return parameters if layers is None else parameters[layers]

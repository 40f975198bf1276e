"""Compares a port with the model that it was ported from; `reference` of `ortolan.export`.

Shape letters: S tokens, V vocabulary.
"""

import copy
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn

from ortolan.export.errors import OptionError
from ortolan.export.exportable import Exportable
from ortolan.export.trace.lines import first_line, line_of_error
from ortolan.export.trace.module import apart
from ortolan.modeling.errors import ConfigError

Reference = Callable[[Tensor], Any]
"""A module or function from ids `(1, S)` to logits `(1, S, V)`, alone, first in a tuple, or named
`logits`."""

TOLERANCE = 1e-4
"""Largest difference between a port and its reference, relative to the largest logit above 1."""


def with_reference(opened: Exportable, reference: Reference) -> Exportable:
    """The same model, whose certificate holds what its reference computes.

    Args:
        opened: a decoder that reads ids alone.
        reference: called with the ids of every probe, in evaluation mode, in float32 and on the
            CPU; left as it is.
    """
    if opened.kind != "decoder" or opened.features is not None or opened.hidden is not None:
        raise OptionError(
            f"reference needs a model from ids to logits (got one of kind {opened.kind}). Leave it "
            "out."
        )
    if not callable(reference):
        raise OptionError(
            f"reference must be a module or a function of ids (got {type(reference).__name__})."
        )
    if isinstance(reference, nn.Module):
        is_plain = all(p.dtype == torch.float32 and p.is_cpu for p in reference.parameters())
        reference = apart(reference) if is_plain else copy.deepcopy(reference).float().cpu()
        reference.eval()

    def original(_: Tensor | None, ids: Tensor | None, expected: Tensor) -> Tensor:
        if ids is None:
            raise TypeError("a decoder takes ids")
        logits = _logits(reference, ids, expected)
        _compare(opened.origin.model_type, ids, expected, logits)
        return logits

    return replace(opened, original=original)


def _logits(reference: Reference, ids: Tensor, expected: Tensor) -> Tensor:
    """Logits of the reference, `(S, V)`."""
    try:
        with torch.no_grad():
            output = reference(ids[None].clone())
    except Exception as error:  # it can raise anything
        raise ConfigError(
            f"reference: calling it with {len(ids)} ids raised {type(error).__name__}: "
            f"{first_line(error)}{line_of_error(error)}. It must accept ids (1, S) alone; pass a "
            "function if the model needs more."
        ) from error
    if isinstance(output, Mapping):
        output = output.get("logits")
    elif isinstance(output, (tuple, list)):
        output = output[0]
    output = getattr(output, "logits", output)
    shape = tuple(output.shape) if isinstance(output, Tensor) else type(output).__name__
    if not isinstance(output, Tensor) or shape not in {(1, *expected.shape), tuple(expected.shape)}:
        raise ConfigError(
            f"reference: expected logits of shape {(1, *expected.shape)} for {len(ids)} ids, got "
            f"{shape}. Pass a function that returns the logits of every token, such as "
            "`lambda ids: model(ids).logits`."
        )
    return output.reshape(expected.shape).float().cpu()


def _compare(name: str, ids: Tensor, port: Tensor, reference: Tensor) -> None:
    """Refuse a port that computes other logits."""
    distance_S = (port - reference).abs().amax(-1)
    most = TOLERANCE * max(1.0, float(reference.abs().max()))
    wrong = (~(distance_S <= most)).nonzero()[:, 0].tolist()
    if wrong:
        raise ConfigError(
            f"{name} differs from its reference, first at position {wrong[0]} of {len(ids)} ids: "
            f"logits by {float(distance_S[wrong[0]]):.2g}, and by {float(distance_S.max()):.2g} at "
            f"most (allowed: {most:.2g}); {len(wrong)} of {len(ids)} positions differ. Compare "
            "positions, masks, scales and norms of the two."
        )

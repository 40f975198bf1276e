"""Computes the recurrences of transformers' models as one node each, over the state of the step.

Models use the same names for these functions: each one here replaces all of its name. It also
continues a prompt in chunks. The second result is an empty tensor instead of the next state, which
is kept already.

Shape letters: B batch, S new tokens, H heads, D key width, U value width, G groups of heads,
I channels, N numbers of a channel's state.
"""

import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ortolan.export.source.transformers.attention import STEP
from ortolan.export.source.transformers.private import (
    DELTA_RULES,
    STATE_SPACE_OF_CHANNELS,
    STATE_SPACE_OF_HEADS,
)

NORM_EPSILON = 1e-6


def _recur(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    *,
    decay: Tensor,
    rate: Tensor | None = None,
    scale: float = 1.0,
) -> Tensor:
    """Compute the recurrence that the cache was asked for last; all tensors `(B, S, H, ...)`.

    Heads may share queries and keys, which have fewer heads then.
    """
    step = STEP.get()
    inputs = (part.transpose(1, 2).float() for part in (query, key, value))
    name = step.recurrence + (f".{step.recurrences}" if step.recurrences else "")
    step.recurrences += 1
    out = step.state.recur(
        name,
        *inputs,
        decay=decay.transpose(1, 2),
        rate=None if rate is None else rate.transpose(1, 2),
        scale=scale,
    )
    return out.transpose(1, 2)


def delta_rule(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    g: Tensor,
    beta: Tensor,
    *,
    use_qk_l2norm_in_kernel: bool = False,
    **_: Any,
) -> tuple[Tensor, Tensor]:
    """The delta rule with a decay of each head `(B, S, H)` or of each channel `(B, S, H, D)`."""
    query, key = query.float(), key.float()
    if use_qk_l2norm_in_kernel:
        query, key = _unit(query), _unit(key)
    scale = query.shape[-1] ** -0.5
    out = _recur(query, key, value, decay=g.float(), rate=beta.float(), scale=scale)
    return out.to(value.dtype), out.new_empty(0)


def _unit(x: Tensor) -> Tensor:
    return x * torch.rsqrt((x * x).sum(-1, keepdim=True) + NORM_EPSILON)


def state_space_of_heads(
    hidden_states: Tensor,
    dt: Tensor,
    A: Tensor,
    B: Tensor,
    C: Tensor,
    *,
    D: Tensor | None = None,
    dt_bias: Tensor | None = None,
    dt_softplus: bool = False,
    dt_limit: tuple[float, float] = (0.0, float("inf")),
    **_: Any,
) -> tuple[Tensor, Tensor]:
    """Mamba 2: a decay `A * dt` of each head; keys B and queries C `(B, S, G, N)` of groups."""
    x_BSHU = hidden_states.float()
    step_BSH = dt if dt_bias is None else dt + dt_bias
    step_BSH = F.softplus(step_BSH) if dt_softplus else step_BSH
    step_BSH = step_BSH.clamp(*dt_limit).float()
    out = _recur(C, B, x_BSHU * step_BSH[..., None], decay=A.float() * step_BSH)
    out = out if D is None else out + D[:, None] * x_BSHU
    return out.contiguous(), out.new_empty(0)


def state_space_of_channels(
    hidden_states: Tensor,
    dt: Tensor,
    A: Tensor,
    B: Tensor,
    C: Tensor,
    *,
    D: Tensor | None = None,
    z: Tensor | None = None,
    delta_bias: Tensor | None = None,
    delta_softplus: bool = False,
    **_: Any,
) -> tuple[Tensor, Tensor]:
    """Mamba 1: every channel is a head one value wide; x, dt, z `(B, I, S)`, A `(I, N)`."""
    x_BSI1 = hidden_states.float().transpose(1, 2)[..., None]
    step_BIS = dt if delta_bias is None else dt + delta_bias[:, None]
    step_BIS = F.softplus(step_BIS) if delta_softplus else step_BIS
    step_BSI1 = step_BIS.float().transpose(1, 2)[..., None]
    keys, queries = (part.transpose(1, 2)[:, :, None] for part in (B, C))
    out = _recur(queries, keys, x_BSI1 * step_BSI1, decay=A.float() * step_BSI1)
    out_BIS = out[..., 0].transpose(1, 2)
    out_BIS = out_BIS if D is None else out_BIS + D[:, None] * hidden_states
    out_BIS = out_BIS if z is None else out_BIS * F.silu(z)
    return out_BIS, out_BIS.new_empty(0)


REPLACED: Mapping[str, Callable[..., tuple[Tensor, Tensor]]] = {
    **dict.fromkeys(DELTA_RULES, delta_rule),
    STATE_SPACE_OF_HEADS: state_space_of_heads,
    STATE_SPACE_OF_CHANNELS: state_space_of_channels,
}
"""By the names that transformers' models use."""


@contextmanager
def replaced(model: nn.Module) -> Iterator[None]:
    """Replace the recurrences in the files of a model's modules."""
    files = {type(module).__module__ for module in model.modules()}
    originals = [
        (sys.modules[file], name, getattr(sys.modules[file], name))
        for file in files
        for name in REPLACED
        if hasattr(sys.modules[file], name)
    ]
    try:
        for file, name, _ in originals:
            setattr(file, name, REPLACED[name])
        yield
    finally:
        for file, name, own in originals:
            setattr(file, name, own)

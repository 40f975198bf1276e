"""The experts of a layer as products that a graph can hold.

Shape letters: T tokens, E model width, I width of an expert, N experts, K experts of a token.
"""

from typing import Any

import torch
from torch import Tensor

NAME = "ortolan"
"""What transformers knows these experts by."""


def register() -> None:
    """Make transformers know these experts; again does no harm."""
    from transformers.integrations.moe import ALL_EXPERTS_FUNCTIONS

    ALL_EXPERTS_FUNCTIONS.register(NAME, mix)


def mix(experts: Any, x_TE: Tensor, chosen_TK: Tensor, weights_TK: Tensor) -> Tensor:
    """What transformers calls for the experts of a layer, `(T, E)` to `(T, E)`.

    Every expert computes every token, and counts where it was chosen: no shape depends on the
    tokens, and no weight is copied.

    Args:
        experts: a module that `use_experts_implementation` of transformers made known.
        x_TE: what enters them.
        chosen_TK: the experts of each token; a number from `N` on is of none.
        weights_TK: of the chosen.
    """
    up = "gate_up_proj" if experts.has_gate else "up_proj"
    inner = _product(experts, up, x_TE)
    inner = experts._apply_gate(inner) if experts.has_gate else experts.act_fn(inner)
    out_NTE = _product(experts, "down_proj", inner)
    if experts.has_post_expert_norm:
        out_NTE = experts.post_expert_norm(out_NTE)
    numbers = torch.arange(out_NTE.shape[0])
    weights_TN = ((chosen_TK[..., None] == numbers) * weights_TK[..., None]).sum(-2)
    out_TE = (out_NTE * weights_TN.T[..., None]).sum(0)
    return out_TE.to(x_TE.dtype)


def _product(experts: Any, name: str, x: Tensor) -> Tensor:
    """`(T, E)` or `(N, T, E)` through the weights of all experts, to `(N, T, I)`."""
    weight = getattr(experts, name)
    out = torch.matmul(x, weight if experts.is_transposed else weight.transpose(-1, -2))
    return out + getattr(experts, f"{name}_bias")[:, None] if experts.has_bias else out

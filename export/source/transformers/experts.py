"""The experts of a layer as one node, or as products that a graph can hold.

Shape letters: T tokens, E model width, I width of an expert, N experts, K experts of a token.
"""

from typing import Any

import torch
from torch import Tensor, nn

from ortolan.modeling.config import MixtureConfig
from ortolan.modeling.layers import lowering
from ortolan.modeling.weights import Weights

NAME = "ortolan"
"""What transformers knows these experts by."""

_FOLLOWING, IN_TURN = "gate_up_proj", "gate_up_in_turn"
"""Names of a weight `(N, 2 * I, E)`: rows of up follow those of the gate, or come in turn."""

_LEAST = 1e-30
"""The weight of an expert whose weight is 0; it has a logarithm."""


def register() -> None:
    """Make transformers know these experts; again does no harm."""
    from transformers.integrations.moe import ALL_EXPERTS_FUNCTIONS

    ALL_EXPERTS_FUNCTIONS.register(NAME, mix)


def turn(model: nn.Module) -> None:
    """Let the weights that a node takes be as it takes them."""
    for experts in model.modules():
        if _fits_node(experts):
            following = experts.get_parameter(_FOLLOWING)
            del experts.gate_up_proj
            experts.register_parameter(IN_TURN, nn.Parameter(_in_turn(following.data)))


class WeightsInTurn:
    """The weights of a model under the names that `turn` gives them as well.

    Args:
        weights: by the names of transformers.
    """

    def __init__(self, weights: Weights) -> None:
        self._weights = weights

    def shape(self, name: str) -> tuple[int, ...]:
        """The shape of a weight."""
        return self._weights.shape(_stored(name))

    def rows(self, name: str, start: int, stop: int) -> Tensor:
        """Rows `[start:stop]` of a weight, in its stored dtype."""
        rows = self._weights.rows(_stored(name), start, stop)
        return rows if _stored(name) == name else _in_turn(rows)


def mix(experts: Any, x_TE: Tensor, chosen_TK: Tensor, weights_TK: Tensor) -> Tensor:
    """What transformers calls for the experts of a layer, `(T, E)` to `(T, E)`.

    Args:
        experts: a module that `use_experts_implementation` of transformers made known.
        x_TE: what enters them.
        chosen_TK: the experts of each token; a number from `N` on is of none.
        weights_TK: of the chosen.
    """
    numbers = torch.arange(experts.down_proj.shape[0])
    weights_TN = ((chosen_TK[..., None] == numbers) * weights_TK[..., None]).sum(-2)
    if hasattr(experts, IN_TURN) and torch.onnx.is_in_onnx_export():
        return _node(experts, x_TE, weights_TN.to(x_TE.dtype), chosen_TK.shape[-1])
    return _all(experts, x_TE, weights_TN)


def _fits_node(experts: Any) -> bool:
    """Whether the kernel has these: `down(silu(gate(x)) * up(x))` without biases."""
    if not hasattr(experts, "has_post_expert_norm"):
        return False
    others = (experts.has_bias, experts.has_post_expert_norm, experts.is_transposed)
    own_gate = type(experts)._apply_gate.__module__ != "transformers.integrations.moe"
    if any(others) or own_gate or not (experts.has_gate and experts.is_concatenated):
        return False
    x = torch.linspace(-4, 4, 33, device="cpu")
    return torch.equal(experts.act_fn(x), nn.functional.silu(x))


def _in_turn(following: Tensor) -> Tensor:
    """`(N, 2 * I, E)` with a row of the gate and one of up in turn."""
    gate_and_up = torch.unflatten(following, 1, (2, -1))
    return gate_and_up.transpose(1, 2).flatten(1, 2).contiguous()


def _stored(name: str) -> str:
    return name.removesuffix(IN_TURN) + _FOLLOWING if name.endswith(IN_TURN) else name


def _node(experts: Any, x_TE: Tensor, weights_TN: Tensor, chosen: int) -> Tensor:
    """One node; its weights are the softmax of logarithms, and so sum to 1."""
    spec = MixtureConfig(
        experts=weights_TN.shape[1],
        per_token=min(chosen, weights_TN.shape[1]),
        intermediate_size=experts.down_proj.shape[2],
    )
    out = lowering.mixture(
        x_TE[None],
        weights_TN.clamp(min=_LEAST).log(),
        (getattr(experts, IN_TURN), None),
        (experts.down_proj, None),
        spec=spec,
    )
    out_TE: Tensor = out[0] * weights_TN.sum(-1, keepdim=True)
    return out_TE


def _all(experts: Any, x_TE: Tensor, weights_TN: Tensor) -> Tensor:
    """Every expert computes every token, and counts where it was chosen.

    So no shape depends on the tokens, and no weight is copied.
    """
    if hasattr(experts, IN_TURN):
        both = torch.matmul(x_TE, getattr(experts, IN_TURN).transpose(-1, -2))
        inner = experts.act_fn(both[..., ::2]) * both[..., 1::2]
    elif experts.has_gate:
        inner = experts._apply_gate(_product(experts, _FOLLOWING, x_TE))
    else:
        inner = experts.act_fn(_product(experts, "up_proj", x_TE))
    out_NTE = _product(experts, "down_proj", inner)
    if experts.has_post_expert_norm:
        out_NTE = experts.post_expert_norm(out_NTE)
    return (out_NTE * weights_TN.T[..., None]).sum(0).to(x_TE.dtype)


def _product(experts: Any, name: str, x: Tensor) -> Tensor:
    """`(T, E)` or `(N, T, E)` through the weights of all experts, to `(N, T, I)`."""
    weight = getattr(experts, name)
    out = torch.matmul(x, weight if experts.is_transposed else weight.transpose(-1, -2))
    return out + getattr(experts, f"{name}_bias")[:, None] if experts.has_bias else out

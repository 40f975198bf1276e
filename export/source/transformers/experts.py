"""Computes the experts of a layer as one node, or as products that can be traced.

Shape letters: T tokens, E model width, I width of an expert, N experts, K experts of a token.
"""

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn

from ortolan.export.source.transformers.private import has_usual_gate, register_experts
from ortolan.modeling.config import MixtureConfig
from ortolan.modeling.layers import nodes
from ortolan.modeling.layers.mixture import NEVER, SMALLEST

NAME = "ortolan"
"""Name of these experts in transformers."""

_HALVES, INTERLEAVED = "gate_up_proj", "gate_up_in_turn"
"""Names of a weight `(N, 2 * I, E)`: rows of gate then up as two halves, or interleaved."""


def register() -> None:
    """Register these experts with transformers, once or again."""
    register_experts(NAME, mix)


def interleave(model: nn.Module) -> None:
    """Give the experts that fit one node the weight in its layout."""
    for experts in model.modules():
        if _fits_node(experts):
            halves = experts.get_parameter(_HALVES)
            del experts.gate_up_proj
            experts.register_parameter(INTERLEAVED, nn.Parameter(_interleaved(halves.data)))


def interleaved(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """The weights of a model, also under the names that `interleave` adds."""
    added = {
        f"{name.removesuffix(_HALVES)}{INTERLEAVED}": _interleaved(tensor)
        for name, tensor in tensors.items()
        if name.endswith(f".{_HALVES}") and tensor.shape[1] % 2 == 0
    }
    return {**tensors, **added}


def mix(experts: Any, x_TE: Tensor, chosen_TK: Tensor, weights_TK: Tensor) -> Tensor:
    """Compute the experts of a layer, from `(T, E)` to `(T, E)`; called in every such layer."""
    if hasattr(experts, INTERLEAVED) and torch.onnx.is_in_onnx_export():
        return _node(experts, x_TE, chosen_TK, weights_TK.to(x_TE.dtype))
    numbers = torch.arange(experts.down_proj.shape[0])
    weights_TN = ((chosen_TK[..., None] == numbers) * weights_TK[..., None]).sum(-2)
    return _all(experts, x_TE, weights_TN)


def _fits_node(experts: Any) -> bool:
    """Whether the kernel can compute them: `down(silu(gate(x)) * up(x))` without biases."""
    if not hasattr(experts, "has_post_expert_norm"):
        return False
    others = (experts.has_bias, experts.has_post_expert_norm, experts.is_transposed)
    halves = experts.has_gate and experts.is_concatenated
    if any(others) or not halves or not has_usual_gate(experts):
        return False
    x = torch.linspace(-4, 4, 33, device="cpu")
    return torch.equal(experts.act_fn(x), nn.functional.silu(x))


def _interleaved(halves: Tensor) -> Tensor:
    """Interleave the rows of gate and up of a weight `(N, 2 * I, E)`."""
    gate_and_up = torch.unflatten(halves, 1, (2, -1))
    return gate_and_up.transpose(1, 2).flatten(1, 2).contiguous()


def _node(experts: Any, x_TE: Tensor, chosen_TK: Tensor, weights_TK: Tensor) -> Tensor:
    """One node. It takes the softmax of logits: pass logarithms, and restore the sum of weights.

    Often the router's own logits will do: see `export.passes.rules.route_by_logits`.
    """
    spec = MixtureConfig(
        experts=experts.down_proj.shape[0],
        per_token=chosen_TK.shape[1],
        intermediate_size=experts.down_proj.shape[2],
    )
    others_TN = x_TE.new_full((x_TE.shape[0], spec.experts), NEVER)
    logits_TN = others_TN.scatter(-1, chosen_TK, weights_TK.clamp(min=SMALLEST).log())
    out = nodes.mixture(
        x_TE[None],
        logits_TN,
        (getattr(experts, INTERLEAVED), None),
        (experts.down_proj, None),
        spec=spec,
    )
    out_TE: Tensor = out[0] * weights_TK.sum(-1, keepdim=True)
    return out_TE


def _all(experts: Any, x_TE: Tensor, weights_TN: Tensor) -> Tensor:
    """Compute every expert for every token, and weigh those that were not chosen with 0.

    No shape depends on the ids then, and no weight is copied.
    """
    if hasattr(experts, INTERLEAVED):
        both = torch.matmul(x_TE, getattr(experts, INTERLEAVED).transpose(-1, -2))
        inner = experts.act_fn(both[..., ::2]) * both[..., 1::2]
    elif experts.has_gate:
        inner = experts._apply_gate(_product(experts, _HALVES, x_TE))
    else:
        inner = experts.act_fn(_product(experts, "up_proj", x_TE))
    out_NTE = _product(experts, "down_proj", inner)
    if experts.has_post_expert_norm:
        out_NTE = experts.post_expert_norm(out_NTE)
    return (out_NTE * weights_TN.T[..., None]).sum(0).to(x_TE.dtype)


def _product(experts: Any, name: str, x: Tensor) -> Tensor:
    """Multiply `(T, E)` or `(N, T, E)` by the weights of all experts, to `(N, T, I)`."""
    weight = getattr(experts, name)
    out = torch.matmul(x, weight if experts.is_transposed else weight.transpose(-1, -2))
    return out + getattr(experts, f"{name}_bias")[:, None] if experts.has_bias else out

"""Linear recurrence over tokens: linear attention with optional decay and delta rule.

Shape letters: B batch, S new tokens, H value heads, K query and key heads, D key width, U value
width.

Source: the onnxruntime operator LinearAttention (com.microsoft, version 1).
"""

from itertools import repeat
from typing import NamedTuple

import torch
from torch import Tensor

_RULES = {
    (False, False): "linear",
    (True, False): "gated",
    (False, True): "delta",
    (True, True): "gated_delta",
}
"""Update rule of the node, by whether there is a decay and a rate."""


class Recurrence(NamedTuple):
    """Inputs of a recurrence.

    Attributes:
        query: `(B, S, K, D)`, where K divides H; H / K adjacent value heads share each.
        key: `(B, S, K, D)`.
        value: `(B, S, H, U)`.
        decay: logarithm of the factor that the state is multiplied by before each token, per head
            `(B, S, H)` or per key channel `(B, S, H, D)`; None keeps the state.
        rate: step size of the delta rule, `(B, S, H)`: the state's prediction for the key is
            subtracted from the value, and the difference is multiplied by the rate. None adds
            the value itself.
        scale: multiplies the queries.
    """

    query: Tensor
    key: Tensor
    value: Tensor
    decay: Tensor | None = None
    rate: Tensor | None = None
    scale: float = 1.0

    def turned(self) -> "Recurrence":
        """The same inputs with the axes of tokens and heads swapped."""
        query, key, value = (tensor.transpose(1, 2) for tensor in self[:3])
        decay, rate = (
            None if gate is None else gate.transpose(1, 2) for gate in (self.decay, self.rate)
        )
        return Recurrence(query, key, value, decay, rate, self.scale)


def recur(inputs: Recurrence, state_BHDU: Tensor) -> tuple[Tensor, Tensor]:
    """Continue a recurrence; one node while `torch.onnx.export` traces.

    Returns:
        `(B, S, H, U)`, and the state after the last token.
    """
    if torch.onnx.is_in_onnx_export():
        return _node(inputs, state_BHDU)
    query, key, value, decay, rate, scale = inputs
    times = value.shape[2] // key.shape[2]
    if times > 1:
        query, key = (tensor.repeat_interleave(times, 2) for tensor in (query, key))
    outputs = []
    # Unbind once: the gradient of an index is as large as the whole tensor, at every token.
    for query_BHD, key_BHD, added_BHU, decay_BHX, rate_BH in zip(
        query.unbind(1),
        key.unbind(1),
        value.unbind(1),
        repeat(None) if decay is None else decay.exp().unbind(1),
        repeat(None) if rate is None else rate.unbind(1),
        strict=False,
    ):
        key_BHD1 = key_BHD[..., None]
        if decay_BHX is not None:
            # Per head, or per channel of the keys.
            widened = decay_BHX if decay_BHX.dim() == 3 else decay_BHX[..., None]
            state_BHDU = state_BHDU * widened[..., None]
        if rate_BH is not None:
            added_BHU = (added_BHU - (state_BHDU * key_BHD1).sum(2)) * rate_BH[..., None]
        state_BHDU = state_BHDU + key_BHD1 * added_BHU[:, :, None]
        outputs.append((state_BHDU * query_BHD[..., None]).sum(2) * scale)
    return torch.stack(outputs, 1), state_BHDU


def _node(inputs: Recurrence, state_BHDU: Tensor) -> tuple[Tensor, Tensor]:
    batch, length, heads, width = inputs.value.shape
    gates = [None if gate is None else _joined(gate) for gate in (inputs.decay, inputs.rate)]
    out, state = torch.onnx.ops.symbolic_multi_out(
        "com.microsoft::LinearAttention",
        (*(_joined(tensor) for tensor in inputs[:3]), state_BHDU, *gates),
        {
            "q_num_heads": inputs.query.shape[2],
            "kv_num_heads": heads,
            "update_rule": _RULES[inputs.decay is not None, inputs.rate is not None],
            "scale": inputs.scale,
        },
        dtypes=(inputs.value.dtype, state_BHDU.dtype),
        shapes=((batch, length, heads * width), state_BHDU.shape),
        version=1,
    )
    return torch.unflatten(out, -1, (heads, width)), state


def _joined(x: Tensor) -> Tensor:
    """`(B, S, H, ...)` as `(B, S, H * ...)`."""
    return x.flatten(2) if x.dim() > 3 else x

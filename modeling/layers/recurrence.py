"""A linear recurrence over the tokens of a text: linear attention, its gates and the delta rule.

Shape letters: B batch, S new tokens, H heads, K heads of queries and keys, D key width, U value
width.

Source: the operator LinearAttention of onnxruntime (com.microsoft, version 1).
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
"""Names of the node's rules, by whether there is a decay and a rate."""


class Recurrence(NamedTuple):
    """What enters a recurrence.

    Attributes:
        query: `(B, S, K, D)`, K a divisor of H; as many heads of values in turn share each.
        key: `(B, S, K, D)`.
        value: `(B, S, H, U)`.
        decay: logarithms of what the state is multiplied by before each token, `(B, S, H)` or for
            each channel of the keys `(B, S, H, D)`; none by default.
        rate: of the delta rule, `(B, S, H)`: what the state gives for the key already is taken from
            the value, and so much of the rest is added; values are added as they are by default.
        scale: of the queries.
    """

    query: Tensor
    key: Tensor
    value: Tensor
    decay: Tensor | None = None
    rate: Tensor | None = None
    scale: float = 1.0

    def turned(self) -> "Recurrence":
        """The same with heads in the place of tokens, and tokens in that of heads."""
        query, key, value = (each.transpose(1, 2) for each in self[:3])
        decay, rate = (
            None if gate is None else gate.transpose(1, 2) for gate in (self.decay, self.rate)
        )
        return Recurrence(query, key, value, decay, rate, self.scale)


def recur(given: Recurrence, state_BHDU: Tensor) -> tuple[Tensor, Tensor]:
    """Continue a recurrence by some tokens; one node while `torch.onnx.export` traces.

    Args:
        given: of the new tokens.
        state_BHDU: after the tokens before them; zeros at the start of a text.

    Returns:
        `(B, S, H, U)`, and the state after the last token.
    """
    if torch.onnx.is_in_onnx_export():
        return _node(given, state_BHDU)
    query, key, value, decay, rate, scale = given
    times = value.shape[2] // key.shape[2]
    if times > 1:
        query, key = (each.repeat_interleave(times, 2) for each in (query, key))
    outputs = []
    # unbound once: the gradient of an index is as large as what it is taken from, at every token
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
            # of each head, or of each channel of its keys
            widened = decay_BHX if decay_BHX.dim() == 3 else decay_BHX[..., None]
            state_BHDU = state_BHDU * widened[..., None]
        if rate_BH is not None:
            added_BHU = (added_BHU - (state_BHDU * key_BHD1).sum(2)) * rate_BH[..., None]
        state_BHDU = state_BHDU + key_BHD1 * added_BHU[:, :, None]
        outputs.append((state_BHDU * query_BHD[..., None]).sum(2) * scale)
    return torch.stack(outputs, 1), state_BHDU


def _node(given: Recurrence, state_BHDU: Tensor) -> tuple[Tensor, Tensor]:
    batch, length, heads, width = given.value.shape
    inputs = (given.query, given.key, given.value)
    gates = [None if gate is None else _joined(gate) for gate in (given.decay, given.rate)]
    out, state = torch.onnx.ops.symbolic_multi_out(
        "com.microsoft::LinearAttention",
        (*(_joined(each) for each in inputs), state_BHDU, *gates),
        {
            "q_num_heads": given.query.shape[2],
            "kv_num_heads": heads,
            "update_rule": _RULES[given.decay is not None, given.rate is not None],
            "scale": given.scale,
        },
        dtypes=(given.value.dtype, state_BHDU.dtype),
        shapes=((batch, length, heads * width), state_BHDU.shape),
        version=1,
    )
    return torch.unflatten(out, -1, (heads, width)), state


def _joined(x: Tensor) -> Tensor:
    """`(B, S, H, ...)` as `(B, S, H * ...)`."""
    return x.flatten(2) if x.dim() > 3 else x

"""Memory of a Neural Turing Machine, and the heads that address it (Graves et al. 2014).

Shape letters: B batch, N slots, M slot width, K heads (read heads, then write heads), R read heads,
W write heads, H controller width, J shifts.

The paper leaves some choices open. Here, keys and additions go through tanh; all heads address the
memory of the previous step, which is then written and read; every slot starts as one learned
vector, and every head at slot 0. Untrained heads address by location rather than content, and stay
sharp: read heads wait, write heads advance one slot per token. From there, training soon finds that
a sequence can be read where it was written. With randomly initialized heads, the controller learns
to remember short sequences on its own, and never uses the memory.
"""

from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ortolan.modeling.config.recurrent import MemoryConfig

EPSILON = 1e-8
"""Keeps the length of an empty slot above zero."""

MOVING, SHARP, AHEAD = 2.0, 2.0, 2.0
"""Initial biases: subtracted from the gate, added to the sharpness, and to a write head's shift."""


class MemoryState(NamedTuple):
    """Memory state carried from token to token.

    Attributes:
        contents: `(B, N, M)`.
        weights: attention of every head to every slot, `(B, K, N)`.
    """

    contents: Tensor
    weights: Tensor


class Memory(nn.Module):
    """A memory that a controller reads and writes by attention.

    `heads` projects the controller's output. Per head: a key (M), its strength, a gate, a sharpness
    and the shifts (J); then per write head: an erase and an add vector (M).
    """

    def __init__(self, config: MemoryConfig, width: int) -> None:
        super().__init__()
        self.config = config
        self.shifts = 2 * config.shift_range + 1
        self.addressing = config.width + 3 + self.shifts
        rows = config.heads * self.addressing + config.write_heads * 2 * config.width
        self.heads = nn.Linear(width, rows)
        self.initial = nn.Parameter(torch.empty(config.width))
        nn.init.uniform_(self.initial, -(config.width**-0.5), config.width**-0.5)
        with torch.no_grad():
            addressing_KX = self.heads.bias[: config.heads * self.addressing].view(config.heads, -1)
            addressing_KX[:, config.width + 1] -= MOVING
            addressing_KX[:, config.width + 2] += SHARP
            addressing_KX[config.read_heads :, config.width + 4 + config.shift_range] += AHEAD

    def forward(self, out_BH: Tensor, before: MemoryState) -> tuple[Tensor, MemoryState]:
        """Address, write and read once: the vectors read `(B, R * M)`, and the memory after it."""
        config, rows_BX = self.config, self.heads(out_BH)
        cut = config.heads * self.addressing
        weights_BKN = self.address(rows_BX[:, :cut].unflatten(-1, (config.heads, -1)), before)
        changes_BW2M = rows_BX[:, cut:].unflatten(-1, (config.write_heads, 2, config.width))
        writing_BWN1 = weights_BKN[:, config.read_heads :, :, None]
        kept_BWNM = 1 - writing_BWN1 * torch.sigmoid(changes_BW2M[:, :, 0])[:, :, None]
        added_BWNM = writing_BWN1 * torch.tanh(changes_BW2M[:, :, 1])[:, :, None]
        contents_BNM = before.contents
        for kept_BNM in kept_BWNM.unbind(1):
            contents_BNM = contents_BNM * kept_BNM
        after = MemoryState(contents_BNM + added_BWNM.sum(1), weights_BKN)
        return self.read(after), after

    def read(self, state: MemoryState) -> Tensor:
        """Vectors that the read heads see, `(B, R * M)`."""
        return (state.weights[:, : self.config.read_heads] @ state.contents).flatten(1)

    def address(self, rows_BKX: Tensor, before: MemoryState) -> Tensor:
        """Attention of every head, `(B, K, N)`: by content first, then shifted by location."""
        width = self.config.width
        key_BKM = torch.tanh(rows_BKX[..., :width])
        strength_BK1 = F.softplus(rows_BKX[..., width : width + 1])
        gate_BK1 = torch.sigmoid(rows_BKX[..., width + 1 : width + 2])
        sharpness_BK1 = 1 + F.softplus(rows_BKX[..., width + 2 : width + 3])
        shift_BKJ = rows_BKX[..., width + 3 :].softmax(-1)
        similar_BKN = _cosine(key_BKM, before.contents)
        content_BKN = (strength_BK1 * similar_BKN).softmax(-1)
        gated_BKN = before.weights + gate_BK1 * (content_BKN - before.weights)
        shifted_BKN = rotate(gated_BKN, shift_BKJ)
        sharp_BKN = shifted_BKN**sharpness_BK1
        return sharp_BKN / sharp_BKN.sum(-1, keepdim=True)

    def begin(self, changes: MemoryState) -> MemoryState:
        """The memory for a difference from the initial memory; zeros mean the initial memory."""
        return MemoryState(changes.contents + self.initial, changes.weights + self._at_first())

    def changes(self, state: MemoryState) -> MemoryState:
        """Difference of a memory from the initial memory; the inverse of `begin`."""
        return MemoryState(state.contents - self.initial, state.weights - self._at_first())

    def _at_first(self) -> Tensor:
        """Attention to slot 0, `(N,)`."""
        slots_N = torch.arange(self.config.slots, device=self.initial.device)
        return (slots_N == 0).to(self.initial.dtype)


def rotate(weights_BKN: Tensor, shift_BKJ: Tensor) -> Tensor:
    """Circular convolution: share `j` of J moves all weights by `j - (J - 1) / 2` slots."""
    reach = shift_BKJ.shape[-1] // 2
    around_BKX = torch.cat((weights_BKN[..., -reach:], weights_BKN, weights_BKN[..., :reach]), -1)
    slots = weights_BKN.shape[-1]
    moved = [
        around_BKX[..., 2 * reach - shift : 2 * reach - shift + slots] * share_BK[..., None]
        for shift, share_BK in enumerate(shift_BKJ.unbind(-1))
    ]
    return torch.stack(moved).sum(0)


def _cosine(key_BKM: Tensor, contents_BNM: Tensor) -> Tensor:
    """Cosine similarity of every key and slot, `(B, K, N)`."""
    keys_BK1 = (key_BKM.square().sum(-1, keepdim=True) + EPSILON).rsqrt()
    slots_B1N = (contents_BNM.square().sum(-1) + EPSILON).rsqrt()[:, None]
    return (key_BKM @ contents_BNM.transpose(1, 2)) * keys_BK1 * slots_B1N

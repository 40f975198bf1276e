"""The memory of a Neural Turing Machine and the heads that address it (Graves et al. 2014).

Shape letters: B batch, N slots, M numbers in a slot, K heads (those that read, then those that
write), R heads that read, W heads that write, H width of the controller, J shifts.

What the paper leaves open is here: keys and additions go through tanh; all heads address the
memory as the step before left it, then it is written, then read; every slot begins as one learned
vector, and every head at slot 0. Heads that are not trained go by place rather than by content, and
stay sharp; those that read wait, those that write move on by a slot a token. From there, gradients
soon find that a text can be read where it was written. From heads at random, the controller learns
to remember short texts by itself, and leaves it at that.
"""

from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ortolan.modeling.config.recurrent import MemoryConfig

EPSILON = 1e-8
"""Keeps the length of an empty slot from being zero."""

MOVING, SHARP, AHEAD = 2.0, 2.0, 2.0
"""Of heads that are not trained: less of the gate, more sharpness, and a shift where they write."""


class MemoryState(NamedTuple):
    """What a memory carries from token to token.

    Attributes:
        contents: `(B, N, M)`.
        weights: `(B, K, N)`; how much each head looked at each slot.
    """

    contents: Tensor
    weights: Tensor


class Memory(nn.Module):
    """A memory that a controller reads and writes by attention.

    Args:
        config: sizes.
        width: H.

    Attributes:
        heads: of the controller's output: for each head a key (M), its strength, a gate, a
            sharpness and the shifts (J), then for each that writes what to erase and to add (M).
        initial: `(M,)`; what every slot holds at the start of a text.
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
        """Address, write and read once.

        Args:
            out_BH: of the controller.
            before: after the last token.

        Returns:
            What was read, `(B, R * M)`, and the memory after it.
        """
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
        """What the heads that read see, `(B, R * M)`."""
        return (state.weights[:, : self.config.read_heads] @ state.contents).flatten(1)

    def address(self, rows_BKX: Tensor, before: MemoryState) -> Tensor:
        """Where each head looks, `(B, K, N)`: by content, then from where it was.

        Args:
            rows_BKX: `addressing` numbers for each head.
            before: after the last token.
        """
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
        """The memory, from how it differs from that at the start of a text; zeros are that."""
        return MemoryState(changes.contents + self.initial, changes.weights + self._at_first())

    def changes(self, state: MemoryState) -> MemoryState:
        """How a memory differs from that at the start of a text; the inverse of `begin`."""
        return MemoryState(state.contents - self.initial, state.weights - self._at_first())

    def _at_first(self) -> Tensor:
        """Every head at slot 0, `(N,)`."""
        slots_N = torch.arange(self.config.slots, device=self.initial.device)
        return (slots_N == 0).to(self.initial.dtype)


def rotate(weights_BKN: Tensor, shift_BKJ: Tensor) -> Tensor:
    """A circular convolution: share `j` of J moves every weight by `j - (J - 1) / 2` slots."""
    reach = shift_BKJ.shape[-1] // 2
    around_BKX = torch.cat((weights_BKN[..., -reach:], weights_BKN, weights_BKN[..., :reach]), -1)
    slots = weights_BKN.shape[-1]
    moved = [
        around_BKX[..., 2 * reach - shift : 2 * reach - shift + slots] * share_BK[..., None]
        for shift, share_BK in enumerate(shift_BKJ.unbind(-1))
    ]
    return torch.stack(moved).sum(0)


def _cosine(key_BKM: Tensor, contents_BNM: Tensor) -> Tensor:
    """The cosine of each key and each slot, `(B, K, N)`."""
    keys_BK1 = (key_BKM.square().sum(-1, keepdim=True) + EPSILON).rsqrt()
    slots_B1N = (contents_BNM.square().sum(-1) + EPSILON).rsqrt()[:, None]
    return (key_BKM @ contents_BNM.transpose(1, 2)) * keys_BK1 * slots_B1N

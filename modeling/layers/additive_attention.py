"""Additive attention (Bahdanau et al. 2015).

Shape letters: B batch, S new tokens, T tokens attended to, H state width, A score width.
"""

import torch
from torch import Tensor, nn


class AdditiveAttention(nn.Module):
    """Attention with scores `v . tanh(W query + U state)`, where `v` has `size` channels."""

    def __init__(self, size: int, width: int) -> None:
        super().__init__()
        self.query = nn.Linear(width, size, bias=False)
        self.key = nn.Linear(width, size)
        self.score = nn.Linear(size, 1, bias=False)

    def forward(
        self, x_BSH: Tensor, keys_BTA: Tensor, values_BTH: Tensor, mask_BST: Tensor
    ) -> Tensor:
        """Attend from each new state to the states so far, as the mask allows, `(B, S, H)`.

        The keys are `key` of all states so far, which are the values.
        """
        return self.weights(x_BSH, keys_BTA, mask_BST) @ values_BTH

    def weights(self, x_BSH: Tensor, keys_BTA: Tensor, mask_BST: Tensor) -> Tensor:
        """Attention weights of `forward`, `(B, S, T)`."""
        joint_BSTA = torch.tanh(self.query(x_BSH)[:, :, None] + keys_BTA[:, None])
        scores_BST: Tensor = self.score(joint_BSTA).squeeze(-1)
        return scores_BST.masked_fill(~mask_BST, float("-inf")).softmax(-1)

"""Attention whose scores are those of a small network (Bahdanau et al. 2015).

Shape letters: B batch, S new tokens, T tokens attended to, H width of a state, A of the scores.
"""

import torch
from torch import Tensor, nn

from ortolan.modeling.config.recurrent import AdditiveAttentionConfig


class AdditiveAttention(nn.Module):
    """Weights each state of the text so far by `v . tanh(W query + U state)`.

    Attributes:
        query: W.
        key: U.
        score: v.
    """

    def __init__(self, config: AdditiveAttentionConfig, width: int) -> None:
        super().__init__()
        self.query = nn.Linear(width, config.width, bias=False)
        self.key = nn.Linear(width, config.width)
        self.score = nn.Linear(config.width, 1, bias=False)

    def forward(
        self, x_BSH: Tensor, keys_BTA: Tensor, values_BTH: Tensor, mask_BST: Tensor
    ) -> Tensor:
        """What each new state sees, `(B, S, H)`.

        Args:
            x_BSH: the new states.
            keys_BTA: `key` of every state so far.
            values_BTH: every state so far.
            mask_BST: bool, `(B, S, T)` or `(1, S, T)`; which of them a new state may see.
        """
        return self.weights(x_BSH, keys_BTA, mask_BST) @ values_BTH

    def weights(self, x_BSH: Tensor, keys_BTA: Tensor, mask_BST: Tensor) -> Tensor:
        """How much of each state is seen, `(B, S, T)`; see `forward`."""
        joint_BSTA = torch.tanh(self.query(x_BSH)[:, :, None] + keys_BTA[:, None])
        scores_BST: Tensor = self.score(joint_BSTA).squeeze(-1)
        return scores_BST.masked_fill(~mask_BST, float("-inf")).softmax(-1)

"""Additive attention against loops over the formula of Bahdanau et al. (2015)."""

import numpy as np
import torch

from ortolan.modeling.config import AdditiveAttentionConfig
from ortolan.modeling.layers.additive_attention import AdditiveAttention

B, S, H, A = 2, 5, 4, 3


def test_additive_attention_equals_the_paper() -> None:
    torch.manual_seed(0)
    layer = AdditiveAttention(AdditiveAttentionConfig(width=A), H)
    states = torch.randn(B, S, H)
    mask = torch.ones(1, S, S, dtype=torch.bool).tril()
    with torch.no_grad():
        actual = layer(states, layer.key(states), states, mask).numpy()
        weights = layer.weights(states, layer.key(states), mask).numpy()
    w, u = layer.query.weight.detach().numpy(), layer.key.weight.detach().numpy()
    b, v = layer.key.bias.detach().numpy(), layer.score.weight.detach().numpy()[0]
    for text, h in enumerate(states.numpy()):
        for i in range(S):
            e = np.array([v @ np.tanh(w @ h[i] + u @ h[j] + b) for j in range(i + 1)])
            alpha = np.exp(e) / np.exp(e).sum()
            context = sum(share * h[j] for j, share in enumerate(alpha))
            np.testing.assert_allclose(weights[text, i, : i + 1], alpha, rtol=1e-5)
            np.testing.assert_allclose(actual[text, i], context, rtol=1e-4, atol=1e-6)
            assert not weights[text, i, i + 1 :].any()

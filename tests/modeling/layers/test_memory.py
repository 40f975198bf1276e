"""Memory (Graves et al. 2014) and attention (Bahdanau et al. 2015) against loops over formulas."""

from collections.abc import Iterator

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from ortolan.modeling.config import MemoryConfig
from ortolan.modeling.layers.additive_attention import AdditiveAttention
from ortolan.modeling.layers.memory import Memory, MemoryState

B, H = 2, 6

Array = NDArray[np.float64]

CONFIGS = (
    MemoryConfig(slots=7, width=4),
    MemoryConfig(slots=8, width=3, read_heads=2, write_heads=3, shift_range=2),
)


def memory_and_state(config: MemoryConfig) -> tuple[Memory, MemoryState]:
    torch.manual_seed(0)
    memory = Memory(config, H).double()
    torch.nn.init.normal_(memory.heads.weight)
    contents = torch.randn(B, config.slots, config.width).double()
    weights = torch.rand(B, config.heads, config.slots).double().softmax(-1)
    return memory, MemoryState(contents, weights)


def softplus(x: Array) -> Array:
    return np.log1p(np.exp(x))


def sigmoid(x: Array) -> Array:
    return 1 / (1 + np.exp(-x))


def addressed(config: MemoryConfig, row: Iterator[float], m: Array, before: Array) -> Array:
    """Equations 5 to 9: the weights of one head."""
    n = config.slots
    k = np.tanh([next(row) for _ in range(config.width)])
    beta, g = softplus(np.array(next(row))), sigmoid(np.array(next(row)))
    gamma = 1 + softplus(np.array(next(row)))
    raw = np.array([next(row) for _ in range(2 * config.shift_range + 1)])
    s = np.exp(raw) / np.exp(raw).sum()
    cosine = np.array([k @ slot / (np.linalg.norm(k) * np.linalg.norm(slot)) for slot in m])
    content = np.exp(beta * cosine) / np.exp(beta * cosine).sum()
    gated = g * content + (1 - g) * before
    shifted = np.zeros(n)
    for i in range(n):
        for j in range(n):
            for offset, share in zip(
                range(-config.shift_range, config.shift_range + 1), s, strict=True
            ):
                if (i - j - offset) % n == 0:
                    shifted[i] += gated[j] * share
    return np.array(shifted**gamma / (shifted**gamma).sum())


@pytest.mark.parametrize("config", CONFIGS)
def test_a_step_equals_the_paper(config: MemoryConfig) -> None:
    memory, before = memory_and_state(config)
    out = torch.randn(B, H).double()
    with torch.no_grad():
        read, after = memory(out, before)
        rows = memory.heads(out).numpy()
    for text in range(B):
        row, m = iter(rows[text]), before.contents[text].numpy().copy()
        weights = [
            addressed(config, row, m, before.weights[text, head].numpy())
            for head in range(config.heads)
        ]
        erase, add = [], []
        for _ in range(config.write_heads):
            erase.append(sigmoid(np.array([next(row) for _ in range(config.width)])))
            add.append(np.tanh([next(row) for _ in range(config.width)]))
        writing = weights[config.read_heads :]
        for w, e in zip(writing, erase, strict=True):
            m *= 1 - np.outer(w, e)
        for w, a in zip(writing, add, strict=True):
            m += np.outer(w, a)
        np.testing.assert_allclose(after.weights[text], weights, rtol=1e-6)
        np.testing.assert_allclose(after.contents[text], m, rtol=1e-6)
        expected = np.concatenate([w @ m for w in weights[: config.read_heads]])
        np.testing.assert_allclose(read[text], expected, rtol=1e-6)
        assert next(row, None) is None


def test_zeros_are_the_initial_memory() -> None:
    memory, state = memory_and_state(CONFIGS[0])
    zeros = MemoryState(torch.zeros_like(state.contents), torch.zeros_like(state.weights))
    first = memory.begin(zeros)
    assert (first.contents == memory.initial).all()
    assert (first.weights[..., 0] == 1).all()
    assert (first.weights[..., 1:] == 0).all()
    again = memory.begin(memory.changes(state))
    torch.testing.assert_close(again.contents, state.contents)
    torch.testing.assert_close(again.weights, state.weights)


def test_gradients_at_the_initial_memory_are_finite() -> None:
    memory, _ = memory_and_state(CONFIGS[0])
    slots, width = CONFIGS[0].slots, CONFIGS[0].width
    state = memory.begin(
        MemoryState(torch.zeros(B, slots, width).double(), torch.zeros(B, 2, slots).double())
    )
    for _ in range(3):
        read, state = memory(torch.randn(B, H).double(), state)
    read.square().sum().backward()
    for parameter in memory.parameters():
        assert parameter.grad is not None
        assert parameter.grad.isfinite().all()
        assert parameter.grad.any()


def test_an_untrained_head_writes_to_consecutive_slots() -> None:
    torch.manual_seed(0)
    config = MemoryConfig(slots=8, width=4)
    memory = Memory(config, H)
    state = memory.begin(MemoryState(torch.zeros(1, 8, 4), torch.zeros(1, 2, 8)))
    for slot in range(1, 5):
        _, state = memory(torch.tanh(torch.randn(1, H)), state)
        assert state.weights[0, -1].argmax() == slot


def test_additive_attention_equals_the_paper() -> None:
    length = 5
    torch.manual_seed(0)
    layer = AdditiveAttention(3, H)
    states = torch.randn(B, length, H)
    mask = torch.ones(1, length, length, dtype=torch.bool).tril()
    with torch.no_grad():
        actual = layer(states, layer.key(states), states, mask).numpy()
        weights = layer.weights(states, layer.key(states), mask).numpy()
    w, u = layer.query.weight.detach().numpy(), layer.key.weight.detach().numpy()
    b, v = layer.key.bias.detach().numpy(), layer.score.weight.detach().numpy()[0]
    for text, h in enumerate(states.numpy()):
        for i in range(length):
            e = np.array([v @ np.tanh(w @ h[i] + u @ h[j] + b) for j in range(i + 1)])
            alpha = np.exp(e) / np.exp(e).sum()
            context = sum(share * h[j] for j, share in enumerate(alpha))
            np.testing.assert_allclose(weights[text, i, : i + 1], alpha, rtol=1e-5)
            np.testing.assert_allclose(actual[text, i], context, rtol=1e-4, atol=1e-6)
            assert not weights[text, i, i + 1 :].any()

"""Mixers with a memory of fixed size in steps. For the formulas see families/test_parity.py."""

from collections.abc import Sequence

import pytest
import torch
from tests.modeling.kinds import WIDTH, decoder, randomised
from tests.modeling.mixers import MIXERS, hybrid
from tests.modeling.steps import after
from torch import Tensor

from ortolan.modeling.layers.block import mixer
from ortolan.modeling.layers.cache import Memory, empty_cache
from ortolan.modeling.layers.fixed_memory import FixedMemoryMixer

LENGTH = 11

CUTS = [(1,) * 11, (5, 1, 1, 3, 1)]


def layer(name: str) -> FixedMemoryMixer:
    module = mixer(MIXERS[name], WIDTH, None)
    assert isinstance(module, FixedMemoryMixer)
    return randomised(module).double()


def stream(batch: int = 1) -> Tensor:
    return torch.randn(batch, LENGTH, WIDTH, generator=torch.Generator().manual_seed(1)).double()


@pytest.mark.parametrize("cuts", CUTS)
@pytest.mark.parametrize("name", MIXERS)
def test_steps_equal_the_whole_sequence(name: str, cuts: tuple[int, ...]) -> None:
    module, x = layer(name), stream(batch=2)
    memory = tuple(torch.zeros(2, *state.sizes(0)).double() for state in MIXERS[name].states)
    pieces, start = [], 0
    with torch.inference_mode():
        whole = module(x)
        for size in cuts:
            part = x[:, start : start + size]
            start += size
            out, memory = module.step(part, None, memory, after(start, start))
            pieces.append(out)
    torch.testing.assert_close(torch.cat(pieces, 1), whole)
    shapes = [tuple(tensor.shape[1:]) for tensor in memory]
    assert shapes == [state.shape for state in MIXERS[name].states]


@pytest.mark.parametrize("name", MIXERS)
def test_gradients_reach_every_weight(name: str) -> None:
    module = layer(name)
    module(stream()).square().sum().backward()
    unreached = [n for n, p in module.named_parameters() if p.grad is None or not p.grad.any()]
    assert unreached == []


@pytest.mark.parametrize("name", MIXERS)
def test_a_hybrid_in_steps_equals_the_whole_sequence(name: str) -> None:
    module = decoder(hybrid(MIXERS[name], depth=1))
    ids = torch.arange(12)[None] * 5 % 31
    cache: Sequence[Memory] = empty_cache(module.config, batch=1, capacity=16)
    results = []
    with torch.inference_mode():
        whole = module(ids)
        for start, size in ((0, 5), (5, 1), (6, 1)):
            part = ids[:, start : start + size]
            logits, cache = module.step(part, after(start + size), cache)
            results.append(logits)
        some, _ = module.step(ids[:, 7:], after(12), cache, torch.tensor([[4, 0]]))
    torch.testing.assert_close(torch.cat(results, 1), whole[:, :7], rtol=1e-4, atol=1e-4)
    torch.testing.assert_close(some, whole[:, [11, 7]], rtol=1e-4, atol=1e-4)


def test_padding_is_refused() -> None:
    module = layer("short-conv")
    with pytest.raises(TypeError, match="padding"):
        module(stream(), lengths=torch.tensor([3]))

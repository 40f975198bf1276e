"""What a user's own module attends to: whole texts as PyTorch has it, steps as whole texts."""

import pytest
import torch
import torch.nn.functional as F
from tests.export.own_module import unusual
from torch import Tensor

from ortolan.modeling.errors import ConfigError
from ortolan.modeling.layers.cache import LayerCache, StepLengths
from ortolan.modeling.state import CachedState, State, WholeState

B, S, H, K, D = 2, 9, 4, 2, 16


def heads(seed: int = 0, *, values: int = D) -> tuple[Tensor, Tensor, Tensor]:
    random = torch.Generator().manual_seed(seed)
    return (
        torch.randn(B, H, S, D, generator=random),
        torch.randn(B, K, S, D, generator=random),
        torch.randn(B, K, S, values, generator=random),
    )


def test_attention_to_a_whole_text_is_that_of_pytorch() -> None:
    query, key, value = heads()
    got = State.whole().attend(0, query, key, value)
    want = F.scaled_dot_product_attention(query, key, value, is_causal=True, enable_gqa=True)
    torch.testing.assert_close(got, want)


@pytest.mark.parametrize("values", [8, 24])
@pytest.mark.parametrize("scale", [None, 0.3])
def test_values_may_be_narrower_and_wider_than_keys(values: int, scale: float | None) -> None:
    state, (query, key, value) = State.whole(), heads(values=values)
    want = F.scaled_dot_product_attention(
        query, key, value, is_causal=True, enable_gqa=True, scale=scale
    )
    torch.testing.assert_close(state.attend(0, query, key, value, scale=scale), want)
    # And so for a layer that shares them.
    torch.testing.assert_close(state.attend(0, query, scale=scale), want)


def test_shared_keys_are_those_that_the_layer_got() -> None:
    state, (query, key, value) = State.whole(), heads()
    state.attend(3, heads(1)[0], key, value)
    got = state.attend(3, query, window=4)
    want = State.whole().attend(0, query, key, value, window=4)
    torch.testing.assert_close(got, want)


def test_a_convolution_is_causal_and_by_channel() -> None:
    x, taps, bias = torch.randn(B, 5, S), torch.randn(5, 3), torch.randn(5)
    got = State.whole().convolve("taps", x, taps, bias)
    want = F.conv1d(F.pad(x, (2, 0)), taps[:, None], bias, groups=5)
    torch.testing.assert_close(got, want)


def test_vectors_of_all_tokens_so_far_are_in_their_places() -> None:
    x = torch.randn(2, 5, 3)
    whole, seen = WholeState().extend("x", x)
    assert whole is x
    assert torch.equal(seen[0], torch.ones(5, 5).tril().bool())
    buffer = torch.full((2, 8, 3), 9.0)
    # The second row is padded: its third token is none.
    first = CachedState(
        StepLengths(torch.tensor([2, 1]), torch.tensor(3)), {}, {}, sequences={"x": buffer}
    )
    first.extend("x", x[:, :3])
    step = StepLengths(torch.tensor([3, 2]), torch.tensor(4))
    state = CachedState(step, {}, {}, sequences=first.extended)
    found, seen = state.extend("x", x[:, 3:4])
    assert torch.equal(found[0, :4], x[0, :4])
    assert torch.equal(found[1, :3], torch.cat((x[1, :2], x[1, 3:4])))
    assert seen.sum(-1).tolist() == [[4], [3]]


def test_a_module_is_trained_by_what_it_is_exported_from() -> None:
    module = unusual()
    ids = torch.randint(61, (3, 12))
    module(ids, State.whole()).square().mean().backward()
    without = [name for name, p in module.named_parameters() if p.grad is None or not p.grad.any()]
    assert without == []


@pytest.mark.parametrize("chunks", [(12,), (5, 7), (4, 1, 1, 1, 1, 1, 3), (1,) * 12])
def test_steps_after_a_cache_give_what_the_whole_text_gives(chunks: tuple[int, ...]) -> None:
    module = unusual()
    ids = torch.randint(61, (1, 12), generator=torch.Generator().manual_seed(1))
    found = WholeState()
    with torch.no_grad():
        want = module(ids, found)
        caches = {
            layer: LayerCache(
                torch.zeros(1, spec.num_kv_heads, 16, spec.head_dim),
                torch.zeros(1, spec.num_kv_heads, 16, spec.head_dim),
            )
            for layer, spec in found.layers.items()
        }
        memory = {name: torch.zeros(shape) for name, shape in found.kept.items()}
        got, done = [], 0
        for count in chunks:
            part = ids[:, done : done + count]
            done += count
            step = StepLengths(torch.tensor([done - 1]), torch.tensor(done))
            state = CachedState(step, caches, memory)
            got.append(module(part, state))
            caches, memory = state.presents, state.kept
    torch.testing.assert_close(torch.cat(got, 1), want, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize(
    ("shapes", "message"),
    [
        (((B, H, S, D), (B, 3, S, D), (B, 3, S, D)), "num_heads"),
        (((B, H, S, D), (B, K, S, 8), (B, K, S, 8)), "16 and 8"),
    ],
)
def test_heads_that_do_not_belong_together_are_an_error(
    shapes: tuple[tuple[int, ...], ...], message: str
) -> None:
    with pytest.raises(ConfigError, match=message):
        State.whole().attend(0, *(torch.zeros(shape) for shape in shapes))


def test_keys_that_are_not_there_twice_or_half_are_an_error() -> None:
    query, key, value = heads()
    state = State.whole()
    with pytest.raises(ConfigError, match="got none"):
        state.attend(0, query)
    with pytest.raises(ConfigError, match="neither"):
        state.attend(0, query, key)
    state.attend(0, query, key, value)
    with pytest.raises(ConfigError, match="layer 0"):
        state.attend(0, query, key, value)
    turned = torch.ones(S, 4), torch.zeros(S, 4)
    with pytest.raises(ConfigError, match="rotary"):
        state.attend(0, query, rotary=turned)

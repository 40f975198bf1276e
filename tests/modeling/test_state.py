"""`State` for modules written by users: against PyTorch, and steps against whole sequences."""

from collections.abc import Callable
from functools import partial

import pytest
import torch
import torch.nn.functional as F
from syrupy.assertion import SnapshotAssertion
from tests.export.own_module import unusual
from tests.refusals import refusal
from torch import Tensor

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


def test_attention_equals_pytorch() -> None:
    query, key, value = heads()
    actual = State.whole().attend(0, query, key, value)
    expected = F.scaled_dot_product_attention(query, key, value, is_causal=True, enable_gqa=True)
    torch.testing.assert_close(actual, expected)


@pytest.mark.parametrize("values", [8, 24])
@pytest.mark.parametrize("scale", [None, 0.3])
def test_values_may_have_another_width_than_keys(values: int, scale: float | None) -> None:
    state, (query, key, value) = State.whole(), heads(values=values)
    expected = F.scaled_dot_product_attention(
        query, key, value, is_causal=True, enable_gqa=True, scale=scale
    )
    torch.testing.assert_close(state.attend(0, query, key, value, scale=scale), expected)
    # The same with shared keys and values.
    torch.testing.assert_close(state.attend(0, query, scale=scale), expected)


def test_a_layer_may_share_the_keys_of_an_earlier_call() -> None:
    state, (query, key, value) = State.whole(), heads()
    state.attend(3, heads(1)[0], key, value)
    actual = state.attend(3, query, window=4)
    expected = State.whole().attend(0, query, key, value, window=4)
    torch.testing.assert_close(actual, expected)


def test_convolution_is_causal_and_depthwise() -> None:
    x, taps, bias = torch.randn(B, 5, S), torch.randn(5, 3), torch.randn(5)
    actual = State.whole().convolve("taps", x, taps, bias)
    expected = F.conv1d(F.pad(x, (2, 0)), taps[:, None], bias, groups=5)
    torch.testing.assert_close(actual, expected)


def test_extend_returns_the_vectors_of_all_tokens_so_far() -> None:
    x = torch.randn(2, 5, 3)
    whole, mask = WholeState().extend("x", x)
    assert whole is x
    assert torch.equal(mask[0], torch.ones(5, 5).tril().bool())
    buffer = torch.full((2, 8, 3), 9.0)
    # The third token of the second row is padding.
    first = CachedState(
        StepLengths(torch.tensor([2, 1]), torch.tensor(3)), {}, {}, sequences={"x": buffer}
    )
    first.extend("x", x[:, :3])
    step = StepLengths(torch.tensor([3, 2]), torch.tensor(4))
    state = CachedState(step, {}, {}, sequences=first.extended)
    result, mask = state.extend("x", x[:, 3:4])
    assert torch.equal(result[0, :4], x[0, :4])
    assert torch.equal(result[1, :3], torch.cat((x[1, :2], x[1, 3:4])))
    assert mask.sum(-1).tolist() == [[4], [3]]


def test_gradients_reach_every_weight_of_a_module() -> None:
    module = unusual()
    ids = torch.randint(61, (3, 12))
    module(ids, State.whole()).square().mean().backward()
    without = [name for name, p in module.named_parameters() if p.grad is None or not p.grad.any()]
    assert without == []


@pytest.mark.parametrize("chunks", [(12,), (5, 7), (4, 1, 1, 1, 1, 1, 3), (1,) * 12])
def test_chunks_equal_the_whole_sequence(chunks: tuple[int, ...]) -> None:
    module = unusual()
    ids = torch.randint(61, (1, 12), generator=torch.Generator().manual_seed(1))
    result = WholeState()
    with torch.no_grad():
        expected = module(ids, result)
        caches = {
            layer: LayerCache(
                torch.zeros(1, spec.num_kv_heads, 16, spec.head_dim),
                torch.zeros(1, spec.num_kv_heads, 16, spec.head_dim),
            )
            for layer, spec in result.layers.items()
        }
        memory = {name: torch.zeros(shape) for name, shape in result.kept.items()}
        actual, done = [], 0
        for count in chunks:
            part = ids[:, done : done + count]
            done += count
            step = StepLengths(torch.tensor([done - 1]), torch.tensor(done))
            state = CachedState(step, caches, memory)
            actual.append(module(part, state))
            caches, memory = state.presents, state.kept
    torch.testing.assert_close(torch.cat(actual, 1), expected, rtol=1e-5, atol=1e-5)


def in_loop(state: State, x: Tensor) -> None:
    for token in state.tokens(x):
        state.keep("sum", state.recall("sum", (D,), x) + token)


def of_every_token(state: State, x: Tensor) -> None:
    state.keep("sum", state.recall("sum", (D,), x)[:, None] + x)


def under_one_name(state: State, x: Tensor) -> None:
    for _ in range(2):
        state.convolve("taps", x.transpose(1, 2), torch.ones(D, 3))


def of_two_shapes(state: State, x: Tensor) -> None:
    state.recall("sum", (D,), x)
    state.recall("sum", (D, D), x)


def extended_twice(state: State, x: Tensor) -> None:
    state.extend("keys", x)
    state.extend("keys", x)


USED_TWICE = (in_loop, under_one_name, of_every_token, of_two_shapes, extended_twice)


@pytest.mark.parametrize("grad", [True, False])
@pytest.mark.parametrize("use", USED_TWICE, ids=lambda use: use.__name__)
def test_a_state_used_twice_in_a_forward_pass_is_refused(
    use: Callable[[State, Tensor], None], *, grad: bool, snapshot: SnapshotAssertion
) -> None:
    x = torch.ones(B, S, D)
    step = StepLengths(torch.tensor([S - 1] * B), torch.tensor(S))
    memory = {"sum": torch.zeros(B, D), "taps": torch.zeros(B, D, 2)}
    cached = CachedState(step, {}, memory, sequences={"keys": torch.zeros(B, S, D)})
    for state in (State.whole(), cached):
        with torch.set_grad_enabled(grad):
            assert refusal(partial(use, state, x)) == snapshot


def test_missing_repeated_or_misshapen_keys_are_refused(snapshot: SnapshotAssertion) -> None:
    query, key, value = heads()
    state = State.whole()
    assert refusal(lambda: state.attend(0, query)) == snapshot
    assert refusal(lambda: state.attend(0, query, key)) == snapshot
    state.attend(0, query, key, value)
    assert refusal(lambda: state.attend(0, query, key, value)) == snapshot
    turned = torch.ones(S, 4), torch.zeros(S, 4)
    assert refusal(lambda: state.attend(0, query, rotary=turned)) == snapshot
    three, narrow = torch.zeros(B, 3, S, D), key[..., :8]
    assert refusal(lambda: State.whole().attend(0, query, three, three)) == snapshot
    assert refusal(lambda: State.whole().attend(0, query, narrow, narrow)) == snapshot

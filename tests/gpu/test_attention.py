"""GroupQueryAttention as exports for a device have it, against PyTorch."""

from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from onnx import ModelProto
from tests.export import attention_graphs as cached
from tests.export import whole_attention_graphs as whole
from tests.export.attention_graphs import Arrays, Conversation, Run
from tests.export.passes.test_plain_attention import plain
from tests.gpu.one_node import TOLERANCE, VISIBLE, Place, distance, everywhere, on, rounded

OPERATOR = "com.microsoft::GroupQueryAttention"

LARGE = {
    # A GPU chooses its kernel by these sizes.
    "64 wide, keys for every head": cached.Kind(heads=8, kv_heads=8, width=64, scale=0.125),
    "64 wide, 8 heads share": cached.Kind(heads=8, kv_heads=1, width=64, rotated=64, scale=0.125),
    "128 wide, 4 heads share": cached.Kind(
        heads=8, kv_heads=2, width=128, rotated=128, scale=128**-0.5, apart=True
    ),
    "96 wide, partial rotary": cached.Kind(width=96, rotated=48, scale=96**-0.5),
    "256 wide, softcap": cached.Kind(
        heads=4, kv_heads=1, width=256, rotated=256, softcap=3.0, scale=256**-0.5
    ),
}

FORMS = {
    "a bias for each row": cached.Kind(biased=True, by_row=True),
    "another layer's cache": cached.Kind(shared=True),
    "another layer's cache, rotary and window": cached.Kind(shared=True, rotated=32, window=5),
    "another layer's cache, sinks": cached.Kind(shared=True, sinks=True, width=64),
}

CACHED = cached.KINDS | cached.SINKS | LARGE | FORMS

LONG = {
    "long": cached.Kind(width=64, rotated=64, capacity=320, scale=0.125),
    "long, window": cached.Kind(width=64, rotated=64, capacity=320, scale=0.125, window=130),
    "long, sinks": cached.Kind(width=64, capacity=320, scale=0.125, sinks=True, window=128),
    "long, bias": cached.Kind(width=64, capacity=320, scale=0.125, biased=True),
}
"""More tokens than a kernel takes at once, in a buffer that is longer still."""

RAGGED = Conversation(steps=[(6, 4), (1, 1), (1, 1)])
LONG_CONVERSATION = Conversation(steps=[(290,), (3,), (1,), (1,)])
LONG_RAGGED = Conversation(steps=[(300, 1, 129), (1, 1, 1), (1, 1, 1)])

WHOLE = whole.KINDS | {
    "64 wide": whole.Kind(heads=8, kv_heads=8, width=64, scale=0.125),
    "64 wide, rotary": whole.Kind(heads=8, kv_heads=8, width=64, rotated=64, scale=0.125),
    "64 wide, bias": whole.Kind(heads=8, kv_heads=8, width=64, scale=0.5, biased=True),
    "64 wide, window on both sides": whole.Kind(width=64, scale=0.125, around=2),
}

SLIPS: dict[str, Callable[[Any], Any]] = {
    "scale": lambda kind: kind.window != 1 and replace(kind, scale=1.5 * kind.scale),
    "window": lambda kind: kind.window and replace(kind, window=kind.window + 1),
    "no window": lambda kind: kind.window and replace(kind, window=None),
    "softcap": lambda kind: kind.softcap and replace(kind, softcap=None),
    "pairs": lambda kind: kind.rotated and replace(kind, interleaved=not kind.interleaved),
    "bias": lambda kind: kind.biased and replace(kind, biased=False),
    "around": lambda kind: getattr(kind, "around", None) and replace(kind, around=None),
    "causal": lambda kind: hasattr(kind, "causal") and replace(kind, causal=not kind.causal),
    "sinks": lambda kind: getattr(kind, "sinks", False) and replace(kind, sinks=False),
}
"""Mistakes that a kernel could make, as another kind; falsy if a kind cannot have the mistake."""


def slips(kinds: dict[str, Any], steps: Conversation | None) -> Iterator[Any]:
    """Each kind with each mistake, and the conversation that shows it; None without a cache."""
    for name, kind in kinds.items():
        for mistake, slip in SLIPS.items():
            if wrong := slip(kind):
                yield pytest.param(kind, wrong, steps, id=f"{name}: {mistake}")


def compute(place: Place, model: ModelProto, **options: Any) -> Run:
    """Compute a graph as exports for a device have it."""
    return on(place, model if place.device == "cpu" else plain(model, place.device), **options)


def talk(kind: cached.Kind, run: Run) -> list[NDArray[np.float32]]:
    """Run all conversations, one after the other."""
    return [part for steps in cached.CONVERSATIONS.values() for part in steps.run(kind, run)]


def reference(kind: cached.Kind, place: Place) -> Run:
    return rounded(cached.in_pytorch(kind), place.dtype)


@everywhere(OPERATOR)
@pytest.mark.parametrize("name", CACHED)
def test_with_a_cache(name: str, place: Place) -> None:
    kind = CACHED[name]
    got = talk(kind, compute(place, cached.graph(kind)))
    assert distance(got, talk(kind, reference(kind, place))) < TOLERANCE[place.dtype]


@everywhere(OPERATOR, dtypes=("float32", "float16"))
@pytest.mark.parametrize("name", CACHED)
def test_with_a_cache_that_is_extended_in_place(name: str, place: Place) -> None:
    kind = CACHED[name]
    over = {} if kind.shared else cached.CACHE
    got = talk(kind, compute(place, cached.graph(kind), in_place=over))
    assert distance(got, talk(kind, reference(kind, place))) < TOLERANCE[place.dtype]


@everywhere(OPERATOR)
@pytest.mark.parametrize("conversation", [LONG_CONVERSATION, LONG_RAGGED])
@pytest.mark.parametrize("name", LONG)
def test_over_long_sequences(name: str, conversation: Conversation, place: Place) -> None:
    kind = LONG[name]
    got = conversation.run(kind, compute(place, cached.graph(kind)))
    expected = conversation.run(kind, reference(kind, place))
    assert distance(got, expected) < TOLERANCE[place.dtype]


@everywhere(OPERATOR)
@pytest.mark.parametrize("name", WHOLE)
def test_without_a_cache(name: str, place: Place) -> None:
    kind = WHOLE[name]
    got = whole.run_rows(kind, compute(place, whole.graph(kind)))
    expected = whole.run_rows(kind, rounded(whole.in_pytorch(kind), place.dtype))
    assert distance(got, expected) < TOLERANCE[place.dtype]


def in_pytorch(kind: Any, steps: Conversation | None) -> list[NDArray[np.float32]]:
    if steps is None:
        return list(whole.run_rows(kind, whole.in_pytorch(kind)))
    return steps.run(kind, cached.in_pytorch(kind))


@pytest.mark.parametrize(
    ("kind", "wrong", "steps"),
    [*slips(CACHED, RAGGED), *slips(LONG, LONG_CONVERSATION), *slips(WHOLE, None)],
)
def test_a_slip_is_seen_in_every_type(kind: Any, wrong: Any, steps: Conversation | None) -> None:
    assert distance(in_pytorch(wrong, steps), in_pytorch(kind, steps)) > VISIBLE


def without_lengths(run: Run) -> Run:
    """A mistake: all rows are as long as the longest."""

    def run_longest(inputs: Arrays) -> list[NDArray[np.float32]]:
        longest = np.full_like(inputs["seqlens_k"], inputs["total"] - 1)
        return run(inputs | {"seqlens_k": longest})

    return run_longest


@pytest.mark.parametrize("steps", [RAGGED, LONG_RAGGED], ids=["short", "long"])
def test_lengths_that_are_not_read_are_seen_in_every_type(steps: Conversation) -> None:
    kind, encoder = LONG["long"], WHOLE["64 wide"]
    deaf = without_lengths(cached.in_pytorch(kind))
    assert distance(steps.run(kind, deaf), in_pytorch(kind, steps)) > VISIBLE
    deaf = without_lengths(whole.in_pytorch(encoder))
    assert distance(whole.run_rows(encoder, deaf), in_pytorch(encoder, None)) > VISIBLE


def test_the_first_row_s_bias_for_all_rows_is_seen_in_every_type() -> None:
    kind = FORMS["a bias for each row"]
    run = cached.in_pytorch(kind)

    def run_first(inputs: Arrays) -> list[NDArray[np.float32]]:
        bias = inputs["bias"]
        return run(inputs | {"bias": np.broadcast_to(bias[:1], bias.shape).copy()})

    assert distance(RAGGED.run(kind, run_first), in_pytorch(kind, RAGGED)) > VISIBLE

"""Attention ops: types, caches, positions and sinks. For the formula see models/test_kinds.py."""

from dataclasses import replace

import pytest
import torch
from tests.modeling.steps import after
from torch import Tensor

from ortolan.modeling.config import AttentionConfig
from ortolan.modeling.layers.cache import LayerCache
from ortolan.modeling.layers.ops import (
    Relative,
    Rotary,
    attention,
    attention_weights,
    cached_attention,
    split_projections,
)

HEADS, HEAD_DIM = 4, 8

SPEC = AttentionConfig(num_heads=HEADS, num_kv_heads=2, head_dim=HEAD_DIM, scale=0.4)

SPECS = {
    "grouped": SPEC,
    "multi-head": replace(SPEC, num_kv_heads=4),
    "multi-query": replace(SPEC, num_kv_heads=1),
    "window": replace(SPEC, sliding_window=3),
    "window-of-one": replace(SPEC, sliding_window=1),
    "softcap": replace(SPEC, softcap=1.5),
    "window-softcap": replace(SPEC, num_kv_heads=1, sliding_window=4, softcap=2.0),
}


def assert_close(actual: Tensor, expected: Tensor, rtol: float = 1e-5, atol: float = 2e-6) -> None:
    torch.testing.assert_close(actual, expected, rtol=rtol, atol=atol)


def random(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


def packed(spec: AttentionConfig, batch: int, length: int, *, seed: int = 0) -> Tensor:
    return random(batch, length, (spec.num_heads + 2 * spec.num_kv_heads) * HEAD_DIM, seed=seed)


def rotary(rotated: int, positions: int = 64) -> Rotary | None:
    """Tables of random angles: the ops must not rely on a geometric series."""
    if not rotated:
        return None
    angles = random(positions, rotated // 2, seed=99) * 3
    return Rotary(angles.cos(), angles.sin())


def empty(spec: AttentionConfig, batch: int, capacity: int) -> LayerCache:
    shape = (batch, spec.num_kv_heads, capacity, HEAD_DIM)
    return LayerCache(torch.zeros(shape), torch.zeros(shape))


def test_half_precision_stays_half_precision() -> None:
    for spec in (SPEC, SPECS["softcap"]):
        qkv = packed(spec, 1, 5)
        exact = attention(qkv, None, spec=spec)
        half = attention(qkv.half(), None, spec=spec)
        assert half.dtype == torch.float16
        assert_close(half.float(), exact, rtol=1e-2, atol=1e-2)


def test_a_cache_is_not_modified_in_place() -> None:
    past = empty(SPEC, 1, 6)
    cached_attention(packed(SPEC, 1, 3), past, after(3), None, spec=SPEC)
    assert not past.key.any()
    assert not past.value.any()


@pytest.mark.parametrize("kind", ["plain", "bias", "keys", "values"])
def test_a_step_may_skip_the_slots_beyond_the_longest_row(kind: str) -> None:
    spec = replace(SPEC, value_dim=3) if kind == "values" else SPEC
    width = HEADS * HEAD_DIM + 2 * HEAD_DIM + 2 * spec.value_width
    shapes = [(2, 2, 12, size) for size in (HEAD_DIM, spec.value_width)]
    past = LayerCache(*(random(*shape, seed=5) for shape in shapes))
    step, qkv = after(7, 4), random(2, 1, width)
    relative = {
        "bias": Relative(bias=random(1, HEADS, 1, 12)),
        "keys": Relative(rows=torch.arange(12)[None, None] % 3, keys=random(3, HEAD_DIM)),
    }.get(kind)
    whole, extended = cached_attention(qkv, past, step, None, spec=spec, relative=relative)
    if relative is not None:
        bias = None if relative.bias is None else relative.bias[..., :7]
        rows = None if relative.rows is None else relative.rows[..., :7]
        relative = Relative(bias=bias, rows=rows, keys=relative.keys)
    bounded = replace(step, seen=7)
    part, same = cached_attention(qkv, past, bounded, None, spec=spec, relative=relative)
    assert_close(part, whole)
    assert all(torch.equal(one, other) for one, other in zip(extended, same, strict=True))


# --- positions of a step ------------------------------------------------------------------------


# --- separate projections, and sinks -----------------------------------------------------------


@pytest.mark.parametrize("name", SPECS)
def test_separate_projections_equal_packed_ones(name: str) -> None:
    spec, tables, length = SPECS[name], rotary(4), 7
    qkv = packed(spec, 2, length)
    heads = split_projections(qkv, spec)
    lengths, cache = after(length, length), empty(spec, 2, 16)
    assert_close(attention(heads, tables, spec=spec), attention(qkv, tables, spec=spec))
    assert_close(
        attention_weights(heads, tables, spec=spec), attention_weights(qkv, tables, spec=spec)
    )
    one, other = (
        cached_attention(parts, cache, lengths, tables, spec=spec) for parts in (heads, qkv)
    )
    assert_close(one[0], other[0])
    assert_close(one[1].value, other[1].value)

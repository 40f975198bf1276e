"""The attention ops against a plain implementation in float64."""

import cmath
import itertools
import math
from dataclasses import dataclass, replace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn
from transformers.models.gemma2.modeling_gemma2 import eager_attention_forward

from ortolan.modeling.config import AttentionConfig
from ortolan.modeling.layers.cache import LayerCache, StepLengths
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

ROTATED = {"none": 0, "all": HEAD_DIM, "partial": 4}


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


def after(*lengths: int) -> StepLengths:
    """Lengths for a step after which the rows have these lengths."""
    return StepLengths(
        torch.tensor(lengths, dtype=torch.int32) - 1,
        torch.tensor(max(lengths), dtype=torch.int32),
    )


# --- the formula, one head and token at a time --------------------------------------------------


def formula(qkv: Tensor, tables: Rotary | None, spec: AttentionConfig) -> Tensor:
    """Attention over one sequence `(S, (H + 2K) * D)`, in float64."""
    length = len(qkv)
    vectors = qkv.double().reshape(length, -1, HEAD_DIM).tolist()
    keys, values = spec.num_heads, spec.num_heads + spec.num_kv_heads
    out = torch.zeros(length, spec.num_heads, HEAD_DIM, dtype=torch.float64)
    for now, head in itertools.product(range(length), range(spec.num_heads)):
        shared = head // (spec.num_heads // spec.num_kv_heads)
        first = 0 if spec.sliding_window is None else max(0, now - spec.sliding_window + 1)
        visible = range(first, now + 1)
        query = rotated(vectors[now][head], tables, now)
        scores = []
        for then in visible:
            key = rotated(vectors[then][keys + shared], tables, then)
            score = spec.scale * sum(a * b for a, b in zip(query, key, strict=True))
            if spec.softcap is not None:
                score = spec.softcap * math.tanh(score / spec.softcap)
            scores.append(math.exp(score))
        for then, weight in zip(visible, scores, strict=True):
            value = torch.tensor(vectors[then][values + shared], dtype=torch.float64)
            out[now, head] += weight / sum(scores) * value
    return out.reshape(length, -1)


def rotated(vector: list[float], tables: Rotary | None, position: int) -> list[float]:
    """Rotates channels i and i + R/2, as one complex number, by the angle of the position."""
    if tables is None:
        return vector
    cos, sin = (table[position].double() for table in tables[:2])
    half, result = len(cos), list(vector)
    for i in range(half):
        number = complex(vector[i], vector[i + half]) * complex(float(cos[i]), float(sin[i]))
        result[i], result[i + half] = number.real, number.imag
    return result


def test_the_formula_rotates_by_the_angle() -> None:
    tables = Rotary(torch.tensor([[1.0], [math.cos(0.3)]]), torch.tensor([[0.0], [math.sin(0.3)]]))
    length, angle = cmath.polar(complex(*rotated([0.6, 0.8], tables, 1)))
    assert length == pytest.approx(1)
    assert angle == pytest.approx(cmath.phase(0.6 + 0.8j) + 0.3)


@pytest.mark.parametrize("rotated", ROTATED)
@pytest.mark.parametrize("name", SPECS)
def test_both_ops_equal_the_formula(name: str, rotated: str) -> None:
    spec, tables, length = SPECS[name], rotary(ROTATED[rotated]), 7
    qkv = packed(spec, 2, length)
    expected = torch.stack([formula(row, tables, spec) for row in qkv])

    plain = attention(qkv, tables, spec=spec)
    cached, _ = cached_attention(qkv, empty(spec, 2, 16), after(length, length), tables, spec=spec)

    assert_close(plain.double(), expected)
    assert_close(cached.double(), expected)


def test_softcap_equals_gemma2_of_transformers() -> None:
    spec, length = replace(SPEC, softcap=0.7), 9
    qkv = packed(spec, 2, length) * 3
    q_BHSD, k_BKSD, v_BKSD = torch.split(
        qkv.reshape(2, length, -1, HEAD_DIM).transpose(1, 2), [HEADS, 2, 2], 1
    )
    module = nn.Module().eval()
    module.num_key_value_groups = 2  # type: ignore[assignment]
    mask = torch.full((length, length), float("-inf")).triu(1)
    expected, _ = eager_attention_forward(
        module, q_BHSD, k_BKSD, v_BKSD, mask, scaling=spec.scale, softcap=spec.softcap
    )
    ours = attention(qkv, None, spec=spec)
    assert_close(ours, expected.flatten(2))
    uncapped = attention(qkv, None, spec=SPEC)
    assert (ours - uncapped).abs().max() > 0.1


def test_half_precision_stays_half_precision() -> None:
    for spec in (SPEC, SPECS["softcap"]):
        qkv = packed(spec, 1, 5)
        exact = attention(qkv, None, spec=spec)
        half = attention(qkv.half(), None, spec=spec)
        assert half.dtype == torch.float16
        assert_close(half.float(), exact, rtol=1e-2, atol=1e-2)


# --- the cache ----------------------------------------------------------------------------------


def test_the_cache_holds_rotated_keys_and_plain_values() -> None:
    tables = rotary(HEAD_DIM)
    qkv = packed(SPEC, 1, 3)
    _, present = cached_attention(qkv, empty(SPEC, 1, 6), after(3), tables, spec=SPEC)
    vectors = qkv.reshape(3, -1, HEAD_DIM)
    for position, head in itertools.product(range(3), range(2)):
        key = torch.tensor(rotated(vectors[position, HEADS + head].tolist(), tables, position))
        assert_close(present.key[0, head, position], key)
        assert torch.equal(present.value[0, head, position], vectors[position, HEADS + 2 + head])
    assert not present.key[0, :, 3:].any()
    assert not present.value[0, :, 3:].any()


def test_a_cache_is_not_modified_in_place() -> None:
    past = empty(SPEC, 1, 6)
    cached_attention(packed(SPEC, 1, 3), past, after(3), None, spec=SPEC)
    assert not past.key.any()
    assert not past.value.any()


@pytest.mark.parametrize("name", SPECS)
def test_slots_beyond_a_row_are_ignored(name: str) -> None:
    spec, tables = SPECS[name], rotary(HEAD_DIM)
    prompt, token = packed(spec, 2, 5), packed(spec, 2, 1, seed=1)
    outputs = []
    for fill in (0.0, 1e4):
        garbage = LayerCache(*(x + fill for x in empty(spec, 2, 16)))
        # Row 0 has 5 tokens, row 1 has 2 and 3 of padding.
        first, present = cached_attention(prompt, garbage, after(5, 2), tables, spec=spec)
        second, _ = cached_attention(token, present, after(6, 3), tables, spec=spec)
        outputs.append((first[0], first[1, :2], second))
    for clean, dirty in zip(*outputs, strict=True):
        assert torch.equal(clean, dirty)


@dataclass(frozen=True)
class Case:
    """Sequences of different lengths, and the chunks in which they enter a cache."""

    spec: AttentionConfig
    tables: Rotary | None
    lengths: tuple[int, ...]
    new_tokens: int
    chunks: tuple[int, ...]
    seed: int


@st.composite
def cases(draw: st.DrawFn) -> Case:
    return Case(
        spec=AttentionConfig(
            num_heads=HEADS,
            num_kv_heads=draw(st.sampled_from([1, 2, 4])),
            head_dim=HEAD_DIM,
            scale=draw(st.sampled_from([0.1, 0.4, 1.0])),
            sliding_window=draw(st.none() | st.integers(1, 12)),
            softcap=draw(st.none() | st.sampled_from([0.5, 5.0])),
        ),
        tables=rotary(draw(st.sampled_from([0, 2, 4, 8]))),
        lengths=tuple(draw(st.lists(st.integers(1, 9), min_size=1, max_size=4))),
        new_tokens=draw(st.integers(1, 5)),
        chunks=tuple(draw(st.lists(st.integers(1, 4), min_size=1, max_size=5))),
        seed=draw(st.integers(0, 1000)),
    )


def garbage(case: Case, batch: int) -> LayerCache:
    spec = case.spec
    shape = (batch, spec.num_kv_heads, 24, HEAD_DIM)
    return LayerCache(random(*shape, seed=7) * 100, random(*shape, seed=8) * 100)


@settings(max_examples=40, deadline=None)
@given(cases())
def test_chunked_equals_whole(case: Case) -> None:
    spec, tables = case.spec, case.tables
    total = sum(case.chunks)
    qkv = packed(spec, 1, total, seed=case.seed)
    whole = attention(qkv, tables, spec=spec)
    cache, outputs, start = garbage(case, 1), [], 0
    for size in case.chunks:
        chunk = qkv[:, start : start + size]
        out, cache = cached_attention(chunk, cache, after(start + size), tables, spec=spec)
        outputs.append(out)
        start += size
    assert_close(torch.cat(outputs, 1), whole)


@settings(max_examples=40, deadline=None)
@given(cases())
def test_a_ragged_batch_equals_its_rows_alone(case: Case) -> None:
    spec, tables, lengths = case.spec, case.tables, case.lengths
    batch, longest = len(lengths), max(lengths)
    prompt = packed(spec, batch, longest, seed=case.seed)
    tokens = packed(spec, batch, case.new_tokens, seed=case.seed + 1)

    padded, cache = cached_attention(
        prompt, garbage(case, batch), after(*lengths), tables, spec=spec
    )
    decoded = []
    for i in range(case.new_tokens):
        grown = after(*(length + i + 1 for length in lengths))
        out, cache = cached_attention(tokens[:, i : i + 1], cache, grown, tables, spec=spec)
        decoded.append(out)

    for row, length in enumerate(lengths):
        text = torch.cat([prompt[row : row + 1, :length], tokens[row : row + 1]], 1)
        alone = attention(text, tables, spec=spec)[0]
        together = torch.cat([padded[row, :length], torch.cat(decoded, 1)[row]])
        assert_close(together, alone)


@settings(max_examples=30, deadline=None)
@given(cases())
def test_later_tokens_do_not_change_earlier_outputs(case: Case) -> None:
    spec, tables = case.spec, case.tables
    qkv = packed(spec, 1, 10, seed=case.seed)
    changed = qkv.clone()
    changed[:, 6:] = packed(spec, 1, 4, seed=case.seed + 1) * 10
    before, now = (attention(x, tables, spec=spec) for x in (qkv, changed))
    assert_close(before[:, :6], now[:, :6])


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


@pytest.mark.parametrize(
    ("lengths", "new_tokens", "expected"),
    [
        ((4,), 4, [[0, 1, 2, 3]]),
        ((4, 2), 4, [[0, 1, 2, 3], [0, 1, 2, 3]]),
        ((7,), 3, [[4, 5, 6]]),
        ((7, 3), 1, [[6], [2]]),
        ((1,), 1, [[0]]),
        ((1, 1), 1, [[0], [0]]),
    ],
    ids=["prompt", "ragged-prompt", "chunk", "ragged-decode", "first-token", "first-tokens"],
)
def test_positions_of_a_step(
    lengths: tuple[int, ...], new_tokens: int, expected: list[list[int]]
) -> None:
    assert after(*lengths).positions(new_tokens).tolist() == expected


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
        cached_attention(given, cache, lengths, tables, spec=spec) for given in (heads, qkv)
    )
    assert_close(one[0], other[0])
    assert_close(one[1].value, other[1].value)


@pytest.mark.parametrize("name", SPECS)
def test_a_sink_is_a_key_with_a_value_of_zero(name: str) -> None:
    spec, length = SPECS[name], 7
    qkv = packed(spec, 2, length)
    weights = attention_weights(qkv, None, spec=spec)
    sinks = torch.linspace(-1, 2, HEADS)
    # The sink adds a term to the denominator of the softmax.
    scores = score_sums(qkv, spec)
    share = scores / (scores + sinks.exp()[:, None].double())
    expected = weights.double() * share[..., None]
    assert_close(attention_weights(qkv, None, spec=spec, sinks=sinks).double(), expected)

    plain = attention(qkv, None, spec=spec, sinks=sinks)
    cached, _ = cached_attention(
        qkv, empty(spec, 2, 16), after(length, length), None, spec=spec, sinks=sinks
    )
    values = by_head(split_projections(qkv, spec).value)
    values = values.repeat_interleave(HEADS // spec.num_kv_heads, 1)
    out = (expected @ values).transpose(1, 2).flatten(2)
    assert_close(plain.double(), out)
    assert_close(cached.double(), out)


def score_sums(qkv: Tensor, spec: AttentionConfig) -> Tensor:
    """Denominator of the softmax of each query, `(B, H, S)` in float64."""
    q, k, _ = map(by_head, split_projections(qkv, spec))
    scores = q @ k.repeat_interleave(HEADS // spec.num_kv_heads, 1).mT * spec.scale
    if spec.softcap is not None:
        scores = spec.softcap * torch.tanh(scores / spec.softcap)
    length = qkv.shape[1]
    distance = torch.arange(length)[:, None] - torch.arange(length)
    visible = (distance >= 0) & (distance < (spec.sliding_window or length))
    total: Tensor = scores.exp().masked_fill(~visible, 0).sum(-1)
    return total


def by_head(part: Tensor) -> Tensor:
    return part.reshape(*part.shape[:2], -1, HEAD_DIM).transpose(1, 2).double()

"""Position tables against the papers' formulas and against transformers."""

import math
from dataclasses import replace
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor
from transformers import LlamaConfig
from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS
from transformers.models.falcon.modeling_falcon import build_alibi_tensor
from transformers.models.llama.modeling_llama import LlamaRotaryEmbedding
from transformers.models.marian.modeling_marian import MarianSinusoidalPositionalEmbedding
from transformers.models.t5.modeling_t5 import T5Attention
from transformers.models.xglm.modeling_xglm import XGLMSinusoidalPositionalEmbedding

from ortolan.modeling.config import RelativeBiasPositions, RotaryPositions, SinusoidalPositions
from ortolan.modeling.families.reader import ConfigReader
from ortolan.modeling.families.rope import read_rotary, write_rotary
from ortolan.modeling.layers.positions import (
    alibi_slopes,
    relative_buckets,
    relative_index,
    rotary_frequencies,
    rotary_tables,
    rounded_alibi,
    sinusoidal_table,
)

CONTEXT = 4096

YARN = {"rope_type": "yarn", "factor": 8.0, "original_max_position_embeddings": 512}

SCALINGS: dict[str, dict[str, Any]] = {
    "default": {"rope_type": "default"},
    "linear": {"rope_type": "linear", "factor": 2.5},
    "dynamic": {"rope_type": "dynamic", "factor": 3.0},
    "llama3": {
        "rope_type": "llama3",
        "factor": 32.0,
        "low_freq_factor": 1.0,
        "high_freq_factor": 4.0,
        "original_max_position_embeddings": 512,
    },
    "yarn": YARN,
    "yarn-untruncated": YARN | {"truncate": False},
    "yarn-narrow": YARN | {"beta_fast": 8.0, "beta_slow": 2.0},
    "yarn-step": YARN | {"beta_fast": 2.0, "beta_slow": 2.0, "truncate": False},
    "yarn-mscale": YARN | {"mscale": 1.2, "mscale_all_dim": 0.4},
    "yarn-attention-factor": YARN | {"attention_factor": 0.9},
    "yarn-shrinking": YARN | {"factor": 0.5},
}


def transformers_frequencies(
    rope: dict[str, Any], *, head_dim: int = 64, theta: float = 10_000.0, length: int | None = None
) -> tuple[Tensor, float]:
    """Frequencies, and the factor on cosines and sines."""
    config = LlamaConfig(
        head_dim=head_dim,
        max_position_embeddings=CONTEXT,
        rope_parameters={**rope, "rope_theta": theta},
    )
    if rope["rope_type"] == "default":
        return LlamaRotaryEmbedding.compute_default_rope_parameters(config)
    return ROPE_INIT_FUNCTIONS[rope["rope_type"]](config, seq_len=length)


def read(
    rope: dict[str, Any], *, head_dim: int = 64, theta: float = 10_000.0, key: str = "rope_scaling"
) -> RotaryPositions:
    values = {key: rope, "rope_theta": theta}
    reader = ConfigReader(values)
    positions = read_rotary(reader, head_dim=head_dim, context_length=CONTEXT)
    reader.finish()
    return positions


def assert_equals_transformers(
    positions: RotaryPositions, expected: Tensor, factor: float, length: int = CONTEXT
) -> None:
    torch.testing.assert_close(
        rotary_frequencies(positions, length), expected, rtol=1e-5, atol=1e-9
    )
    cos, sin = rotary_tables(positions, length)
    angles = torch.arange(length)[:, None].float() * rotary_frequencies(positions, length)
    assert torch.equal(cos, angles.cos() * factor)
    assert torch.equal(sin, angles.sin() * factor)


# --- rotary -------------------------------------------------------------------------------------


@settings(max_examples=60, deadline=None)
@given(
    theta=st.floats(10.0, 1e7),
    rope=st.fixed_dictionaries(
        {
            "rope_type": st.just("yarn"),
            "factor": st.floats(1.0, 64.0),
            "original_max_position_embeddings": st.integers(16, CONTEXT),
            "beta_fast": st.floats(1.0, 64.0),
            "beta_slow": st.floats(0.1, 1.0),
            "truncate": st.booleans(),
        },
        optional={"mscale": st.floats(0.1, 2.0), "mscale_all_dim": st.floats(0.1, 2.0)},
    ),
)
def test_every_yarn_equals_transformers(theta: float, rope: dict[str, Any]) -> None:
    expected, factor = transformers_frequencies(rope, theta=theta)
    assert_equals_transformers(read(rope, theta=theta), expected, factor, length=16)


@settings(max_examples=60, deadline=None)
@given(
    theta=st.floats(10.0, 1e7),
    rope=st.fixed_dictionaries(
        {
            "rope_type": st.just("llama3"),
            "factor": st.floats(1.0, 64.0),
            "low_freq_factor": st.floats(0.5, 2.0),
            "high_freq_factor": st.floats(2.1, 16.0),
            "original_max_position_embeddings": st.integers(16, CONTEXT),
        }
    ),
)
def test_every_llama3_equals_transformers(theta: float, rope: dict[str, Any]) -> None:
    expected, factor = transformers_frequencies(rope, theta=theta)
    assert_equals_transformers(read(rope, theta=theta), expected, factor, length=16)


@pytest.mark.parametrize("length", [CONTEXT // 2, CONTEXT, CONTEXT + 1, 3 * CONTEXT])
def test_dynamic_scaling_starts_at_the_original_length(length: int) -> None:
    rope = SCALINGS["dynamic"]
    expected, _ = transformers_frequencies(rope, length=length)
    positions = read(rope)
    frequencies = rotary_frequencies(positions, length)
    torch.testing.assert_close(frequencies, expected, rtol=1e-5, atol=1e-9)
    plain = rotary_frequencies(replace(positions, scaling=None), length)
    assert torch.equal(frequencies, plain) == (length <= CONTEXT)


@pytest.mark.parametrize("name", [*SCALINGS, "partial"])
def test_written_positions_are_read_back(name: str) -> None:
    partial = RotaryPositions(dim=16, theta=500.0)
    positions = read(SCALINGS[name], theta=500.0) if name in SCALINGS else partial
    keys = ConfigReader(write_rotary(positions, head_dim=64))
    assert read_rotary(keys, head_dim=64, context_length=CONTEXT, fraction=1.0) == positions


def test_both_spellings_of_a_scaling_read_the_same() -> None:
    rope = SCALINGS["llama3"]
    old = {("type" if key == "rope_type" else key): value for key, value in rope.items()}
    new = read(rope, key="rope_parameters")
    assert read(old) == read(rope) == new


def test_theta_may_be_inside_or_outside_the_scaling() -> None:
    assert read({"rope_type": "default", "rope_theta": 7.0}, theta=9.0).theta == 7.0
    assert read({"rope_type": "default"}, theta=9.0).theta == 9.0
    assert read_rotary(ConfigReader({}), head_dim=8, context_length=8).theta == 10_000.0


# --- sinusoidal ---------------------------------------------------------------------------------


@pytest.mark.parametrize("width", [6, 7, 32])
def test_the_table_equals_marian(width: int) -> None:
    expected = MarianSinusoidalPositionalEmbedding(50, width).create_weight()  # type: ignore[no-untyped-call]
    table = sinusoidal_table(50, width, SinusoidalPositions())
    torch.testing.assert_close(table, expected)


def test_the_table_with_an_endpoint_equals_xglm() -> None:
    reference = XGLMSinusoidalPositionalEmbedding(50, 12)
    expected = reference(torch.arange(50)[None])[0]
    positions = SinusoidalPositions(offset=2, endpoint=True)
    torch.testing.assert_close(sinusoidal_table(50, 12, positions), expected)


# --- relative -----------------------------------------------------------------------------------


@pytest.mark.parametrize("causal", [True, False])
@pytest.mark.parametrize(("buckets", "most"), [(32, 128), (8, 20), (4, 3), (64, 1000), (10, 6)])
def test_buckets_equal_t5(buckets: int, most: int, causal: bool) -> None:
    positions = RelativeBiasPositions(buckets=buckets, max_distance=most)
    distances = torch.arange(-3 * most, 3 * most + 1)
    expected = T5Attention._relative_position_bucket(  # type: ignore[no-untyped-call]
        distances, bidirectional=not causal, num_buckets=buckets, max_distance=most
    )
    table = relative_buckets(positions, causal=causal)
    assert table.dtype == torch.int64
    assert torch.equal(table[distances.clamp(-most, most) + most], expected)


def test_distances_are_counted_from_the_query_and_bounded() -> None:
    result = relative_index(torch.tensor([[0, 3]]), 6, 2)
    assert result.tolist() == [[[2, 3, 4, 4, 4, 4], [0, 0, 1, 2, 3, 4]]]


def published_slopes(n: int) -> list[float]:
    """`get_slopes` of the paper's repository, which defines what other numbers of heads get."""

    def power_of_2(n: int) -> list[float]:
        start = 2 ** (-(2 ** -(math.log2(n) - 3)))
        return [start * start**i for i in range(n)]

    if math.log2(n).is_integer():
        return power_of_2(n)
    closest = 2 ** math.floor(math.log2(n))
    return power_of_2(closest) + published_slopes(2 * closest)[0::2][: n - closest]


@pytest.mark.parametrize("heads", range(1, 34))
def test_slopes_equal_the_paper(heads: int) -> None:
    assert alibi_slopes(heads) == pytest.approx(published_slopes(heads), rel=1e-12)


@pytest.mark.parametrize("heads", [4, 6])
def test_rounded_alibi_equals_falcon(heads: int) -> None:
    tokens = torch.ones(1, 600, dtype=torch.long)
    expected = build_alibi_tensor(tokens, heads, torch.float32)[:, 0]
    assert torch.equal(rounded_alibi(heads, 600), expected)
    assert len(set(expected[0].tolist())) < 600

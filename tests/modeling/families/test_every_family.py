"""Every family that Ortolan reads: its tiny config, and what can be done with it."""

import contextlib
from functools import cache
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.nonsense import CONFIG_VALUES
from tests.tiny import FAMILY_CONFIGS, OWN_FORMATS
from transformers import AutoConfig

from ortolan.modeling.checkpoint.folder import config_from_hf
from ortolan.modeling.config import ModelConfig
from ortolan.modeling.errors import ConfigError
from ortolan.modeling.families import FAMILIES


def test_every_family_has_a_tiny_config_and_nothing_else_does() -> None:
    assert sorted(FAMILY_CONFIGS) == sorted(FAMILIES.keys() - OWN_FORMATS)
    assert all(values["model_type"] == name for name, values in FAMILY_CONFIGS.items())


@cache
def keys_of(name: str) -> list[str]:
    """Every key of a family's configs."""
    values = {key: value for key, value in FAMILY_CONFIGS[name].items() if key != "model_type"}
    return sorted({*AutoConfig.for_model(name, **values).to_dict(), *OLD_KEYS} - {"model_type"})


OLD_KEYS = (
    *("rope_theta", "rope_scaling", "partial_rotary_factor", "rotary_pct", "rotary_emb_base"),
    *("n_embed", "seq_length", "head_dim", "sliding_window", "layer_types", "attn_config"),
)
"""Of configs that older versions of transformers wrote."""

JSON_VALUES = st.recursive(
    st.sampled_from([*CONFIG_VALUES, "gelu", "default"]) | st.integers() | st.floats() | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.just("alibi"), inner),
    max_leaves=4,
)

ROPE = {
    "factor": 2.0,
    "original_max_position_embeddings": 64,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "mscale": 1.0,
    "mscale_all_dim": 1.0,
}

ROPES = st.builds(
    lambda kind, changes: ROPE | {"rope_type": kind} | changes,
    st.sampled_from(["default", "linear", "dynamic", "llama3", "yarn", "longrope"]),
    st.dictionaries(st.sampled_from([*ROPE, "truncate", "beta_fast", "rope_theta"]), JSON_VALUES),
)


BROKEN = (*CONFIG_VALUES, 1 << 40, 1e308, "x", [0], ["full_attention"] * 2)


@pytest.mark.parametrize("name", FAMILY_CONFIGS)
def test_any_value_of_a_key_is_read_or_refused(name: str) -> None:
    values = FAMILY_CONFIGS[name]
    for key in values:
        for broken in BROKEN:
            with contextlib.suppress(ConfigError):
                config_from_hf(values | {key: broken, "model_type": name}, ModelConfig)


@settings(max_examples=4, deadline=None)
@pytest.mark.parametrize("name", FAMILY_CONFIGS)
@given(data=st.data())
def test_any_config_is_read_or_refused(name: str, data: st.DataObject) -> None:
    keys = st.sampled_from(keys_of(name))
    changes: dict[str, Any] = data.draw(st.dictionaries(keys, JSON_VALUES, max_size=3))
    changes |= data.draw(st.dictionaries(st.just("rope_scaling"), ROPES, max_size=1))
    with contextlib.suppress(ConfigError):
        config_from_hf(FAMILY_CONFIGS[name] | changes, ModelConfig)

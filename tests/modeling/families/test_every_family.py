"""Every family that Ortolan reads: its tiny config, and any other value of its keys."""

import contextlib
from itertools import count, product

import pytest
from tests.nonsense import CONFIG_VALUES
from tests.tiny import FAMILY_CONFIGS, OWN_FORMATS
from transformers import AutoConfig

from ortolan.modeling.checkpoint.folder import config_from_hf
from ortolan.modeling.config import ModelConfig
from ortolan.modeling.errors import ConfigError
from ortolan.modeling.families import FAMILIES

BROKEN = (
    *(*CONFIG_VALUES, 1 << 40, 1e308, "x", "gelu", "default", [0], [[1], {}], {"alibi": True}),
    *(["full_attention"] * 2, {"rope_type": "linear"}, {"rope_type": "yarn", "factor": 2.0}),
)

OLD_KEYS = (
    *("rope_theta", "rope_scaling", "partial_rotary_factor", "rotary_pct", "rotary_emb_base"),
    *("n_embed", "seq_length", "head_dim", "sliding_window", "layer_types", "attn_config"),
)
"""Of configs that older versions of transformers wrote."""


def test_every_family_has_a_tiny_config_and_nothing_else_does() -> None:
    assert sorted(FAMILY_CONFIGS) == sorted(FAMILIES.keys() - OWN_FORMATS)
    assert all(values["model_type"] == name for name, values in FAMILY_CONFIGS.items())


@pytest.mark.parametrize("name", FAMILY_CONFIGS)
def test_any_value_of_a_key_is_read_or_refused(name: str) -> None:
    values = FAMILY_CONFIGS[name]
    rest = {key: value for key, value in values.items() if key != "model_type"}
    others = {*AutoConfig.for_model(name, **rest).to_dict(), *OLD_KEYS} - values.keys()
    for number, key in zip(count(), sorted(others)):
        # Some of the values, others for each key.
        for broken in BROKEN[number % 5 :: 5]:
            with contextlib.suppress(ConfigError):
                config_from_hf(values | {key: broken}, ModelConfig)
    for key, broken in product(values, BROKEN):
        with contextlib.suppress(ConfigError):
            config_from_hf(values | {key: broken, "model_type": name}, ModelConfig)


@pytest.mark.parametrize("kind", ["default", "linear", "dynamic", "llama3", "yarn", "longrope"])
def test_any_value_of_a_scaling_is_read_or_refused(kind: str) -> None:
    rope = {
        **{"rope_type": kind, "factor": 2.0, "original_max_position_embeddings": 64},
        **{"low_freq_factor": 1.0, "high_freq_factor": 4.0, "mscale": 1.0, "mscale_all_dim": 1.0},
        **{"short_factor": [1.0] * 8, "long_factor": [2.0] * 8},
    }
    for key, broken in product([*rope, "truncate", "beta_fast", "rope_theta"], BROKEN):
        with contextlib.suppress(ConfigError):
            scaling = rope | {key: broken}
            config_from_hf(FAMILY_CONFIGS["llama"] | {"rope_scaling": scaling}, ModelConfig)

"""Keys of configs: read, ignored, accepted or refused, in every family and with any value."""

import contextlib
from functools import partial
from itertools import count, product
from typing import Any

import pytest
import transformers
from syrupy.assertion import SnapshotAssertion
from tests.modeling.tiny_models import LLAMA
from tests.nonsense import CONFIG_VALUES
from tests.refusals import refusal
from tests.tiny import CONFIGS, FAMILY_CONFIGS, OWN_FORMATS
from tests.tiny.modern import NANOCHAT
from transformers import AutoConfig, GenerationConfig, PreTrainedConfig

from ortolan.modeling.checkpoint.folder import config_from_hf
from ortolan.modeling.config import ModelConfig
from ortolan.modeling.errors import ConfigError
from ortolan.modeling.families import FAMILIES
from ortolan.modeling.families.inert_keys import INERT
from ortolan.modeling.families.reader import ConfigReader


def reader_of(**values: Any) -> ConfigReader:
    reader = ConfigReader({"width": 8} | values)
    reader.size("width")
    return reader


def test_what_the_base_class_and_generation_write_is_inert() -> None:
    generation: Any = GenerationConfig
    written = PreTrainedConfig().to_dict() | generation().to_dict()
    ids = {"bos_token_id", "eos_token_id", "pad_token_id"}  # every family reads these
    assert written.keys() - ids <= INERT, transformers.__version__


@pytest.mark.parametrize(
    "values",
    [
        {"unsloth_fixed": True, "unsloth_version": "2026.3.3"},
        {"transformers.js_config": {"dtype": "q4"}},
        {"sbert_ce_default_activation_function": "torch.nn.modules.linear.Identity"},
        {"model_max_length": 2048, "max_new_tokens": 64, "repetition_penalty": 1.1},
        {"rope_interleaved": False, "use_qk_norm": False, "residual_multiplier": 1.0},
        {"attention_multiplier": None, "some_future_key": None},
    ],
)
def test_keys_that_change_nothing_are_ignored(values: dict[str, Any]) -> None:
    keys = reader_of(**values).finish()
    assert keys.read == ("width",)
    assert set(keys.ignored) == {key for key, value in values.items() if value is not None}
    assert keys.accepted == ()


@pytest.mark.parametrize(
    "values",
    [
        {"use_qk_norm": True},
        {"residual_multiplier": 0.22},
        # It takes the place of the division by the square root of a head's width.
        {"attention_multiplier": 1.0},
        {"per_layer_config": {"0": {}}},
        {"quantization_config": {"bits": 4}},
        {"_sliding_window_pattern": 6},
    ],
)
def test_keys_that_may_change_something_are_an_error(values: dict[str, Any]) -> None:
    with pytest.raises(ConfigError, match=f"is known, got {next(iter(values))}"):
        reader_of(**values).finish()


def test_the_refusal_lists_what_is_unknown_and_what_was_understood(
    snapshot: SnapshotAssertion,
) -> None:
    reader = reader_of(inner={"known": 1, "odd": 2}, strange="x", use_cache=True)
    inner = reader.nested("inner")
    assert inner is not None
    assert inner.size("known") == 1
    assert refusal(reader.finish) == snapshot


def test_accepted_keys_are_listed_and_the_others_still_refused(snapshot: SnapshotAssertion) -> None:
    config: dict[str, Any] = LLAMA | {"strange": 1, "rope_scaling": {"type": "default", "odd": 2}}
    accepted = config_from_hf(config, accept_unknown=["strange", "rope_scaling.odd"])
    assert accepted == config_from_hf(LLAMA)
    assert reader_of(strange=1).finish(["strange"]).accepted == ("strange",)
    assert refusal(lambda: config_from_hf(config, accept_unknown=["strange"])) == snapshot
    for key in ("strnage", "width", "use_cache", "empty"):
        reader = reader_of(strange=1, use_cache=True, empty=None)
        assert refusal(partial(reader.finish, ["strange", key])) == snapshot


def test_object_that_a_family_skips_is_ignored_whole() -> None:
    reader = reader_of(vision_config={"odd": 1})
    reader.skip("vision_config")
    assert reader.finish().ignored == ("vision_config",)


def test_logits_are_capped_by_default_as_in_transformers() -> None:
    values = {name: value for name, value in NANOCHAT.items() if name != "final_logit_softcapping"}
    config: Any = config_from_hf(values)
    assert config.final_softcap == transformers.NanoChatConfig().final_logit_softcapping


# --- every family -------------------------------------------------------------------------------

BROKEN = (
    *(*CONFIG_VALUES, 1 << 40, 1e308, "x", "gelu", "default", [0], [[1], {}], {"alibi": True}),
    *(["full_attention"] * 2, {"rope_type": "linear"}, {"rope_type": "yarn", "factor": 2.0}),
)

OLD_KEYS = (
    *("rope_theta", "rope_scaling", "partial_rotary_factor", "rotary_pct", "rotary_emb_base"),
    *("n_embed", "seq_length", "head_dim", "sliding_window", "layer_types", "attn_config"),
)
"""Of configs that older versions of transformers wrote."""


def test_every_family_has_a_tiny_config() -> None:
    assert sorted(FAMILY_CONFIGS) == sorted(FAMILIES.keys() - OWN_FORMATS)
    assert all(values["model_type"] == name for name, values in CONFIGS.items())


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

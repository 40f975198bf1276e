"""Which keys of a config are read, which ignored, which accepted, and which an error."""

from functools import partial
from typing import Any

import pytest
import transformers
from syrupy.assertion import SnapshotAssertion
from tests.modeling.tiny_models import LLAMA
from tests.refusals import refusal
from tests.tiny.modern import NANOCHAT
from transformers import GenerationConfig, PreTrainedConfig

from ortolan.modeling.checkpoint.folder import config_from_hf
from ortolan.modeling.errors import ConfigError
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


def test_accepted_keys_are_listed_and_the_others_still_refused(
    snapshot: SnapshotAssertion,
) -> None:
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

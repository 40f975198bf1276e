"""Keys of a config.json that transformers does not read."""

from typing import Any

import pytest
from tests.tiny.transformers_types import tiny_config
from transformers import CONFIG_MAPPING

from ortolan.export.source.transformers.keys import read_keys, unread_keys
from ortolan.modeling.errors import ConfigError


def values_of(model_type: str, **values: Any) -> dict[str, Any]:
    return tiny_config(model_type).to_dict() | {"model_type": model_type} | values


def read(values: dict[str, Any], *accepted: str) -> Any:
    config: Any = CONFIG_MAPPING[values["model_type"]]
    return read_keys(values, config.from_dict(values), accepted)


# gpt_neo, zamba2 and gemma3_text compute attributes that they write; dbrx renames some.
@pytest.mark.parametrize("model_type", ["gpt_neo", "zamba2", "gemma3_text", "dbrx", "mamba"])
def test_config_that_transformers_wrote_has_no_unread_keys(model_type: str) -> None:
    keys = read(values_of(model_type))
    assert keys.accepted == ()
    assert "vocab_size" in keys.read
    assert "architectures" not in keys.read


def test_keys_of_old_versions_are_read() -> None:
    keys = read(values_of("glm4", rope_theta=5.0, rope_scaling=None, torch_dtype="float16"))
    assert "rope_theta" in keys.read
    assert "torch_dtype" in keys.ignored


def test_keys_that_a_model_reads_undeclared_are_read() -> None:
    values = values_of("glm4_moe", head_dim=32, strange=1)
    assert unread_keys(values) == ("strange",)
    assert unread_keys(values_of("gemma3_text", sliding_window_pattern=6)) == ()


def test_keys_that_change_nothing_are_ignored() -> None:
    assert "unsloth_fixed" in read(values_of("glm4", unsloth_fixed=True)).ignored


def test_key_that_transformers_does_not_read_is_refused_unless_it_is_accepted() -> None:
    values = values_of("glm4", strange=1)
    assert unread_keys(values) == ("strange",)
    with pytest.raises(ConfigError, match=r"--accept-unknown strange"):
        read(values)
    assert read(values, "strange").accepted == ("strange",)
    with pytest.raises(ConfigError, match="vocab_size"):
        read(values, "strange", "vocab_size")

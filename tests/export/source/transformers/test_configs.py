"""Configs that transformers reads: their keys, and models without weights."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from syrupy.assertion import SnapshotAssertion
from tests.refusals import refusal
from tests.tiny.transformers_types import tiny_config
from transformers import CONFIG_MAPPING, AutoModelForCausalLM

from ortolan.export.source.transformers.keys import read_keys, unread_keys
from ortolan.export.source.transformers.skeleton import build_skeleton
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


def test_keys_of_old_versions_are_read_and_those_that_change_nothing_ignored() -> None:
    old = {"rope_theta": 5.0, "rope_scaling": None, "torch_dtype": "float16"}
    keys = read(values_of("glm4", unsloth_fixed=True, **old))
    assert "rope_theta" in keys.read
    assert {"torch_dtype", "unsloth_fixed"} <= set(keys.ignored)


def test_keys_that_a_model_reads_undeclared_are_read() -> None:
    assert unread_keys(values_of("glm4_moe", head_dim=32, strange=1)) == ("strange",)
    assert unread_keys(values_of("gemma3_text", sliding_window_pattern=6)) == ()


def test_a_key_that_transformers_does_not_read_can_be_accepted() -> None:
    assert read(values_of("glm4", strange=1), "strange").accepted == ("strange",)


@pytest.mark.parametrize("model_type", ["llama", "gpt2", "phi3", "gemma3_text", "mamba"])
def test_a_skeleton_has_no_weights_and_the_buffers_of_a_loaded_model(model_type: str) -> None:
    config = tiny_config(model_type)
    skeleton = build_skeleton(config.to_dict())
    assert {parameter.device.type for parameter in skeleton.parameters()} == {"meta"}
    loaded = AutoModelForCausalLM.from_config(config)
    expected = dict(loaded.named_non_persistent_buffers())
    assert dict(skeleton.named_non_persistent_buffers()).keys() == expected.keys()
    for name, buffer in skeleton.named_non_persistent_buffers():
        assert torch.equal(buffer, expected[name]), name


def test_an_infinity_in_a_config_is_read() -> None:
    values = values_of("mamba2", time_step_limit=[0.0, {"__float__": "Infinity"}])
    assert build_skeleton(values).config.time_step_limit[1] == float("inf")


def test_code_of_a_checkpoint_is_not_executed(tmp_path: Path) -> None:
    code = {"AutoModelForCausalLM": "evil.EvilModel"}
    values = values_of("llama", auto_map=code, _name_or_path=str(tmp_path))
    (tmp_path / "evil.py").write_text("raise SystemExit('executed')")
    assert type(build_skeleton(values)).__name__ == "LlamaForCausalLM"


REFUSED: dict[str, Callable[[], object]] = {
    "an unread key": lambda: read(values_of("glm4", strange=1)),
    "a read key that is accepted": lambda: read(values_of("glm4"), "vocab_size"),
    "an unknown type": lambda: build_skeleton({"model_type": "nobody"}),
}


@pytest.mark.parametrize("name", REFUSED)
def test_a_config_that_cannot_be_honored_is_refused(name: str, snapshot: SnapshotAssertion) -> None:
    assert refusal(REFUSED[name]) == snapshot


def test_a_width_in_words_is_refused() -> None:
    with pytest.raises(ConfigError, match="cannot build this llama"):
        build_skeleton({"model_type": "llama", "hidden_size": "wide"})

"""Models of transformers are built from a config alone, without weights."""

from pathlib import Path

import pytest
import torch
from tests.tiny.transformers_types import tiny_config
from transformers import AutoModelForCausalLM

from ortolan.export.source.transformers.skeleton import build_skeleton
from ortolan.modeling.errors import ConfigError


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


def test_an_infinity_in_a_config_is_read(tmp_path: Path) -> None:
    values = tiny_config("mamba2").to_dict() | {"time_step_limit": [0.0, {"__float__": "Infinity"}]}
    assert build_skeleton(values).config.time_step_limit[1] == float("inf")


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        ({"model_type": "nobody"}, "no causal language model"),
        ({"model_type": "llama", "hidden_size": "wide"}, "cannot build this llama"),
    ],
)
def test_configs_that_transformers_cannot_build_are_refused(
    values: dict[str, object], expected: str
) -> None:
    with pytest.raises(ConfigError, match=expected):
        build_skeleton(values)


def test_code_of_a_checkpoint_is_not_executed(tmp_path: Path) -> None:
    values = tiny_config("llama").to_dict() | {
        "auto_map": {"AutoModelForCausalLM": "evil.EvilModel"},
        "_name_or_path": str(tmp_path),
    }
    (tmp_path / "evil.py").write_text("raise SystemExit('executed')")
    assert type(build_skeleton(values)).__name__ == "LlamaForCausalLM"

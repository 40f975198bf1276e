"""Files called config.json that are torn, hostile, or not understood."""

import contextlib
import json
from pathlib import Path
from typing import Any

import pytest
from tests.modeling.tiny_models import LLAMA
from tests.nonsense import CONFIG_VALUES
from tests.tiny import FAMILY_CONFIGS
from tests.tiny.decoders import GPT2
from tests.tiny.encoders import DINOV2_REGISTERS, DINOV3

from ortolan.modeling import CheckpointError, ConfigError, read_config
from ortolan.modeling.checkpoint.checkpoint import MAX_CONFIG_BYTES
from ortolan.modeling.checkpoint.folder import config_from_hf
from ortolan.modeling.config import ModelConfig


def test_a_folder_without_a_config_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match=r"config\.json"):
        read_config(tmp_path)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "not valid JSON"),
        (b'{"model_type": "lla', "not valid JSON"),
        (b"\xff\xfe", "not valid JSON"),
        (b"[" * 100_000, "not valid JSON"),
        (b'{"a":' * 100_000, "not valid JSON"),
        (b'{"vocab_size": ' + b"9" * 5000 + b"}", "not valid JSON"),
        (b"null", "expected a JSON object, got NoneType"),
        (b'"llama"', "expected a JSON object, got str"),
    ],
    ids=["empty", "torn", "not-text", "deep-list", "deep-object", "long-number", "null", "text"],
)
def test_a_config_that_is_no_object_is_an_error(
    tmp_path: Path, content: bytes, message: str
) -> None:
    (tmp_path / "config.json").write_bytes(content)
    with pytest.raises(CheckpointError, match=rf"config\.json: {message}"):
        read_config(tmp_path)


def test_a_huge_config_is_refused_unread(tmp_path: Path) -> None:
    with (tmp_path / "config.json").open("wb") as file:
        file.truncate(MAX_CONFIG_BYTES + 1)
    with pytest.raises(CheckpointError, match=str(MAX_CONFIG_BYTES)):
        read_config(tmp_path)


NOT_UNDERSTOOD: list[tuple[dict[str, Any], str]] = [
    ({"model_type": "zamba2"}, r"one of the \d+ families .*'zamba2'"),
    ({"model_type": None}, "model_type, got nothing"),
    ({"model_type": ["llama"]}, "model_type of type str"),
    ({"attention_sinks": 4}, "attention_sinks"),
    ({"a": 1, "b": 2}, "got a, b"),
    ({"add_cross_attention": True}, "add_cross_attention"),
    ({"hidden_size": "32"}, "hidden_size of type int, got '32'"),
    ({"hidden_size": 32.0}, "hidden_size of type int"),
    ({"hidden_size": True}, "hidden_size of type int"),
    ({"hidden_size": None}, "hidden_size, got nothing"),
    ({"hidden_size": 0}, "hidden_size to be 1 to"),
    ({"vocab_size": -5}, "vocab_size to be 1 to"),
    ({"num_attention_heads": 0}, "num_attention_heads to be 1 to"),
    ({"num_attention_heads": 64}, "head_dim to be 1 to .*, got 0"),
    ({"num_key_value_heads": 0}, "num_key_value_heads to be 1 to"),
    ({"num_key_value_heads": 3}, "divisible by num_kv_heads"),
    ({"num_hidden_layers": 0}, "num_hidden_layers to be 1 to"),
    ({"num_hidden_layers": 10**9}, "num_hidden_layers to be 1 to"),
    ({"vocab_size": 10**400}, "vocab_size to be 1 to"),
    ({"max_position_embeddings": 10**12}, "max_position_embeddings to be 1 to"),
    ({"head_dim": 5}, "even number"),
    ({"rms_norm_eps": float("nan")}, "rms_norm_eps to be finite"),
    ({"rms_norm_eps": 10**400}, "rms_norm_eps to be finite"),
    ({"rms_norm_eps": "1e-5"}, "rms_norm_eps of type float"),
    ({"tie_word_embeddings": 1}, "tie_word_embeddings of type bool"),
    ({"hidden_act": "xielu"}, "'xielu'"),
    ({"eos_token_id": "</s>"}, "eos_token_id"),
    ({"eos_token_id": [1, True]}, "eos_token_id"),
    ({"bos_token_id": [1]}, "bos_token_id of type int"),
    ({"rope_scaling": "linear"}, "rope_scaling of type dict"),
    ({"rope_scaling": {"type": "mrope", "factor": 2.0}}, "'mrope'"),
    ({"partial_rotary_factor": 0.5}, "partial_rotary_factor .*got 4"),
    ({"rope_interleaved": True}, "rope_interleaved"),
    ({"model_type": "qwen2", "use_mrope": True}, "use_mrope"),
    ({"model_type": "qwen2", "layer_types": ["full_attention"]}, "layer_types .* 2 layers"),
    ({"model_type": "qwen2", "layer_types": ["x", "y"]}, "layer_types"),
    ({"model_type": "qwen2", "layer_types": [["x"], {}]}, "layer_types"),
    ({"model_type": "mistral", "sliding_window": 0}, "sliding_window to be 1 to"),
    (GPT2 | {"n_head": 5}, "got 32 and 5"),
    (GPT2 | {"n_head": 64}, "got 32 and 64"),
    (GPT2 | {"activation_function": "gelu_fast"}, "'gelu_fast'"),
    (DINOV2_REGISTERS | {"image_size": [8, 12]}, "image_size .* both sides"),
    (DINOV2_REGISTERS | {"num_register_tokens": -1}, "num_register_tokens must be 0 to"),
    (DINOV3 | {"num_register_tokens": 1 << 20}, "num_register_tokens must be 0 to"),
    (DINOV3 | {"key_bias": True}, "key_bias false"),
    (DINOV3 | {"value_bias": False}, "query_bias and value_bias"),
    (DINOV3 | {"num_attention_heads": 16}, "multiple of 4 channels"),
    (DINOV3 | {"rope_theta": 1.0}, "theta must be above 1"),
]


@pytest.mark.parametrize(("changes", "message"), NOT_UNDERSTOOD)
def test_a_config_that_is_not_understood_is_an_error(
    tmp_path: Path, changes: dict[str, Any], message: str
) -> None:
    values = changes if "architectures" in changes or "n_head" in changes else LLAMA | changes
    (tmp_path / "config.json").write_text(json.dumps(values))
    with pytest.raises(ConfigError, match=message):
        read_config(tmp_path)


BROKEN = (*CONFIG_VALUES, 1 << 40, 1e308, "x", [0], ["full_attention"] * 2)


@pytest.mark.parametrize("family", sorted(FAMILY_CONFIGS))
def test_any_config_of_a_family_is_read_or_refused(family: str) -> None:
    values = FAMILY_CONFIGS[family]
    for key in values:
        for broken in BROKEN:
            with contextlib.suppress(ConfigError):
                config_from_hf(values | {key: broken, "model_type": family}, ModelConfig)

"""Published configs, read as the models that they describe."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from transformers import AutoConfig, PreTrainedConfig

from ortolan.modeling.checkpoint.folder import config_from_hf, empty_model
from ortolan.modeling.config import (
    AlibiPositions,
    AttentionConfig,
    ClassifierHead,
    LearnedPositions,
    LinearScaling,
    Llama3Scaling,
    LongRopeScaling,
    ModelConfig,
    NoPositions,
    NormConfig,
    RelativeBiasPositions,
    RotaryPositions,
    SinusoidalPositions,
)
from ortolan.modeling.families import FAMILIES, published_config

FOLDER = Path(__file__).parents[2] / "data" / "published_configs"

PUBLISHED: dict[str, dict[str, Any]] = {
    path.stem: json.loads(path.read_text()) for path in sorted(FOLDER.glob("*.json"))
}
"""Configs as they were published, without keys of training that another config here has."""

PARAMETERS = {
    "SmolLM2-135M": 134_515_008,
    "Llama-3.2-1B": 1_235_814_400,
    "TinyLlama-1.1B": 1_100_048_384,
    "Qwen2.5-0.5B": 494_032_768,
    "Mistral-7B-v0.1": 7_241_732_096,
    "gpt2": 124_439_808,
}
"""Published numbers of parameters."""

WITH_CLASS = [
    name
    for name, values in PUBLISHED.items()
    if "architectures" in values and not name.startswith("nomic")
]
"""Those that transformers builds as published."""

ABSENT = object()
"""In place of the value of a key that a config does not have."""


def read(name: str, **changes: object) -> ModelConfig:
    values = {k: value for k, value in (PUBLISHED[name] | changes).items() if value is not ABSENT}
    return config_from_hf(values, ModelConfig)


def in_transformers(name: str) -> PreTrainedConfig:
    values = {key: value for key, value in PUBLISHED[name].items() if key != "model_type"}
    return AutoConfig.for_model(PUBLISHED[name]["model_type"], **values)


def size(config: ModelConfig) -> int:
    module = empty_model(config)
    assert {p.device.type for p in module.parameters()} == {"meta"}
    return sum(p.numel() for p in module.parameters())


@pytest.mark.parametrize("name", PARAMETERS)
def test_a_model_has_the_published_size(name: str) -> None:
    assert size(read(name)) == PARAMETERS[name]


@pytest.mark.parametrize("name", WITH_CLASS)
def test_a_model_has_its_size_in_transformers(name: str) -> None:
    values = PUBLISHED[name]
    architecture = values["architectures"][0].replace("MPT", "Mpt")
    with torch.device("meta"):
        theirs = getattr(transformers, architecture)(in_transformers(name))
    expected = sum(p.numel() for p in theirs.parameters() if p.requires_grad)
    # There, the bias of the logits is not a parameter, and the head is tied until weights are read.
    bias = values["vocab_size"] if name == "opus-mt-en-de" else 0
    head = values["vocab_size"] * values["d_model"] if name == "flan-t5-small" else 0
    assert size(read(name)) == expected + bias + head


# transformers writes that the head of flan-t5-small is tied, which its weights contradict.
@pytest.mark.parametrize("name", sorted({*WITH_CLASS} - {"flan-t5-small"}))
def test_a_config_reads_the_same_after_transformers_rewrote_it(name: str) -> None:
    rewritten = in_transformers(name).to_dict()
    assert config_from_hf(rewritten, ModelConfig) == read(name)


@pytest.mark.parametrize(
    "name",
    [name for name, values in PUBLISHED.items() if FAMILIES[values["model_type"]].hf_config],
)
def test_a_config_reads_the_same_after_we_wrote_it(name: str) -> None:
    config = read(name)
    assert config_from_hf(published_config(config), ModelConfig) == config


SST2 = "distilbert-base-uncased-finetuned-sst-2-english"

WINDOWS = "blocks.*.attention.sliding_window"

ROTARIES = "blocks.*.attention.rotary"

QWEN2_ON: dict[str, object] = {
    "num_hidden_layers": 3,
    "use_sliding_window": True,
    "sliding_window": 7,
}

KINDS = ["sliding_attention", "full_attention", "sliding_attention"]

FACTS: dict[str, dict[str, object]] = {
    "Llama-3.2-1B": {
        "positions": RotaryPositions(
            dim=64,
            theta=500_000.0,
            scaling=Llama3Scaling(
                factor=32.0, low_freq_factor=1.0, high_freq_factor=4.0, original_context=8192
            ),
        ),
        "context_length": 131_072,
        "eos_token_ids": (128_001, 128_008, 128_009),
        "bos_token_id": 128_000,
        "pad_token_id": None,
        "blocks.*.attention": [
            AttentionConfig(num_heads=32, num_kv_heads=8, head_dim=64, scale=0.125)
        ]
        * 16,
    },
    "gpt2": {
        "positions": LearnedPositions(),
        "tied_head": True,
        "blocks.0.dense.intermediate_size": 3072,
        "blocks.0.dense.activation": "gelu_tanh",
    },
    "Qwen3-0.6B": {
        "blocks.0.attention.query_key_norm": NormConfig(kind="rms", eps=1e-6),
        "blocks.0.attention.head_dim": 128,
        "blocks.0.attention.num_heads": 16,
        "blocks.0.attention.qkv_bias": False,
        "hidden_size": 1024,
        "tied_head": True,
    },
    # Old configs of Gemma say gelu and mean its approximation.
    "gemma-2b": {
        "blocks.0.dense.activation": "gelu_tanh",
        "embedding_scale": 2048**0.5,
        "tied_head": True,
    },
    "gemma-3-1b": {
        WINDOWS: [None if (i + 1) % 6 == 0 else 512 for i in range(26)],
        "blocks.4.attention.rotary": RotaryPositions(dim=256, theta=10_000.0),
        "positions": RotaryPositions(dim=256, theta=1_000_000.0),
        "final_softcap": None,
    },
    "Phi-4-mini": {
        "positions": RotaryPositions(
            dim=96,
            scaling=LongRopeScaling(
                short_factors=(1.0,) * 48,
                long_factors=(2.0,) * 48,
                original_context=4096,
                attention_factor=1.1902380714238083,
            ),
        )
    },
    "SmolLM3-3B": {ROTARIES: [None, None, None, NoPositions()] * 9, "tied_head": True},
    "granite-3.3-2b": {
        "head_scale": 1 / 8,
        "embedding_scale": 12.0,
        "blocks.0.residual_scale": 0.22,
        "blocks.0.attention.scale": 0.015625,
    },
    "phi-2": {"positions": RotaryPositions(dim=32)},
    "gpt-j-6b": {"positions": RotaryPositions(dim=64, interleaved=True)},
    "pythia-70m": {"positions": RotaryPositions(dim=16)},
    "bloom-560m": {"positions": AlibiPositions()},
    "opt-125m": {"positions": LearnedPositions(offset=2)},
    "gpt-neo-125m": {WINDOWS: [None, 256] * 6},
    "falcon-7b": {"blocks.0.placement": "parallel", "blocks.0.attention.num_kv_heads": 1},
    "falcon-40b": {"blocks.0.placement": "parallel_norms", "blocks.0.attention.num_kv_heads": 8},
    "stablelm-2-1_6b": {"blocks.0.dense.kind": "gated"},
    "opus-mt-en-de": {
        "shared_embedding": True,
        "decoder.tied_head": True,
        "decoder.head_bias": True,
        "decoder.positions": SinusoidalPositions(layout="halves"),
        "decoder.embedding_scale": 512**0.5,
        "encoder.embedding_norm": None,
        "encoder.final_norm": None,
        "encoder.blocks.*.placement": ["post"] * 6,
        "decoder_start_token_id": 58100,
        "eos_token_ids": (0,),
    },
    "flan-t5-small": {
        "encoder.positions": RelativeBiasPositions(buckets=32, max_distance=128),
        "decoder.tied_head": False,
        "decoder.head_scale": 1.0,
        "decoder.blocks.0.attention.scale": 1.0,
        "decoder.blocks.0.dense.activation": "gelu_tanh",
    },
    "t5-small": {
        "decoder.tied_head": True,
        "decoder.head_scale": 512**-0.5,
        "decoder.blocks.0.dense.kind": "mlp",
    },
    "roberta-base": {"context_length": 512, "positions": LearnedPositions(offset=2, padding=1)},
    "vit-base-patch16-224": {"context_length": 197, "blocks.0.placement": "pre"},
    SST2: {
        "head": ClassifierHead(labels=("NEGATIVE", "POSITIVE"), pooling="first", activation="relu")
    },
    **{
        name: {
            "positions": RotaryPositions(dim=64, theta=1000.0),
            "hidden_size": 768,
            "context_length": 8192,
            "blocks.*.dense.intermediate_size": [3072] * 12,
        }
        for name in ("nomic-embed-text-v1.5", "nomic-embed-text-v1.5-hf")
    },
    "ModernBERT-base": {
        WINDOWS: [None if i % 3 == 0 else 65 for i in range(22)],
        "rotaries.*.theta": [160_000.0, 10_000.0],
        "blocks.*.attention_norm": [False, *[True] * 21],
    },
    "embeddinggemma-300m": {
        "blocks.*.attention.causal": [False] * 24,
        WINDOWS: ([257] * 5 + [None]) * 4,
        "embedding_scale": 768**0.5,
    },
}
"""Values of ours by published config; `*` in a name stands for all items."""

CHANGED: list[tuple[str, dict[str, object], dict[str, object]]] = [
    # Where the key is absent, transformers takes a default; null means no window.
    ("Mistral-7B-v0.1", {"num_hidden_layers": 2, "sliding_window": 7}, {WINDOWS: [7, 7]}),
    ("Mistral-7B-v0.1", {"num_hidden_layers": 1, "sliding_window": None}, {WINDOWS: [None]}),
    ("Mistral-7B-v0.1", {"num_hidden_layers": 1, "sliding_window": ABSENT}, {WINDOWS: [4096]}),
    ("Qwen2.5-0.5B", QWEN2_ON | {"use_sliding_window": False}, {WINDOWS: [None] * 3}),
    ("Qwen2.5-0.5B", QWEN2_ON, {WINDOWS: [None] * 3}),
    ("Qwen2.5-0.5B", QWEN2_ON | {"max_window_layers": 1}, {WINDOWS: [None, 7, 7]}),
    ("Qwen2.5-0.5B", QWEN2_ON | {"max_window_layers": 0}, {WINDOWS: [7] * 3}),
    (
        "Qwen2.5-0.5B",
        QWEN2_ON | {"max_window_layers": 2, "sliding_window": ABSENT},
        {WINDOWS: [None, None, 4096]},
    ),
    ("Qwen2.5-0.5B", QWEN2_ON | {"layer_types": KINDS}, {WINDOWS: [7, None, 7]}),
    # Gemma 2 has two keys of its activation, and reads the later one.
    (
        "gemma-2-2b",
        {"hidden_act": "silu"},
        {
            "blocks.0.dense.activation": "gelu_tanh",
            WINDOWS: [4096, None] * 13,
            "blocks.0.attention.softcap": 50.0,
            "final_softcap": 30.0,
        },
    ),
    # A scaling next to two bases is for the layers without a window.
    (
        "gemma-3-1b",
        {"rope_scaling": {"rope_type": "linear", "factor": 8.0}},
        {
            "blocks.4.attention.rotary": RotaryPositions(dim=256, theta=10_000.0),
            "positions.scaling": LinearScaling(factor=8.0),
        },
    ),
    (
        "c4ai-command-r7b",
        {"num_hidden_layers": 4},
        {
            WINDOWS: [4096, 4096, 4096, None],
            ROTARIES: [None, None, None, NoPositions()],
            "head_scale": 0.25,
            "blocks.0.placement": "parallel",
        },
    ),
]
"""A published config, changes of it, and values of ours."""


@pytest.mark.parametrize(
    ("name", "changes", "facts"), [*((name, {}, facts) for name, facts in FACTS.items()), *CHANGED]
)
def test_what_a_config_says(
    name: str, changes: dict[str, object], facts: dict[str, object]
) -> None:
    config = read(name, **changes)
    assert {path: value_at(config, path.split(".")) for path in facts} == facts


def value_at(value: Any, path: list[str]) -> object:
    if not path:
        return value
    first, rest = path[0], path[1:]
    if first == "*":
        return [value_at(item, rest) for item in value]
    return value_at(value[int(first)] if first.isdigit() else getattr(value, first), rest)

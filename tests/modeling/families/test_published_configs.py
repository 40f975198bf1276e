"""Published configs, read as the models that they describe."""

import json
from copy import deepcopy
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from transformers import AutoConfig, PreTrainedConfig

from ortolan.modeling.checkpoint.folder import config_from_hf, empty_model
from ortolan.modeling.config import (
    ClassifierHead,
    HeadLayer,
    LearnedPositions,
    LinearScaling,
    ModelConfig,
    NoPositions,
    RotaryPositions,
)
from ortolan.modeling.families import FAMILIES, published_config

FOLDER = Path(__file__).parents[2] / "data" / "published_configs"

PUBLISHED: dict[str, dict[str, Any]] = {
    path.stem: json.loads(path.read_text()) for path in sorted(FOLDER.glob("*.json"))
}
"""Configs as they were published, without keys of training that another config here has."""


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
    # transformers writes into nested values
    values = deepcopy({key: value for key, value in PUBLISHED[name].items() if key != "model_type"})
    return AutoConfig.for_model(PUBLISHED[name]["model_type"], **values)


def size(config: ModelConfig) -> int:
    module = empty_model(config)
    assert {p.device.type for p in module.parameters()} == {"meta"}
    return sum(p.numel() for p in module.parameters())


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


OTHERWISE = {"flan-t5-small", "SmolLM3-3B", "nomic-embed-text-v1.5", "nomic-embed-text-v1.5-hf"}
"""Of these, transformers writes a tied head, other special tokens, or other names."""

REWRITTEN = sorted({*PUBLISHED} - OTHERWISE)


@pytest.mark.parametrize("name", REWRITTEN)
def test_a_config_reads_the_same_after_transformers_rewrote_it(name: str) -> None:
    rewritten = in_transformers(name).to_dict()
    assert config_from_hf(rewritten, ModelConfig) == read(name)


@pytest.mark.parametrize(
    "name", [name for name, values in PUBLISHED.items() if FAMILIES[values["model_type"]].hf_config]
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
    },
    "Phi-4-mini": {
        "positions.dim": 96,
        "positions.scaling.original_context": 4096,
        "positions.scaling.attention_factor": 1.1902380714238083,
    },
    "SmolLM3-3B": {ROTARIES: [None, None, None, NoPositions()] * 9, "tied_head": True},
    "gpt-neo-125m": {WINDOWS: [None, 256] * 6},
    "opus-mt-en-de": {
        "encoder.embedding_norm": None,
        "encoder.final_norm": None,
        "encoder.blocks.*.placement": ["post"] * 6,
        "decoder_start_token_id": 58100,
        "eos_token_ids": (0,),
    },
    "flan-t5-small": {"decoder.tied_head": False, "decoder.head_scale": 1.0},
    "t5-small": {"decoder.tied_head": True, "decoder.head_scale": 512**-0.5},
    "roberta-base": {"context_length": 512, "positions": LearnedPositions(offset=2, padding=1)},
    SST2: {
        "head": ClassifierHead(
            labels=("NEGATIVE", "POSITIVE"), pooling="first", layer=HeadLayer(activation="relu")
        )
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

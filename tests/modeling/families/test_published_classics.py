"""Older decoders as they were published: their configs and their sizes."""

import pytest
import torch
import transformers
from tests.modeling.families import published_classics, published_newer
from transformers import AutoConfig, PreTrainedConfig

from ortolan.modeling import ConfigError, DecoderConfig
from ortolan.modeling.checkpoint.folder import config_from_hf, empty_model
from ortolan.modeling.config import AlibiPositions, LearnedPositions, RotaryPositions

PUBLISHED = published_classics.PUBLISHED | published_newer.PUBLISHED


def read(name: str, **changes: object) -> DecoderConfig:
    return config_from_hf(PUBLISHED[name] | changes)


def in_transformers(name: str) -> PreTrainedConfig:
    values = {key: value for key, value in PUBLISHED[name].items() if key != "model_type"}
    return AutoConfig.for_model(PUBLISHED[name]["model_type"], **values)


@pytest.mark.parametrize("name", PUBLISHED)
def test_a_published_config_gives_a_model_of_the_size_in_transformers(name: str) -> None:
    architecture = PUBLISHED[name]["architectures"][0].replace("MPT", "Mpt")
    with torch.device("meta"):
        theirs = getattr(transformers, architecture)(in_transformers(name))
    ours = sum(p.numel() for p in empty_model(read(name)).parameters())
    assert ours == sum(p.numel() for p in theirs.parameters())


@pytest.mark.parametrize("name", PUBLISHED)
def test_a_config_reads_the_same_after_transformers_rewrote_it(name: str) -> None:
    assert config_from_hf(in_transformers(name).to_dict()) == read(name)


def test_what_the_configs_say() -> None:
    assert read("phi-2").positions == RotaryPositions(dim=32)
    assert read("gpt-j-6b").positions == RotaryPositions(dim=64, interleaved=True)
    assert read("pythia-70m").positions == RotaryPositions(dim=16)
    assert read("bloom-560m").positions == AlibiPositions()
    assert read("opt-125m").positions == LearnedPositions(offset=2)
    windows = [block.attention.sliding_window for block in read("gpt-neo-125m").blocks]
    assert windows == [None, 256] * 6
    assert read("falcon-7b").blocks[0].placement == "parallel"
    assert read("falcon-7b").blocks[0].attention.num_kv_heads == 1
    assert read("falcon-40b").blocks[0].placement == "parallel_norms"
    assert read("falcon-40b").blocks[0].attention.num_kv_heads == 8
    assert read("stablelm-2-1_6b").blocks[0].dense.kind == "gated"


TYPES: dict[str, object] = {"attention_layers": None}
"""Of a config that does not write them out."""


@pytest.mark.parametrize(
    ("name", "changes", "message"),
    [
        ("opt-125m", {"word_embed_proj_dim": 512}, "word_embed_proj_dim .*768"),
        ("gpt-neo-125m", TYPES | {"attention_types": [[["global"], 3]]}, "_types .*12 layers"),
        ("gpt-neo-125m", TYPES | {"attention_types": [[["sparse"], 12]]}, "global or local"),
        ("gpt-neo-125m", TYPES | {"attention_types": [3]}, "pairs of kinds and repeats"),
        ("gpt-neo-125m", {"attention_layers": ["global"]}, "attention_layers .*12 layers"),
        ("gpt-j-6b", {"n_head": 15}, "divisible by n_head"),
        ("codegen-350m", {"n_head": 2}, "divisible by 4"),
        ("falcon-40b", {"parallel_attn": False}, "needs parallel_attn"),
        ("mpt-7b", {"expansion_ratio": 2}, "expansion_ratio"),
        ("mpt-7b", {"logit_scale": 0.5}, "logit_scale"),
        ("mpt-7b", {"no_bias": False}, "no_bias true"),
        ("mpt-7b", {"attn_config": {"alibi": False}}, "alibi true"),
        ("mpt-7b", {"attn_config": {"alibi_bias_max": 16}}, "alibi_bias_max"),
        ("mpt-7b", {"attn_config": {"kv_n_heads": 8}}, "attn_config.kv_n_heads"),
        ("apertus-8b", {"hidden_act": "silu"}, "xielu"),
        ("apertus-8b", {"rope_scaling": None}, "rope_parameters"),
        ("stablelm-2-1_6b", {"qk_layernorm": True}, "qk_layernorm false"),
    ],
)
def test_a_config_that_is_not_understood_is_an_error(
    name: str, changes: dict[str, object], message: str
) -> None:
    with pytest.raises(ConfigError, match=message):
        read(name, **changes)

"""Single faults of the readers of configs and weights, each in one place that they call: data."""

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any, NamedTuple

import torch
from tests.modeling.tiny_models import LLAMA as GROUPED
from tests.tiny import CONFIGS
from tests.tiny.modern import YARN
from torch import Tensor

from ortolan.modeling.checkpoint import placements
from ortolan.modeling.checkpoint.placements import _experts_apart as experts_apart
from ortolan.modeling.families import decoder, gemma, rope
from ortolan.modeling.families.decoder import altered
from ortolan.modeling.families.reader import ConfigReader
from ortolan.modeling.weights import Piece, published_pieces

LLAMA3: dict[str, Any] = {
    "rope_type": "llama3",
    "rope_theta": 500.0,
    "factor": 4.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 24,
}

BASES: Mapping[str, dict[str, Any]] = {
    "llama": CONFIGS["llama"] | {"rope_parameters": {"rope_type": "default", "rope_theta": 500.0}},
    "grouped": GROUPED,
    "even": GROUPED | {"num_key_value_heads": 4},
    "rough": CONFIGS["llama"] | {"rms_norm_eps": 1e-5},
    "relu": CONFIGS["llama"] | {"hidden_act": "relu"},
    "yarn": CONFIGS["llama"] | {"rope_parameters": YARN},
    "llama3": CONFIGS["llama"] | {"rope_parameters": LLAMA3},
    "stablelm": CONFIGS["stablelm"] | {"partial_rotary_factor": 0.5},
    **{
        name: CONFIGS[name]
        for name in (
            *("gpt2", "mistral", "qwen2", "qwen3", "gemma2", "gemma3_text", "smollm3"),
            *("cohere", "granite", "mixtral", "qwen3_moe", "gpt_neox"),
        )
    },
}
"""Configs of tiny checkpoints that a fault needs."""


class Patch(NamedTuple):
    """An attribute of a reader, and what replaces it."""

    owner: object
    name: str
    value: Any


class Fault(NamedTuple):
    """A fault: the checkpoint that shows it, where it is, and the words of the witness."""

    base: str
    patch: Patch
    words: str
    topic: str = "logits"


def changed(part: str, change: Callable[[Tensor], Tensor]) -> Patch:
    """Reads the weights whose published names contain a part otherwise."""
    own = Piece.ours

    def ours(piece: Piece, stored: Tensor) -> Tensor:
        return change(own(piece, stored)) if part in piece.name else own(piece, stored)

    return Patch(Piece, "ours", ours)


def exchanged(one: str, other: str) -> Patch:
    """Takes two parts of published names for one another."""

    def name(published: str) -> str:
        return published.replace(one, "*").replace(other, one).replace("*", other)

    def pieces(*arguments: Any) -> tuple[Piece, ...]:
        return tuple(own._replace(name=name(own.name)) for own in published_pieces(*arguments))

    return Patch(placements, "published_pieces", pieces)


def misread(key: str, value: object = None) -> Patch:
    """Reads another value of a key; None for its default, as if the key were absent."""
    own: Any = ConfigReader.get

    def get(hf: ConfigReader, name: str, kind: Any, default: Any = ...) -> Any:
        read = own(hf, name, kind, default)
        return read if name != key else default if value is None else value

    return Patch(ConfigReader, "get", get)


def other_rotary(**fields: Any) -> Patch:
    """Reads rotary positions with other fields."""

    def read(*arguments: Any, **named: Any) -> Any:
        return replace(rope.read_rotary(*arguments, **named), **fields)

    return Patch(decoder, "read_rotary", read)


def times(factor: float) -> Callable[[Tensor], Tensor]:
    """All numbers times a factor."""
    return lambda weight: weight * factor


def rolled(rows: int) -> Callable[[Tensor], Tensor]:
    """Rows from another one on, such as those of the next head."""
    return lambda weight: weight.roll(rows, 0)


def paired(half: int) -> Callable[[Tensor], Tensor]:
    """Rows of heads whose halves alternate, as other formats have them."""
    return lambda weight: weight.view(-1, 2, half, *weight.shape[1:]).transpose(1, 2).flatten(0, 2)


def without(row: int) -> Callable[[Tensor], Tensor]:
    """Zeros in a row."""
    return lambda weight: weight.index_fill(0, torch.tensor([row]), 0.0)


FIRST, SECOND = "first at model.layers.0", "first at model.layers.1"
EMBEDDINGS, HEAD = "first at the embeddings", "first at the head, after layers that agree"

OF_WEIGHTS: Mapping[str, Fault] = {
    "a weight": Fault("llama", changed("layers.1.mlp.up_proj", times(1.01)), SECOND),
    "an embedding": Fault("llama", changed("embed_tokens", times(1.01)), EMBEDDINGS),
    "a head": Fault("llama", changed("lm_head", times(1.01)), HEAD),
    "queries": Fault("llama", changed("layers.1.self_attn.q_proj", times(1.01)), SECOND),
    "keys": Fault("llama", changed("layers.0.self_attn.k_proj", times(1.01)), FIRST),
    "values": Fault("llama", changed("layers.1.self_attn.v_proj", times(1.01)), SECOND),
    "an output": Fault("llama", changed("layers.0.self_attn.o_proj", times(1.01)), FIRST),
    "a norm": Fault("llama", changed("layers.1.input_layernorm", times(1.01)), SECOND),
    "the last norm": Fault("llama", changed("model.norm", times(1.01)), HEAD),
    "a row of the embedding": Fault("llama", changed("embed_tokens", without(0)), EMBEDDINGS),
    "a row of the head": Fault("llama", changed("lm_head", without(7)), HEAD),
    "an axis": Fault("llama", changed("layers.1.self_attn.q_proj", torch.t), SECOND),
    "an axis of the output": Fault("llama", changed("layers.0.self_attn.o_proj", torch.t), FIRST),
    "an axis in GPT-2": Fault("gpt2", changed("h.1.attn.c_proj.weight", torch.t), "h.1"),
    "halves of the keys' heads": Fault("llama", changed("k_proj", paired(8)), FIRST),
    "halves of all heads": Fault("gpt_neox", changed("query_key_value", paired(8)), "layers.0"),
    "heads of keys": Fault("grouped", changed("layers.1.self_attn.k_proj", rolled(8)), SECOND),
    "heads of queries": Fault("grouped", changed("layers.0.self_attn.q_proj", rolled(8)), FIRST),
    "heads of values": Fault("grouped", changed("layers.0.self_attn.v_proj", rolled(8)), FIRST),
    "positions": Fault("gpt2", changed("wpe", rolled(1)), EMBEDDINGS),
    "a bias of queries": Fault(
        "qwen2", changed("layers.1.self_attn.q_proj.bias", times(0)), SECOND
    ),
    "a bias of the output": Fault("gpt2", changed("h.0.attn.c_proj.bias", times(0)), "h.0"),
    "a weight less one": Fault(
        "gemma2", changed("layers.1.input_layernorm", lambda w: w - 1), SECOND
    ),
    "a weight and one": Fault("llama", changed("model.norm", lambda w: w + 1), HEAD),
    "queries and keys": Fault("even", exchanged("q_proj", "k_proj"), FIRST),
    "gate and up": Fault("llama", exchanged("gate_proj", "up_proj"), FIRST),
    "two norms": Fault("llama", exchanged("input_", "post_attention_"), FIRST),
    "norms around an MLP": Fault("gemma2", exchanged("pre_feedf", "post_feedf"), FIRST),
    "norms of queries and keys": Fault("qwen3", exchanged("q_norm", "k_norm"), FIRST),
    "two layers": Fault("llama", exchanged("layers.0.", "layers.1."), FIRST),
    "embedding and head": Fault("llama", exchanged("lm_head", "model.embed_tokens"), EMBEDDINGS),
    "experts": Fault("mixtral", changed("moe.gate.weight", rolled(1)), FIRST),
    "gates of experts": Fault(
        "mixtral",
        Patch(placements, "_experts_apart", lambda names, *own: experts_apart(names[::-1], *own)),
        FIRST,
    ),
}

OF_CONFIGS: Mapping[str, Fault] = {
    "a base of rotary positions": Fault("llama", other_rotary(theta=10_000.0), FIRST),
    "halves for pairs": Fault("cohere", other_rotary(interleaved=False), FIRST),
    "pairs for halves": Fault("llama", other_rotary(interleaved=True), FIRST),
    "the other direction": Fault("llama", other_rotary(backward=True), FIRST),
    "a part of the channels": Fault("stablelm", other_rotary(dim=16), FIRST),
    "no scaling": Fault("yarn", other_rotary(scaling=None), FIRST),
    "no scaling of Llama 3": Fault("llama3", other_rotary(scaling=None), FIRST),
    "a factor of YaRN": Fault("yarn", misread("factor", 5.0), FIRST),
    "warmth of YaRN": Fault("yarn", Patch(rope, "_yarn_attention_factor", lambda *_: 1.0), FIRST),
    "an original context": Fault("llama3", misread("original_max_position_embeddings"), FIRST),
    "two bases": Fault("gemma3_text", misread("rope_theta", 1000.0), FIRST),
    "layers without positions": Fault("smollm3", misread("no_rope_layers", [0, 1]), FIRST),
    "an epsilon": Fault("rough", misread("rms_norm_eps"), FIRST),
    "an activation": Fault("relu", misread("hidden_act"), FIRST),
    "an approximate activation": Fault(
        "gemma2", Patch(gemma, "read_activation", lambda _: "gelu"), FIRST
    ),
    "a scale of scores": Fault("gemma2", misread("query_pre_attn_scalar"), FIRST),
    "a cap of scores": Fault("gemma2", misread("attn_logit_softcapping"), FIRST),
    "a cap of logits": Fault("gemma2", misread("final_logit_softcapping"), HEAD),
    "a scaled embedding": Fault(
        "gemma2",
        Patch(gemma, "altered", lambda config, embedding_scale, **own: altered(config, **own)),
        EMBEDDINGS,
    ),
    "no window": Fault("mistral", misread("sliding_window"), FIRST),
    "a longer window": Fault("mistral", misread("sliding_window", 8), FIRST),
    "windows of other layers": Fault(
        "gemma2", misread("layer_types", ["full_attention", "sliding_attention"]), FIRST
    ),
    "a factor of embeddings": Fault("granite", misread("embedding_multiplier"), EMBEDDINGS),
    "a factor of scores": Fault("granite", misread("attention_multiplier"), FIRST),
    "a factor of layers": Fault("granite", misread("residual_multiplier"), FIRST),
    "a divisor of logits": Fault("granite", misread("logits_scaling"), HEAD),
    "a factor of logits": Fault("cohere", misread("logit_scale", 1.0), HEAD),
    "a number of experts": Fault("mixtral", misread("num_experts_per_tok", 1), FIRST),
    "sums of experts": Fault("qwen3_moe", misread("norm_topk_prob", False), FIRST),
    "parallel layers": Fault("gpt_neox", misread("use_parallel_residual", False), "layers.0"),
    "a context": Fault(
        "llama", misread("max_position_embeddings", 48), "tokens of a context", "special tokens"
    ),
}

READERS: Mapping[str, Fault] = {**OF_WEIGHTS, **OF_CONFIGS}

"""Tiny random models that together use every option of a config."""

import json
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import torch
from tests.tiny.tokenizers import of_characters

from ortolan.export.options import ExportOptions
from ortolan.modeling import DecoderConfig, DecoderModel, save
from ortolan.modeling.checkpoint.folder import limit_context
from ortolan.modeling.config import (
    AttentionConfig,
    BlockConfig,
    DynamicNTKScaling,
    FeedForwardConfig,
    LearnedPositions,
    NoPositions,
    NormConfig,
    Positions,
    RotaryPositions,
    SinusoidalPositions,
)

WIDTH = 64
VOCAB = 97
CONTEXT = 600

RMS = NormConfig(kind="rms", eps=1e-6)
LAYER_NORM = NormConfig(kind="layer", eps=1e-5)
GATED = FeedForwardConfig(kind="gated", intermediate_size=96, activation="silu")


def attention(heads: int = 4, kv_heads: int = 2, head_dim: int = 16, **fields: Any) -> Any:
    values = {"scale": head_dim**-0.5} | fields
    return AttentionConfig(num_heads=heads, num_kv_heads=kv_heads, head_dim=head_dim, **values)


def mlp(activation: Any, **fields: Any) -> FeedForwardConfig:
    return FeedForwardConfig(kind="mlp", intermediate_size=96, activation=activation, **fields)


def config(
    model_type: str, positions: Positions, *blocks: BlockConfig, **fields: Any
) -> DecoderConfig:
    values: dict[str, Any] = {"context_length": CONTEXT, "final_norm": RMS, "tied_head": False}
    return DecoderConfig(
        model_type=model_type,
        vocab_size=VOCAB,
        hidden_size=WIDTH,
        positions=positions,
        blocks=blocks,
        **(values | fields),
    )


def llama(layers: int = 2) -> DecoderConfig:
    """Grouped queries, biases everywhere, an untied head."""
    block = BlockConfig(
        mixer=attention(qkv_bias=True, out_bias=True),
        feed_forward=replace(GATED, bias=True),
        norm=RMS,
    )
    tokens: dict[str, Any] = {"bos_token_id": 1, "eos_token_ids": (2,)}
    return config("llama", RotaryPositions(dim=16), *(block,) * layers, **tokens)


def gpt2() -> DecoderConfig:
    """One key per query, learned positions, layer norm, a tied head."""
    block = BlockConfig(
        mixer=attention(4, 4, qkv_bias=True, out_bias=True),
        feed_forward=mlp("gelu_tanh", bias=True),
        norm=LAYER_NORM,
    )
    fields: dict[str, Any] = {"final_norm": LAYER_NORM, "tied_head": True, "eos_token_ids": (2,)}
    return config("gpt2", LearnedPositions(), block, block, **fields)


def mistral() -> DecoderConfig:
    """A sliding window, one key for all queries, half of each head rotated."""
    block = BlockConfig(mixer=attention(4, 1, 32, sliding_window=7), feed_forward=GATED, norm=RMS)
    return config("mistral", RotaryPositions(dim=16), block)


def qwen2() -> DecoderConfig:
    """Biased queries, capped scores, one of two layers windowed, positions that stretch."""
    full = BlockConfig(mixer=attention(qkv_bias=True, softcap=3.0), feed_forward=GATED, norm=RMS)
    windowed = replace(full, mixer=attention(qkv_bias=True, sliding_window=11))
    scaling = DynamicNTKScaling(factor=2.0, original_context=200)
    positions = RotaryPositions(dim=16, scaling=scaling)
    return config("qwen2", positions, full, windowed, context_length=200, tied_head=True)


def post_norm() -> DecoderConfig:
    """Norms after the residuals, a sinusoidal table, a scaled embedding, relu."""
    block = BlockConfig(
        mixer=attention(4, 1, scale=0.3),
        feed_forward=mlp("relu", bias=True),
        norm=LAYER_NORM,
        placement="post",
    )
    return config("llama", SinusoidalPositions(), block, final_norm=None, embedding_scale=8.0)


def modern() -> DecoderConfig:
    """Norms on both sides of a sublayer and of queries and keys, soft caps, sinks, a window with
    its own base in one layer, no positions in the other."""
    rotary = RotaryPositions(dim=16, theta=100.0)
    windowed = BlockConfig(
        mixer=attention(query_key_norm=RMS, sliding_window=9, rotary=rotary, sinks=True),
        feed_forward=GATED,
        norm=RMS,
        placement="sandwich",
        residual_scale=0.7,
    )
    whole = BlockConfig(
        mixer=attention(query_key_norm=RMS, norm_over="all", rotary=NoPositions()),
        feed_forward=mlp("relu2"),
        norm=RMS,
        placement="inner_post",
    )
    fields: dict[str, Any] = {"tied_head": True, "embedding_scale": 8.0, "final_softcap": 6.0}
    return config("llama", RotaryPositions(dim=16), windowed, whole, **fields)


def decoder(config: DecoderConfig, dtype: torch.dtype = torch.float32) -> DecoderModel:
    """A module with random weights, those of norms and sinks included."""
    with torch.random.fork_rng():
        torch.manual_seed(7)
        module = DecoderModel(config).eval()
        for name, parameter in module.named_parameters():
            if "norm" in name or "sinks" in name:
                parameter.data.add_(0.1 * torch.randn_like(parameter))
    return module.to(dtype)


def reference(module: DecoderModel, max_context: int | None) -> DecoderModel:
    """The float32 reference of an export of `module` with `max_context`."""
    longer = DecoderModel(limit_context(module.config, max_context)).eval()
    state = {name: value.float() for name, value in module.state_dict().items()}
    for name, parameter in longer.named_parameters():
        state[name] = state[name][: len(parameter)]
    longer.load_state_dict(state)
    return longer


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """A model and how it is exported."""

    config: Callable[[], DecoderConfig]
    dtype: torch.dtype = torch.float32
    options: dict[str, Any] = field(default_factory=dict)


CASES = {
    "llama": Case(config=llama),
    "llama-split-portable": Case(
        config=llama, options={"options": ExportOptions(graphs="split", attention="portable")}
    ),
    "llama-fp16": Case(config=llama, options={"device": "cuda", "precision": "fp16"}),
    # Fewer rows of the learned table than the model has.
    "gpt2-portable": Case(
        config=gpt2, options={"options": ExportOptions(attention="portable"), "max_context": 300}
    ),
    "mistral-bf16": Case(config=mistral, dtype=torch.bfloat16),
    # More positions than the model was trained with: other angles for all of them.
    "qwen2-long": Case(config=qwen2, options={"max_context": 400}),
    "post-norm": Case(config=post_norm),
    "modern": Case(config=modern),
}


def write_checkpoint(folder: Path, module: DecoderModel) -> Path:
    """A checkpoint folder with all companions of a bundle."""
    save(module, folder)
    return write_companions(folder)


def write_companions(folder: Path) -> Path:
    """The files that a bundle takes from a checkpoint besides its config and weights."""
    of_characters().save(str(folder / "tokenizer.json"))
    (folder / "generation_config.json").write_text(json.dumps({"eos_token_id": [2, 5]}))
    (folder / "chat_template.jinja").write_text("{{ messages[0].content }}")
    return folder

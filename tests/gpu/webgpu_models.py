"""Models that the tests of WebGPU export: one of each kind of state, attention and encoder."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import torch
from tests.export import models_of_kinds, tiny_models
from tests.export.models_of_kinds import module_of
from tests.modeling import kinds

from ortolan.modeling.config import BlockConfig, LatentConfig, RotaryPositions, TokenInput
from ortolan.modeling.config.recurrent import MemoryConfig, RecurrentConfig
from ortolan.modeling.models.recurrent import RecurrentModel

DECODERS = ("grown", "windowed", "replaced", "lstm", "latent", "softcap")

ENCODERS = ("encoder", "rotary encoder")

TRANSLATORS = ("translator", "relative translator")


def recurrent(**fields: Any) -> RecurrentModel:
    config = RecurrentConfig(
        model_type="recurrent",
        hidden_size=24,
        vocab_size=tiny_models.VOCAB,
        context_length=400,
        num_layers=1,
        **fields,
    )
    torch.manual_seed(0)
    model = RecurrentModel(config).eval()
    for parameter in model.parameters():
        parameter.data.normal_(0, 0.4)
    return model


def layer(head_dim: int, rotated: int, **fields: Any) -> BlockConfig:
    rotary = RotaryPositions(dim=rotated, theta=30.0)
    return kinds.with_attention(head_dim=head_dim, rotary=rotary, **fields)


LATENT = LatentConfig(query_rank=12, rank=10, rotated=6, norm=kinds.RMS, bias=False)


def decoder(block: BlockConfig) -> Any:
    config = kinds.decoder_config(RotaryPositions(dim=6), (block,), final_norm=kinds.LAYER)
    return module_of(replace(config, vocab_size=tiny_models.VOCAB, context_length=400))


def encoder(block: BlockConfig) -> Any:
    words = TokenInput(vocab_size=tiny_models.VOCAB)
    positions = kinds.POSITIONS["learned" if block is kinds.BLOCK else "rotary"]
    return module_of(kinds.encoder_config(positions, block, input=words, context_length=100))


def translator(positions: str) -> Any:
    config = models_of_kinds.seq2seq_config(kinds.POSITIONS[positions])
    encoder = replace(config.encoder, context_length=100)
    return module_of(
        replace(config, encoder=encoder, decoder=replace(config.decoder, context_length=100))
    )


SOURCES: dict[str, Callable[[], Any]] = {
    "grown": lambda: tiny_models.decoder(tiny_models.llama()),
    "windowed": lambda: tiny_models.decoder(tiny_models.mistral()),
    "replaced": lambda: recurrent(
        cell="feed_forward", memory=MemoryConfig(slots=9, width=8, read_heads=2)
    ),
    "lstm": lambda: recurrent(cell="lstm"),
    "latent": lambda: decoder(layer(14, 6, value_dim=10, latent=LATENT, qkv_bias=False)),
    "softcap": lambda: decoder(layer(16, 16, num_kv_heads=2, softcap=0.8, sliding_window=9)),
    "encoder": lambda: encoder(kinds.BLOCK),
    "rotary encoder": lambda: encoder(layer(16, 16, num_kv_heads=2, softcap=0.8)),
    "translator": lambda: translator("learned"),
    "relative translator": lambda: translator("relative-bias"),
}

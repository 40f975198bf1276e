"""Configs of encoders and encoder-decoders that contradict themselves."""

from dataclasses import replace
from typing import Any

import pytest
from tests.modeling.kinds import (
    ATTENTION,
    BLOCK,
    BLOCKS,
    MLP,
    POSITIONS,
    RMS,
    WIDTH,
    bidirectional,
    decoder_config,
    encoder_config,
    seq2seq_config,
)

from ortolan.modeling import ConfigError
from ortolan.modeling.config import (
    AlibiPositions,
    ClassifierHead,
    ConcatenatedPositions,
    EmbeddingHead,
    LanguageModelHead,
    LatentConfig,
    NoPositions,
    NormConfig,
    PatchInput,
    RotaryPositions,
    TokenInput,
)

LATENT = LatentConfig(query_rank=None, rank=4, rotated=2, norm=RMS)

IMAGE = PatchInput(image_size=(8, 9), patch_size=(4, 2), channels=3, class_token=True)


def test_an_image_has_as_many_patches_as_fit() -> None:
    assert IMAGE.length == 2 * 4 + 1
    assert replace(IMAGE, class_token=False).length == 8


@pytest.mark.parametrize("size", [(0, 2), (9, 2), (2, 10), (-1, 2)])
def test_patches_that_do_not_fit_are_an_error(size: tuple[int, int]) -> None:
    with pytest.raises(ConfigError, match="patches that fit into the image"):
        replace(IMAGE, patch_size=size)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"readout": "sum"}, "no out_bias where the heads are added up"),
        ({"value_dim": 0}, "at least one channel"),
        ({"latent": LATENT, "clip": 1.0, "qkv_bias": False}, "made of latents, got others"),
        ({"latent": LATENT, "num_kv_heads": 2, "qkv_bias": False}, "keys for every head"),
        ({"latent": replace(LATENT, rotated=0), "qkv_bias": False}, "keys for every head"),
        ({"latent": LATENT}, "nor bias of queries and keys"),
        ({"clip": 0.0}, "a positive bound of queries, keys and values, got 0.0"),
    ],
)
def test_an_attention_that_cannot_be_is_an_error(change: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        replace(ATTENTION, **change)


def test_a_norm_without_a_weight_has_no_bias() -> None:
    with pytest.raises(ConfigError, match="no bias where there is no weight"):
        NormConfig(kind="layer", eps=1e-5, scale=False)
    assert not NormConfig(kind="layer", eps=1e-5, scale=False, bias=False).scale


@pytest.mark.parametrize(
    "change",
    [{"rotary": NoPositions()}, {"query_key_norm": RMS}, {"clip": 1.0}, {"sinks": True}],
)
def test_attention_to_a_source_has_its_queries_as_they_are(change: dict[str, Any]) -> None:
    cross = replace(bidirectional(BLOCK).attention, **change)
    with pytest.raises(ConfigError, match="expected queries, keys and values as they are"):
        replace(BLOCK, cross_attention=cross)


def test_a_layer_turns_no_more_channels_than_a_head_has() -> None:
    rotary = RotaryPositions(dim=2 * ATTENTION.head_dim)
    own = replace(BLOCK, mixer=replace(ATTENTION, rotary=rotary))
    with pytest.raises(ConfigError, match=f"rotated channels up to {ATTENTION.head_dim}"):
        decoder_config(NoPositions(), (BLOCK, own))


def test_a_layer_has_no_positions_of_its_own_beside_distances() -> None:
    own = replace(BLOCK, mixer=replace(ATTENTION, rotary=NoPositions()))
    with pytest.raises(ConfigError, match="no rotary positions of its own where distances"):
        decoder_config(POSITIONS["alibi"], (BLOCK, own))


@pytest.mark.parametrize(
    "change", [{"kind": "gated", "hidden_layers": 2}, {"hidden_layers": 3}, {"hidden_layers": 0}]
)
def test_a_feed_forward_that_cannot_be_is_an_error(change: dict[str, Any]) -> None:
    with pytest.raises(ConfigError, match="one hidden layer, or two of an mlp"):
        replace(MLP, **change)


def test_sublayers_side_by_side_have_no_cross_attention_between_them() -> None:
    with pytest.raises(ConfigError, match="no cross-attention where attention and mlp are"):
        seq2seq_config(NoPositions(), BLOCKS["parallel"])


def test_a_decoder_that_cannot_be_is_an_error() -> None:
    with pytest.raises(ConfigError, match="expected causal attention in every layer"):
        decoder_config(NoPositions(), bidirectional(BLOCK))
    with pytest.raises(ConfigError, match="a head of its own beside concatenated positions"):
        decoder_config(POSITIONS["concatenated-learned"], tied_head=True)
    with pytest.raises(ConfigError, match=f"fewer channels than the {WIDTH} of the embedding"):
        decoder_config(ConcatenatedPositions(dim=WIDTH, table=POSITIONS["learned"]))  # type: ignore[arg-type]
    narrow = replace(BLOCKS["readout-sum"].attention, value_dim=WIDTH - 1)
    with pytest.raises(ConfigError, match=f"values of the stream's {WIDTH} channels"):
        decoder_config(NoPositions(), replace(BLOCK, mixer=narrow))


@pytest.mark.parametrize("positions", ["relative-bias", "alibi"])
def test_layers_that_share_a_bias_have_as_many_heads(positions: str) -> None:
    config = decoder_config(POSITIONS[positions])
    wider = replace(BLOCK, mixer=replace(ATTENTION, num_heads=8, num_kv_heads=8))
    with pytest.raises(ConfigError, match="as many heads in every layer"):
        replace(config, blocks=(BLOCK, wider))
    assert replace(config, positions=NoPositions(), blocks=(BLOCK, wider)).blocks[1] == wider


def test_scores_that_rise_with_the_key_are_of_causal_attention() -> None:
    with pytest.raises(ConfigError, match="causal attention where scores rise"):
        encoder_config(AlibiPositions(rounded=True))


def test_an_encoder_that_cannot_be_is_an_error() -> None:
    crossed = replace(BLOCK, cross_attention=bidirectional(BLOCK).attention)
    with pytest.raises(ConfigError, match="no cross-attention in an encoder"):
        encoder_config(NoPositions(), crossed)
    with pytest.raises(ConfigError, match="expected 9, the patches of an image, got 40"):
        encoder_config(NoPositions(), input=IMAGE)
    head = LanguageModelHead(tied=True, bias=True)
    with pytest.raises(ConfigError, match="a language model's over tokens"):
        encoder_config(POSITIONS["concatenated-learned"], head=head)
    with pytest.raises(ConfigError, match="a language model's over tokens"):
        replace(encoder_config(NoPositions()), input=IMAGE, context_length=IMAGE.length, head=head)


def test_a_head_that_cannot_be_is_an_error() -> None:
    with pytest.raises(ConfigError, match="at least one label"):
        ClassifierHead(labels=(), pooling="first")
    with pytest.raises(ConfigError, match="an activation and a norm, or neither"):
        LanguageModelHead(tied=True, bias=True, activation="gelu")
    with pytest.raises(ConfigError, match="an activation and a norm, or neither"):
        LanguageModelHead(tied=True, bias=True, norm=NormConfig(kind="rms", eps=1.0))


def test_an_encoder_decoder_that_cannot_be_is_an_error() -> None:
    config = seq2seq_config(NoPositions())
    with pytest.raises(ConfigError, match="cross-attention to all of the source in every layer"):
        replace(config, decoder=decoder_config(NoPositions()))
    with pytest.raises(ConfigError, match="expected no head"):
        replace(config, encoder=replace(config.encoder, head=EmbeddingHead(pooling=("mean",))))
    with pytest.raises(ConfigError, match=f"the decoder's width of {WIDTH}, got a width of 12"):
        replace(config, encoder=replace(config.encoder, hidden_size=12))
    other = replace(config.encoder, input=TokenInput(vocab_size=7))
    with pytest.raises(ConfigError, match="the decoder's 31 tokens for the encoder too"):
        replace(config, encoder=other)
    assert replace(config, encoder=other, shared_embedding=False).encoder == other

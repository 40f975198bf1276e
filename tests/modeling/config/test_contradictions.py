"""Configs that contradict themselves, and what the others say of their shapes."""

from collections.abc import Callable
from dataclasses import replace
from functools import partial

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
    cross_of,
    decoder_config,
    encoder_config,
    seq2seq_config,
)
from tests.modeling.mixers import CHANNELS, CONV, DELTA, HEADS, LRU, MIXERS

from ortolan.modeling import ConfigError
from ortolan.modeling.config import (
    AlibiPositions,
    BlockConfig,
    ClassifierHead,
    ConcatenatedPositions,
    EmbeddingHead,
    LanguageModelHead,
    LatentConfig,
    NoPositions,
    NormConfig,
    PatchCenters,
    PatchInput,
    RotaryPositions,
    TokenInput,
    as_encoder,
)

NONE = NoPositions()

LATENT = LatentConfig(query_rank=None, rank=4, rotated=2, norm=RMS)

UNBIASED = replace(ATTENTION, qkv_bias=False)

IMAGE = PatchInput(image_size=(8, 9), patch_size=(4, 2), channels=3, class_token=True)

CENTERS = RotaryPositions(
    dim=4, axes=(1, 2), axial=True, centers=PatchCenters(grid=IMAGE.grid, skipped=IMAGE.tokens)
)

HEAD = LanguageModelHead(tied=True, bias=True)

WIDER = replace(BLOCK, mixer=replace(ATTENTION, num_heads=8, num_kv_heads=8))

TURNED = replace(BLOCK, mixer=replace(ATTENTION, rotary=RotaryPositions(dim=12)))

UNTURNED = replace(BLOCK, mixer=replace(ATTENTION, rotary=NONE))

NARROW = replace(BLOCKS["readout-sum"].attention, value_dim=WIDTH - 1)

MIXED = BlockConfig(mixer=CONV, feed_forward=None, norm=RMS)

JOINED = POSITIONS["concatenated-learned"]


def crossed(**changes: object) -> BlockConfig:
    cross = replace(bidirectional(BLOCK).attention, **changes)  # type: ignore[arg-type]
    return replace(BLOCK, cross_attention=cross)


CASES: dict[str, tuple[Callable[[], object], str]] = {
    # positions
    **{
        f"{dim} rotated channels": (
            partial(decoder_config, RotaryPositions(dim=dim)),
            f"even number .*got {dim}",
        )
        for dim in (0, 3, 66)
    },
    "a layer that rotates too much": (lambda: decoder_config(NONE, (BLOCK, TURNED)), "got 12"),
    "a layer with its own positions": (
        lambda: decoder_config(POSITIONS["alibi"], (BLOCK, UNTURNED)),
        "biases of distances",
    ),
    "wide positions": (
        lambda: decoder_config(ConcatenatedPositions(dim=WIDTH, table=POSITIONS["learned"])),  # type: ignore[arg-type]
        f"fewer channels than the {WIDTH}",
    ),
    "rounded biases of both sides": (
        lambda: encoder_config(AlibiPositions(rounded=True)),
        "rounded needs causal",
    ),
    **{
        f"{name} of different heads": (
            partial(replace, decoder_config(POSITIONS[name]), blocks=(BLOCK, WIDER)),
            "same number of heads",
        )
        for name in ("relative-bias", "alibi")
    },
    # attention
    "no heads": (lambda: replace(ATTENTION, num_heads=0), "at least one head"),
    "no keys": (lambda: replace(ATTENTION, num_kv_heads=0), "at least one head"),
    "no channels": (lambda: replace(ATTENTION, head_dim=0), "at least one channel"),
    "no values": (lambda: replace(ATTENTION, value_dim=0), "at least one channel"),
    "keys for some heads": (lambda: replace(ATTENTION, num_kv_heads=3), "num_kv_heads"),
    "an empty window": (lambda: replace(ATTENTION, sliding_window=0), "at least 1"),
    "a biased sum": (lambda: replace(ATTENTION, readout="sum"), "no out_bias"),
    "clipped latents": (lambda: replace(UNBIASED, latent=LATENT, clip=1.0), "latents need"),
    "shared latents": (lambda: replace(UNBIASED, latent=LATENT, num_kv_heads=2), "latents need"),
    "latents without positions": (
        lambda: replace(UNBIASED, latent=replace(LATENT, rotated=0)),
        "latents need",
    ),
    "biased latents": (lambda: replace(ATTENTION, latent=LATENT), "bias of queries"),
    "an empty bound": (lambda: replace(ATTENTION, clip=0.0), "got 0.0"),
    "a narrow sum": (
        lambda: decoder_config(NONE, replace(BLOCK, mixer=NARROW)),
        f"values of the stream's {WIDTH}",
    ),
    # other mixers
    "no channels of a mixer": (lambda: replace(CONV, channels=0), "at least 1"),
    "one tap": (lambda: replace(CONV, taps=1), "at least 2 taps"),
    "key heads that do not share": (lambda: replace(DELTA, num_key_heads=3), "must share 4"),
    "groups that do not share": (lambda: replace(HEADS, groups=3), "must share 4"),
    "blocks that do not share": (lambda: replace(LRU, num_heads=5), "must share 12"),
    "a rank of wide heads": (lambda: replace(HEADS, step_rank=3), "with a step_rank"),
    "bounds and a rank": (lambda: replace(CHANNELS, steps=(0.0, 1.0)), "with a step_rank"),
    "norms without a rank": (lambda: replace(HEADS, inner_norm=RMS), "inner_norm"),
    # blocks
    "no layers": (lambda: replace(decoder_config(NONE), blocks=()), "at least one layer"),
    "a norm's bias without a weight": (
        lambda: NormConfig(kind="layer", eps=1e-5, scale=False),
        "has no bias",
    ),
    "a gated MLP of two layers": (lambda: replace(MLP, kind="gated", hidden_layers=2), "got 2"),
    "an MLP of three layers": (partial(replace, MLP, **{"hidden_layers": 3}), "got 3"),
    "an MLP of no layers": (partial(replace, MLP, **{"hidden_layers": 0}), "got 0"),
    "parallel without an MLP": (
        lambda: replace(BLOCK, feed_forward=None, placement="parallel"),
        "parallel block",
    ),
    "parallel with a source": (lambda: seq2seq_config(NONE, BLOCKS["parallel"]), "parallel block"),
    "a source and a mixer": (
        lambda: replace(BLOCK, mixer=CONV, cross_attention=cross_of(BLOCK)),
        "not ShortConvConfig",
    ),
    "a gate of a source": (lambda: crossed(gate=True), "for self-attention"),
    "positions in a source": (lambda: crossed(rotary=NONE), "for self-attention"),
    "norms of a source": (lambda: crossed(query_key_norm=RMS), "for self-attention"),
    "bounds of a source": (lambda: crossed(clip=1.0), "for self-attention"),
    "sinks of a source": (lambda: crossed(sinks=True), "for self-attention"),
    # stacks
    "a bidirectional decoder": (lambda: decoder_config(NONE, bidirectional(BLOCK)), "be causal"),
    "a narrow tied head": (lambda: decoder_config(JOINED, tied_head=True), "tied_head"),
    "an encoder of a source": (lambda: encoder_config(NONE, crossed()), "no source"),
    "an encoder of states": (
        lambda: replace(encoder_config(NONE), blocks=(MIXED,)),
        "remember the padding",
    ),
    "a decoder of states as an encoder": (
        lambda: as_encoder(decoder_config(NONE, MIXED)),
        "expected attention",
    ),
    "an image of another length": (lambda: encoder_config(NONE, input=IMAGE), "must be 9.*got 40"),
    "a narrow tied head of an encoder": (lambda: encoder_config(JOINED, head=HEAD), "a tied head"),
    "a language model of images": (
        lambda: encoder_config(NONE, input=IMAGE, context_length=IMAGE.length, head=HEAD),
        "needs tokens",
    ),
    **{
        f"patches of {size}": (partial(replace, IMAGE, patch_size=size), "must fit")
        for size in ((0, 2), (9, 2), (2, 10), (-1, 2))
    },
    "fewer than no registers": (lambda: replace(IMAGE, registers=-1), "at least 0"),
    "centers without columns": (lambda: replace(CENTERS, axes=(1, 1)), "rows and columns"),
    "centers of a text": (lambda: decoder_config(CENTERS), "only images"),
    "centers of another image": (
        lambda: encoder_config(
            CENTERS, input=replace(IMAGE, patch_size=(2, 2)), context_length=4 * 4 + 1
        ),
        "the patches of the image .got 2 by 4",
    ),
    "rotated registers": (
        lambda: encoder_config(CENTERS, input=replace(IMAGE, registers=2), context_length=11),
        "3 vectors before the patches .* .got 1",
    ),
    "no labels": (lambda: ClassifierHead(labels=(), pooling="first"), "at least one label"),
    "a head layer without a norm": (lambda: replace(HEAD, activation="gelu"), "Give both"),
    "a head layer without an activation": (lambda: replace(HEAD, norm=RMS), "Give both"),
    # encoder-decoders
    "a decoder without a source": (
        lambda: replace(seq2seq_config(NONE), decoder=decoder_config(NONE)),
        "every layer needs cross-attention",
    ),
    "a source with a head": (
        lambda: with_encoder(head=EmbeddingHead(pooling=("mean",))),
        "no head",
    ),
    "a source of another width": (lambda: with_encoder(hidden_size=12), f"{WIDTH} .*of 12"),
    "a shared table of two vocabularies": (
        lambda: with_encoder(input=TokenInput(vocab_size=7)),
        "31 tokens",
    ),
}


def with_encoder(**changes: object) -> object:
    config = seq2seq_config(NONE)
    return replace(config, encoder=replace(config.encoder, **changes))  # type: ignore[arg-type]


@pytest.mark.parametrize("name", CASES)
def test_a_contradiction_is_an_error(name: str) -> None:
    make, message = CASES[name]
    with pytest.raises(ConfigError, match=message):
        make()


def test_neighbours_of_contradictions_are_read() -> None:
    assert not NormConfig(kind="layer", eps=1e-5, scale=False, bias=False).scale
    assert replace(decoder_config(NONE), blocks=(BLOCK, WIDER)).blocks[1] == WIDER
    config = seq2seq_config(NONE)
    other = replace(config.encoder, input=TokenInput(vocab_size=7))
    assert replace(config, encoder=other, shared_embedding=False).encoder == other


def test_an_image_has_as_many_patches_as_fit() -> None:
    assert IMAGE.length == 2 * 4 + 1
    assert replace(IMAGE, class_token=False).length == 8


@pytest.mark.parametrize("name", MIXERS)
def test_a_mixer_without_attention_has_no_positions(name: str) -> None:
    config = decoder_config(NONE, BlockConfig(mixer=MIXERS[name], feed_forward=None, norm=RMS))
    assert config.attentions == ()
    assert config.rotaries == ()
    with pytest.raises(ConfigError, match="expected attention"):
        as_encoder(config)


def test_every_state_says_how_it_grows() -> None:
    states = {state.name: state for state in BLOCK.attention.states}
    assert {name: state.update for name, state in states.items()} == {
        "key": "append",
        "value": "append",
    }
    assert states["key"].shape == (4, "capacity", 6)
    assert states["key"].sizes(9) == (4, 9, 6)
    assert {state.update for mixer in MIXERS.values() for state in mixer.states} == {"replace"}

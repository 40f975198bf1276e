"""Configs that contradict themselves, and what the others say of their shapes."""

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

import pytest
from syrupy.assertion import SnapshotAssertion
from tests.modeling.kinds import (
    ATTENTION,
    BLOCK,
    BLOCKS,
    CHANNELS,
    CONV,
    DELTA,
    FEW,
    HEADS,
    LRU,
    MIXERS,
    POSITIONS,
    RMS,
    WIDTH,
    bidirectional,
    cross_of,
    decoder_config,
    encoder_config,
    seq2seq_config,
)
from tests.modeling.models.test_recurrent import PLAIN as RECURRENT
from tests.refusals import refusal

from ortolan.modeling.config import (
    AlibiPositions,
    BlockConfig,
    ClassifierHead,
    EmbeddingHead,
    LanguageModelHead,
    LatentConfig,
    LearnedPositions,
    MemoryConfig,
    NoPositions,
    NormConfig,
    PatchInput,
    Positions,
    RelativeBiasPositions,
    RotaryPositions,
    TokenInput,
    as_encoder,
)

Call = Callable[[], object]

NONE = NoPositions()

LATENT = LatentConfig(query_rank=None, rank=4, rotated=2, norm=RMS)

UNBIASED = replace(ATTENTION, qkv_bias=False)

IMAGE = PatchInput(image_size=(8, 9), patch_size=(4, 2), channels=3, class_token=True)

CENTERS = RotaryPositions(dim=4, axes=(1, 2), axial=True, centers=True)

HEAD = LanguageModelHead(tied=True, bias=True)

WIDER = replace(BLOCK, mixer=replace(ATTENTION, num_heads=8, num_kv_heads=8))

TURNED = replace(BLOCK, mixer=replace(ATTENTION, rotary=RotaryPositions(dim=12)))

UNTURNED = replace(BLOCK, mixer=replace(ATTENTION, rotary=NONE))


MIXED = BlockConfig(mixer=CONV, feed_forward=None, norm=RMS)

SIZES = ((0, 2), (9, 2), (2, 10), (-1, 2))


def crossed(**changes: object) -> BlockConfig:
    cross = replace(bidirectional(BLOCK).attention, **changes)  # type: ignore[arg-type]
    return replace(BLOCK, cross_attention=cross)


def positions(kind: Positions, *blocks: BlockConfig) -> Call:
    return partial(decoder_config, kind, blocks or BLOCK)


def changed(config: Any, **changes: object) -> Call:
    return partial(replace, config, **changes)


def stacked(make: Callable[..., object], *arguments: object, **fields: object) -> Call:
    return partial(make, NONE, *arguments, **fields)


CASES: dict[str, Call] = {
    # positions
    **{f"{dim} rotated channels": positions(RotaryPositions(dim=dim)) for dim in (0, 3, 66)},
    "a layer that rotates too much": positions(NONE, BLOCK, TURNED),
    "a layer with its own positions": positions(POSITIONS["alibi"], BLOCK, UNTURNED),
    "a negative offset": lambda: LearnedPositions(offset=-1),
    **{
        f"{buckets} buckets up to {most}": partial(
            RelativeBiasPositions, buckets=buckets, max_distance=most
        )
        for buckets, most in ((0, 8), (2, 8), (5, 8), (8, 4), (32, 16), (4, 2))
    },
    "rounded biases of both sides": lambda: encoder_config(AlibiPositions(rounded=True)),
    **{
        f"{name} of different heads": changed(
            decoder_config(POSITIONS[name]), blocks=(BLOCK, WIDER)
        )
        for name in ("relative-bias", "alibi")
    },
    # attention
    "no heads": changed(ATTENTION, num_heads=0),
    "keys for some heads": changed(ATTENTION, num_kv_heads=3),
    "an empty window": changed(ATTENTION, sliding_window=0),
    "clipped latents": changed(UNBIASED, latent=LATENT, clip=1.0),
    "shared latents": changed(UNBIASED, latent=LATENT, num_kv_heads=2),
    "latents without positions": changed(LATENT, rotated=0),
    "biased latents": changed(ATTENTION, latent=LATENT),
    "an empty bound": changed(ATTENTION, clip=0.0),
    # other mixers
    "no channels of a mixer": changed(CONV, channels=0),
    "one tap": changed(CONV, taps=1),
    "key heads that do not share": changed(DELTA, num_key_heads=3),
    "groups that do not share": changed(HEADS, groups=3),
    "blocks that do not share": changed(LRU, num_heads=5),
    "a rank of wide heads": changed(HEADS, step_rank=3),
    "bounds and a rank": changed(CHANNELS, steps=(0.0, 1.0)),
    "norms without a rank": changed(HEADS, inner_norm=RMS),
    # mixtures
    "more experts than there are": changed(FEW, per_token=7),
    "empty experts": changed(FEW, intermediate_size=0),
    "three experts of sparsemixer": changed(FEW, score="sparsemixer", per_token=3),
    "experts that do not share groups": changed(FEW, groups=4),
    "groups of one expert": changed(FEW, groups=6),
    "more groups than there are": changed(FEW, groups=2, groups_per_token=3),
    "groups with fewer experts than chosen": changed(FEW, groups=3, per_token=3),
    # blocks
    "no layers": changed(decoder_config(NONE), blocks=()),
    "a norm's bias without a weight": lambda: NormConfig(kind="layer", eps=1e-5, scale=False),
    "parallel without an MLP": changed(BLOCK, feed_forward=None, placement="parallel"),
    "parallel with a source": stacked(seq2seq_config, BLOCKS["parallel"]),
    "a source and a mixer": changed(BLOCK, mixer=CONV, cross_attention=cross_of(BLOCK)),
    "a gate of a source": lambda: crossed(gate=True),
    "positions in a source": lambda: crossed(rotary=NONE),
    "norms of a source": lambda: crossed(query_key_norm=RMS),
    "bounds of a source": lambda: crossed(clip=1.0),
    "sinks of a source": lambda: crossed(sinks=True),
    "attention that a mixer lacks": lambda: MIXED.attention,
    "an MLP that a block lacks": lambda: MIXED.dense,
    # stacks
    "a bidirectional decoder": positions(NONE, bidirectional(BLOCK)),
    "a narrow tied head": changed(decoder_config(NONE), embedding_dim=WIDTH - 1),
    "an encoder of a source": lambda: encoder_config(NONE, crossed()),
    "an encoder of states": changed(encoder_config(NONE), blocks=(MIXED,)),
    "a decoder of states as an encoder": lambda: as_encoder(decoder_config(NONE, MIXED)),
    "an image of another length": stacked(encoder_config, input=IMAGE),
    "a narrow tied head of an encoder": changed(
        encoder_config(NONE, head=HEAD), embedding_dim=WIDTH - 1
    ),
    "a language model of images": stacked(
        encoder_config, input=IMAGE, context_length=IMAGE.length, head=HEAD
    ),
    **{f"patches of {size}": changed(IMAGE, patch_size=size) for size in SIZES},
    "fewer than no types": lambda: TokenInput(vocab_size=WIDTH, types=-1),
    "fewer than no registers": changed(IMAGE, registers=-1),
    "centers without columns": changed(CENTERS, axes=(1, 1)),
    "centers of a text": positions(CENTERS),
    "no labels": lambda: ClassifierHead(labels=(), pooling="first"),
    # encoder-decoders
    "a decoder without a source": changed(seq2seq_config(NONE), decoder=decoder_config(NONE)),
    "a source with a head": lambda: with_encoder(head=EmbeddingHead(pooling=("mean",))),
    "a source of another width": lambda: with_encoder(hidden_size=12),
    "a shared table of two vocabularies": lambda: with_encoder(input=TokenInput(vocab_size=7)),
    # recurrent networks
    "a feed-forward network without a memory": changed(RECURRENT, cell="feed_forward"),
    "no recurrent layers": changed(RECURRENT, num_layers=0),
    "attention and a memory": changed(
        RECURRENT, attention_size=2, memory=MemoryConfig(slots=5, width=3)
    ),
    "shifts beyond the memory": lambda: MemoryConfig(slots=4, width=3, shift_range=2),
}


def with_encoder(**changes: object) -> object:
    config = seq2seq_config(NONE)
    return replace(config, encoder=replace(config.encoder, **changes))  # type: ignore[arg-type]


@pytest.mark.parametrize("name", CASES)
def test_a_contradiction_is_refused(name: str, snapshot: SnapshotAssertion) -> None:
    assert refusal(CASES[name]) == snapshot


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


def test_every_state_says_how_it_grows() -> None:
    states = {state.name: state for state in BLOCK.attention.states}
    assert {name: state.update for name, state in states.items()} == {
        "key": "append",
        "value": "append",
    }
    assert states["key"].shape == (4, "capacity", 6)
    assert states["key"].sizes(9) == (4, 9, 6)
    assert {state.update for mixer in MIXERS.values() for state in mixer.states} == {"replace"}

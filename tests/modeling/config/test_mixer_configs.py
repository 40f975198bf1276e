"""Configs of mixers that contradict themselves, or what is around them."""

from collections.abc import Callable
from dataclasses import replace

import pytest
from tests.modeling.kinds import BLOCK, POSITIONS, RMS, cross_of, decoder_config, encoder_config
from tests.modeling.mixers import CHANNELS, CONV, DELTA, HEADS, LRU, MIXERS

from ortolan.modeling import ConfigError
from ortolan.modeling.config import BlockConfig, as_encoder

BROKEN: dict[str, tuple[Callable[[], object], str]] = {
    "no channels": (lambda: replace(CONV, channels=0), "sizes of at least 1"),
    "one tap": (lambda: replace(CONV, taps=1), "at least 2 taps"),
    "heads that do not share": (lambda: replace(DELTA, num_key_heads=3), "key heads that share 4"),
    "groups that do not share": (lambda: replace(HEADS, groups=3), "groups that share 4"),
    "blocks that do not share": (lambda: replace(LRU, num_heads=5), "heads that share 12"),
    "a rank of wide heads": (lambda: replace(HEADS, step_rank=3), "channels that are a head each"),
    "bounds and a rank": (lambda: replace(CHANNELS, steps=(0.0, 1.0)), "bounds of their steps"),
    "norms without a rank": (lambda: replace(HEADS, inner_norm=RMS), "no inner_norm"),
    "parallel without an mlp": (
        lambda: replace(BLOCK, feed_forward=None, placement="parallel"),
        "expected an mlp",
    ),
    "a source beside a mixer": (
        lambda: replace(BLOCK, mixer=CONV, cross_attention=cross_of(BLOCK)),
        "attention beside cross-attention, got ShortConvConfig",
    ),
    "a gate of cross-attention": (
        lambda: replace(BLOCK, cross_attention=replace(cross_of(BLOCK), gate=True)),
        "or a gate",
    ),
}


@pytest.mark.parametrize("name", BROKEN)
def test_a_contradiction_is_an_error(name: str) -> None:
    make, message = BROKEN[name]
    with pytest.raises(ConfigError, match=message):
        make()


@pytest.mark.parametrize("name", MIXERS)
def test_an_encoder_has_no_mixer_that_would_remember_padding(name: str) -> None:
    block = BlockConfig(mixer=MIXERS[name], feed_forward=None, norm=RMS)
    config = decoder_config(POSITIONS["none"], block)
    assert config.attentions == ()
    assert config.rotaries == ()
    with pytest.raises(ConfigError, match="expected attention"):
        as_encoder(config)
    attending = encoder_config(POSITIONS["none"])
    with pytest.raises(ConfigError, match="They would remember the padding"):
        replace(attending, blocks=(block,))


def test_every_state_says_how_it_grows() -> None:
    states = {state.name: state for state in BLOCK.attention.states}
    assert {name: state.update for name, state in states.items()} == {
        "key": "append",
        "value": "append",
    }
    assert states["key"].shape == (4, "capacity", 6)
    assert states["key"].sizes(9) == (4, 9, 6)
    assert {state.update for mixer in MIXERS.values() for state in mixer.states} == {"replace"}

"""A bundle with every kind of mixer: its states, and idle rows."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from tests.modeling.kinds import ATTENTION, BLOCK, POSITIONS, RMS, VOCAB, decoder, decoder_config
from tests.modeling.mixers import CHANNELS, CONV, DELTA, HEADS, LRU
from tests.tiny.numbers import assert_close

import ortolan
from ortolan.export.errors import OptionError
from ortolan.export.options import Attention, ExportOptions
from ortolan.export.trace.attention_maps import map_names
from ortolan.export.trace.sides import sides_of
from ortolan.modeling import DecoderModel
from ortolan.modeling.config import BlockConfig, DecoderConfig, Mixer
from ortolan.runtime.engine.engine import Engine
from ortolan.runtime.engine.runner import Runner

pytestmark = pytest.mark.slow

Logits = NDArray[np.float32]

KINDS: tuple[Mixer, ...] = (CONV, DELTA, HEADS, CHANNELS, LRU)


def every_kind() -> DecoderConfig:
    """A layer of each kind, half of them without an mlp, then gated attention."""
    blocks = [
        BlockConfig(mixer=kind, feed_forward=None if place % 2 else BLOCK.feed_forward, norm=RMS)
        for place, kind in enumerate(KINDS)
    ]
    attention = replace(BLOCK, mixer=replace(ATTENTION, head_dim=16, gate=True))
    return decoder_config(POSITIONS["none"], (*blocks, attention))


class Exported:
    """A decoder, and its bundle in the engine and in the runtime."""

    def __init__(
        self, config: DecoderConfig, folder: Path, *, attention: Attention = "fused"
    ) -> None:
        self.module: DecoderModel = decoder(config)
        self.bundle = ortolan.export(
            self.module, folder, options=ExportOptions(attention=attention)
        )
        self.engine = Engine(self.bundle, threads=1)
        self.loaded = ortolan.load(folder, ortolan.Decoder, threads=1)

    def reference(self, ids: Sequence[int]) -> Logits:
        with torch.inference_mode():
            logits: Logits = self.module(torch.tensor([ids]))[0].numpy()
        return logits


@pytest.fixture(scope="module")
def hybrid(tmp_path_factory: pytest.TempPathFactory) -> Exported:
    return Exported(every_kind(), tmp_path_factory.mktemp("hybrid"))


def text(length: int, seed: int = 0) -> list[int]:
    ids: list[int] = np.random.default_rng(seed).integers(0, VOCAB, length).tolist()
    return ids


def test_the_manifest_lists_what_each_layer_carries(hybrid: Exported) -> None:
    carried = [
        (f"{layer}.{state.name}", ("batch", *state.shape), state.update)
        for layer, block in enumerate(hybrid.module.config.blocks)
        for state in block.mixer.states
    ]
    states = hybrid.bundle.manifest.states
    assert [(state.name, state.shape, state.update) for state in states] == carried
    assert [state.input for state in states][:3] == [
        "past_key_values.0.conv",
        "past_key_values.1.conv",
        "past_key_values.1.recurrent",
    ]


def test_only_layers_with_attention_have_maps(hybrid: Exported) -> None:
    assert map_names(sides_of(hybrid.module.config)) == (f"decoder.{len(KINDS)}.self",)


def test_a_text_at_once_and_in_parts_gives_what_pytorch_gives(hybrid: Exported) -> None:
    ids = text(37)
    wanted = hybrid.reference(ids)
    assert wanted.std() > 0.1
    assert_close(hybrid.loaded.logits(ids), wanted)
    for cuts in ((1, 2, 3, 20, 37), (33, 34, 35, 36, 37)):
        runner, start = Runner(hybrid.engine, hybrid.engine.slots(1)), 0
        for stop in cuts:
            part = ids[start:stop]
            assert_close(runner.chunk(0, part, positions=range(len(part))), wanted[start:stop])
            start = stop


def test_rows_that_rest_keep_every_state_to_the_bit(hybrid: Exported) -> None:
    texts = [text(30, seed) for seed in range(3)]
    wanted = [hybrid.reference(ids) for ids in texts]
    runner, lengths = Runner(hybrid.engine, hybrid.engine.slots(3)), [7, 1, 12]
    for row, length in enumerate(lengths):
        runner.chunk(row, texts[row][:length], positions=[length - 1])
    for rows in ([0, 1, 2], [1], [2], [0, 2], [2], [1, 2], [0], [0, 1, 2], [1], [0, 1]):
        resting = {row: runner.slots.snapshot(row=row) for row in {0, 1, 2} - set(rows)}
        runner.select(rows)
        runner.step([texts[row][lengths[row]] for row in rows])
        for row in rows:
            assert_close(runner.logits_BV[row], wanted[row][lengths[row]])
            lengths[row] += 1
        for row, kept in resting.items():
            for before, now in zip(
                kept.buffers, runner.slots.snapshot(row=row).buffers, strict=True
            ):
                np.testing.assert_array_equal(now, before)
    # A chunk of one row between steps also leaves the others unchanged.
    runner.chunk(1, texts[1][lengths[1] : lengths[1] + 5], positions=[4])
    runner.select([0])
    runner.step([texts[0][lengths[0]]])
    assert_close(runner.logits_BV[0], wanted[0][lengths[0]])


def test_a_snapshot_goes_on_in_another_row_and_a_row_begins_anew(hybrid: Exported) -> None:
    ids, other = text(24), text(24, seed=1)
    wanted = hybrid.reference(ids)
    runner = Runner(hybrid.engine, hybrid.engine.slots(2))
    runner.prefill(0, ids[:9])
    kept = runner.slots.snapshot(row=0)
    runner.prefill(1, other)
    runner.prefill(0, other[:5])
    runner.restore(kept, row=1)
    runner.slots.release(0)
    first = runner.chunk(0, ids[:4], positions=range(4))
    assert_close(first, wanted[:4])
    runner.select([1])
    for place in range(9, 24):
        runner.step([ids[place]])
        assert_close(runner.logits_BV[1], wanted[place])


def test_a_batch_of_unequal_texts_writes_what_each_writes_alone(hybrid: Exported) -> None:
    prompts = [text(9), text(1, seed=1), text(14, seed=2)]
    done = hybrid.loaded.generate(prompts, max_new_tokens=20, ignore_eos=True)
    for prompt, completion in zip(prompts, done, strict=True):
        ids = [*prompt, *completion.tokens]
        likeliest = hybrid.reference(ids)[len(prompt) - 1 : -1].argmax(-1)
        assert tuple(likeliest.tolist()) == completion.tokens


def test_a_decoder_without_attention_is_one_like_any_other(tmp_path: Path) -> None:
    blocks = tuple(BlockConfig(mixer=CONV, feed_forward=None, norm=RMS) for _ in range(3))
    made = Exported(decoder_config(POSITIONS["none"], blocks), tmp_path / "out")
    assert {state.update for state in made.bundle.manifest.states} == {"replace"}
    ids = text(21)
    assert_close(made.loaded.logits(ids), made.reference(ids))
    with made.loaded.session() as session:
        for stop in (5, 6, 7, 21):
            got = session.append(ids[len(session.tokens) : stop])
    assert_close(got, made.reference(ids)[-1])
    with pytest.raises(OptionError, match="no attention"):
        ortolan.export(made.module, tmp_path / "maps", options=ExportOptions(attention_maps=True))


@pytest.mark.slow
def test_a_portable_bundle_convolves_by_standard_operators(tmp_path: Path) -> None:
    blocks = (BlockConfig(mixer=CONV, feed_forward=None, norm=RMS), replace(BLOCK, norm=RMS))
    config = decoder_config(POSITIONS["none"], blocks)
    made = Exported(config, tmp_path / "out", attention="portable")
    operators = made.bundle.graphs["decoder"].operators
    assert "com.microsoft::CausalConvWithState" not in operators
    assert operators["ai.onnx::Conv"] == 1
    ids = text(21)
    assert_close(made.loaded.logits(ids), made.reference(ids))

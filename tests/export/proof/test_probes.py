from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from tests.export.models_of_kinds import (
    decoder_config,
    encoder_config,
    image_config,
    seq2seq_config,
    source_of,
)

from ortolan.export.errors import OptionError
from ortolan.export.exportable import Exportable
from ortolan.export.inputs.calibration import CalibrationImages, CalibrationPairs, CalibrationText
from ortolan.export.proof.probe_text import TEXT
from ortolan.export.proof.probes import (
    IMAGES,
    LENGTHS,
    PAIRS,
    ProbeInput,
    inputs_of,
    make_probes,
)
from ortolan.runtime.inputs.tokenizer import Tokenizer


def decoder(context: int = 600, tokenizer: Path | None = None) -> Exportable:
    return source_of(decoder_config(context), tokenizer)


def ids_of(probe: ProbeInput) -> list[int]:
    assert probe.token_ids is not None
    return [int(i) for i in probe.token_ids]


def encoded(path: Path, text: str) -> list[int]:
    return Tokenizer.from_bytes(path.read_bytes()).encode(text)


def text(held_out: str) -> CalibrationText:
    return CalibrationText(origin="notes", learn="", held_out=held_out)


def test_random_probes_are_the_same_every_time_and_within_the_vocabulary() -> None:
    small = source_of(replace(decoder_config(), vocab_size=11))
    one, other = (make_probes(small) for _ in range(2))
    assert [ids_of(probe) for probe in one] == [ids_of(probe) for probe in other]
    assert tuple(len(ids_of(probe)) for probe in one) == LENGTHS["full"]
    assert {i for probe in one for i in ids_of(probe)} == set(range(11))
    assert len({probe.name for probe in one}) == len(LENGTHS["full"])


def test_probes_are_cut_from_a_text(plain: Path) -> None:
    probes = make_probes(decoder(tokenizer=plain))
    assert tuple(len(ids_of(probe)) for probe in probes) == LENGTHS["full"]
    joined = [i for probe in probes for i in ids_of(probe)]
    assert joined == encoded(plain, TEXT)[: len(joined)]  # the built-in one
    held_out = "".join(chr(65 + i % 26) for i in range(600))
    probes = make_probes(decoder(tokenizer=plain), text(held_out))
    assert ids_of(probes[3]) == encoded(plain, held_out)[8:24]
    # The longest does not fit after the others, so it starts over.
    assert ids_of(probes[-1]) == encoded(plain, held_out)[:512]


def test_one_probe_of_an_own_module_reaches_over_its_context(
    plain: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    own = replace(decoder(600, plain), check=bool)
    assert [len(ids_of(probe)) for probe in make_probes(own, proof="quick")] == [
        *LENGTHS["quick"],
        600,
    ]
    # A calibration text that is too short repeats.
    assert len(ids_of(make_probes(own, text("x" * 520))[-1])) == 600
    size = sum(parameter.numel() for parameter in own.module.parameters())
    monkeypatch.setattr("ortolan.export.proof.probes.WHOLE_WORK", 550 * size)
    assert len(ids_of(make_probes(own)[-1])) == 550
    monkeypatch.setattr("ortolan.export.proof.probes.WHOLE_WORK", size)
    assert len(make_probes(own)) == len(LENGTHS["full"])


def test_no_probe_is_longer_than_the_context(plain: Path) -> None:
    for tokenizer in (None, plain):
        probes = make_probes(decoder(40, tokenizer))
        assert [len(ids_of(probe)) for probe in probes] == [1, 2, 5, 16, 33, 40, 40, 40]
    short = decoder(20, plain)
    assert len(ids_of(make_probes(short, text("x" * 20))[-1])) == 20
    with pytest.raises(OptionError, match=r"notes .*20 .*got 19"):
        make_probes(short, text("x" * 19))


def test_texts_of_an_encoder_stand_between_their_special_tokens(wrapping: Path) -> None:
    probes = make_probes(source_of(encoder_config(), wrapping))
    lengths = [len(ids_of(probe)) for probe in probes]
    assert lengths == [1, 2, 5, 16, 20, 20, 20, 20]  # no longer than the encoder takes
    for probe in probes[2:]:
        first, *body, last = ids_of(probe)
        assert (first, last) == (1, 2)
        assert not {1, 2} & set(body)
    inputs = inputs_of(source_of(encoder_config(), wrapping), probes)
    assert [len(ids) for ids in inputs.sources] == lengths
    assert inputs.ids == ()


def test_pairs_without_data_meet_short_sources_with_long_targets_and_the_reverse(
    wrapping: Path,
) -> None:
    for model in (source_of(seq2seq_config()), source_of(seq2seq_config(), wrapping)):
        probes = make_probes(model)
        sources = [len(probe.source) for probe in probes if probe.source is not None]
        assert sources == [1, 2, 5, 16, 33, 40, 40, 40]
        assert [len(ids_of(probe)) for probe in probes] == [40, 40, 40, 34, 17, 6, 3, 2]
        assert {ids_of(probe)[0] for probe in probes} == {2}  # the start token


def test_pairs_are_held_out_ones_between_start_and_end(wrapping: Path) -> None:
    held_out = [(f"source {number}", f"target {number}") for number in range(40)]
    data = CalibrationPairs(origin="pairs", learn=[], held_out=held_out)
    probes = make_probes(source_of(seq2seq_config(), wrapping), data)
    assert len(probes) == PAIRS
    assert probes[2].source is not None
    assert probes[2].source.tolist() == encoded(wrapping, "source 5")
    assert ids_of(probes[2]) == [2, *encoded(wrapping, "target 5")]
    data = CalibrationPairs(origin="pairs", learn=[], held_out=[("s" * 99, "t" * 99)])
    (probe,) = make_probes(source_of(seq2seq_config(), wrapping), data)
    assert probe.source is not None
    assert (len(probe.source), len(ids_of(probe))) == (40, 40)  # cut


def test_images_grow_coarser_and_have_the_size_of_the_model() -> None:
    model = source_of(image_config())
    probes = make_probes(model)
    pictures = [probe.image for probe in probes if probe.image is not None]
    assert len(pictures) == IMAGES
    assert {(picture.shape, picture.dtype.name) for picture in pictures} == {((9, 6, 3), "uint8")}
    edges = [np.abs(np.diff(picture.astype(int), axis=1)).mean() for picture in pictures]
    assert edges[0] > 2 * edges[-1]
    pixels = inputs_of(model, probes).sources
    # Of a ViT without a file: bytes to -1 ... 1.
    expected = pictures[3].transpose(2, 0, 1) / 127.5 - 1
    np.testing.assert_allclose(pixels[3].numpy(), expected, atol=1e-6)


def test_given_images_are_taken_evenly() -> None:
    given = np.arange(20, dtype=np.uint8)[:, None, None, None].repeat(9, 1).repeat(6, 2)
    data = CalibrationImages(origin="images", learn=given[:0], held_out=given)
    probes = make_probes(source_of(image_config(channels=1)), data)
    firsts = [int(probe.image[0, 0, 0]) for probe in probes if probe.image is not None]
    assert firsts == [0, 2, 5, 7, 10, 12, 15, 17]

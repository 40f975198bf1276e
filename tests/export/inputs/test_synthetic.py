"""Synthetic calibration inputs."""

import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from tests.export import models_of_kinds as kinds

import ortolan
from ortolan.export import write as written
from ortolan.export.errors import ExportError
from ortolan.export.inputs import writer
from ortolan.export.inputs.synthetic import noise, synthetic_inputs
from ortolan.export.options import ExportOptions, Int4
from ortolan.export.progress import silent
from ortolan.export.source import open_exportable
from ortolan.runtime.bundle.bundle import Bundle
from ortolan.runtime.bundle.image_sources import ImageSource

LITTLE = Int4(group_size=32, calibration_sequences=1)

KINDS: dict[str, tuple[Any, str]] = {
    "decoder": (kinds.decoder_config, r"its own writing: \d+ tokens in \d+ texts, seed 0"),
    "seq2seq": (kinds.seq2seq_config, r"its own writing after \d+ random texts, seed 0"),
    "texts": (kinds.encoder_config, r"random words: \d+ tokens, seed 0"),
    "images": (kinds.image_config, r"1 images of noise, seed 0"),
}


def export(config: Any, out: Path, **options_of_export: Any) -> Bundle:
    """Low-bit, without a quality limit: that of a random model means nothing."""
    module = kinds.module_of(kinds.one_layer(config))
    is_decoder = hasattr(config, "decoder") or hasattr(config, "vocab_size")
    options = ExportOptions(max_kl=50.0 if is_decoder else None, allow_poor=True)
    return ortolan.export(module, out, precision=LITTLE, options=options, **options_of_export)


@pytest.mark.parametrize(
    "kind",
    [pytest.param(kind, marks=pytest.mark.slow if kind == "seq2seq" else ()) for kind in KINDS],
)
def test_int4_without_data_is_calibrated(kind: str, tmp_path: Path) -> None:
    make, origin = KINDS[kind]
    told: list[tuple[str, int, int]] = []
    bundle = export(
        make(), tmp_path / "out", progress=lambda *step_done_total: told.append(step_done_total[:3])
    )
    methods = {tensor.method for tensor in bundle.manifest.quantized if "blocks." in tensor.name}
    assert methods == {"gptq"}
    assert re.fullmatch(origin, bundle.manifest.provenance.calibrated_on or "")
    written = [(done, total) for step, done, total in told if step == "write text"]
    assert bool(written) == ("own writing" in origin)
    assert all(done == total for done, total in written[-1:])
    # The draft is gone.
    names = {file.name for file in bundle.manifest.files} | {"manifest.json"}
    assert {path.name for path in (tmp_path / "out").iterdir()} == names
    assert [path.name for path in tmp_path.iterdir()] == ["out"]


@pytest.fixture(scope="module")
def bundle(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A decoder that never ends a text."""
    out = tmp_path_factory.mktemp("bundle") / "bundle"
    module = kinds.module_of(kinds.one_layer(kinds.decoder_config()))
    ortolan.export(module, out, precision="int8", options=ExportOptions(max_kl=50.0))
    return out


BEGINNINGS = [np.array([number % 30]) for number in range(80)]


def test_texts_are_written_until_there_are_enough(bundle: Path) -> None:
    told: list[tuple[str, int, int]] = []
    texts = writer.let_write(
        bundle, BEGINNINGS, tokens=160, length=5, progress=lambda *step: told.append(step)
    )
    assert sum(map(len, texts)) >= 160
    assert {len(text) for text in texts} <= {2, 3, 4, 5}
    assert [text[0] for text in texts] == [ids[0] for ids in BEGINNINGS[: len(texts)]]
    assert told[-1] == ("write text", 160, 160)


def test_texts_with_one_beginning_are_random(bundle: Path) -> None:
    same = [np.array([5])] * 80
    texts = writer.let_write(bundle, same, tokens=400, length=9, progress=silent)
    assert len({tuple(text) for text in texts}) > 20


def test_another_process_writes_the_same_or_says_why_not(bundle: Path, tmp_path: Path) -> None:
    limits: dict[str, Any] = {"tokens": 40, "length": 5, "progress": silent}
    here = writer.let_write(bundle, BEGINNINGS, **limits)
    there = writer.write(bundle, BEGINNINGS, **limits)
    np.testing.assert_equal(there, here)
    with pytest.raises(ExportError, match=r"cannot write text.*Bundle"):
        writer.write(tmp_path / "none", BEGINNINGS, **limits)


def test_an_interrupted_export_leaves_unfinished_work_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(written, "write_texts", writer.write)

    def interrupt(step: str, done: int, total: int, what: str = "") -> None:
        if step == "write text" and done > 0:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        export(kinds.decoder_config(), tmp_path / "out", progress=interrupt)
    assert [path.name for path in tmp_path.iterdir()] == [".out.unfinished"]


@pytest.mark.parametrize("kind", ["decoder", "seq2seq"])
def test_a_model_without_finite_logits_is_an_error(kind: str) -> None:
    model = kinds.source_of(KINDS[kind][0]())

    def nothing(beginnings: Any, **_: Any) -> list[NDArray[np.int64]]:
        return [np.array([], np.int64) for _ in beginnings]

    with pytest.raises(ExportError, match="not finite"):
        synthetic_inputs(model, nothing, count=1)


def test_random_words_have_the_special_tokens_around_them_and_many_lengths(tmp_path: Path) -> None:
    model = kinds.source_of(kinds.encoder_config(), kinds.write_wrapping_tokenizer(tmp_path))
    texts = [ids.tolist() for ids in synthetic_inputs(model, _never, count=2).sources]
    assert 512 <= sum(map(len, texts)) < 532
    assert {text[0] for text in texts} == {1}
    assert {text[-1] for text in texts} == {2}
    assert {4, 5, 10} <= {len(text) for text in texts} <= set(range(4, 21))


def _never(*_: Any, **__: Any) -> list[NDArray[np.int64]]:
    raise AssertionError("an encoder writes nothing")


def test_amplitudes_of_noise_fall_as_one_over_the_frequency() -> None:
    source = ImageSource(
        channels=1, height=64, width=64, mean=(0.0,), std=(1.0,), scale=1.0, resample="bilinear"
    )
    images = noise(
        (source.height, source.width, source.channels), np.random.default_rng(0), 32
    ).astype(np.float64)
    assert images.shape == (32, 64, 64, 1)
    amplitudes = np.abs(np.fft.rfft(images[..., 0], axis=2)).mean(axis=(0, 1))
    octaves = amplitudes[[4, 8, 16]] / amplitudes[[8, 16, 32]]
    # A line across the image sums the other axis, so the slope is half a power less.
    assert (octaves > 1.3).all()
    assert 110 < images.mean() < 146


def test_texts_begin_with_bos_or_a_word() -> None:
    begun: list[list[int]] = []

    def remember(given: Any, **_: Any) -> list[NDArray[np.int64]]:
        begun.extend(ids.tolist() for ids in given)
        return [np.array([1, 2], np.int64) for _ in given]

    module = kinds.module_of(replace(kinds.decoder_config(), bos_token_id=3))
    synthetic_inputs(open_exportable(module), remember, count=8)
    assert begun[::2] == [[3]] * 16
    assert len({tuple(ids) for ids in begun[1::2]}) > 8

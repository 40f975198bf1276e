"""Transcriptions by Whisper, against transformers' `generate`."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from syrupy.assertion import SnapshotAssertion
from tests.refusals import refusal
from tests.runtime.transcription.conftest import Saved
from tests.runtime.transcription.tiny_whisper import (
    DE,
    EN,
    EOS,
    FIRST_TIME,
    NO_TIMES,
    RATE,
    TRANSCRIBE,
    TRANSLATE,
    VECTORS,
    WINDOW,
    sound,
    write_whisper,
)
from transformers import WhisperFeatureExtractor

import ortolan
from ortolan.runtime.attention_maps import attention_maps
from ortolan.runtime.seq2seq import Seq2Seq

QUICK = ortolan.ExportOptions(proof="quick")


@pytest.fixture(scope="module")
def saved(speech: Callable[[str], Saved]) -> Saved:
    return speech("whisper")


@pytest.fixture(scope="module")
def model(saved: Saved) -> Seq2Seq:
    return ortolan.load(saved[0] / "bundle", Seq2Seq, threads=1)


def features(folder: Path, samples: NDArray[np.float32]) -> torch.Tensor:
    extractor: Any = WhisperFeatureExtractor.from_pretrained(folder / "source")
    return torch.tensor(
        np.array(extractor._np_extract_fbank_features(samples[None], "cpu"))
    ).float()


def expected(saved: Saved, samples: NDArray[np.float32], **options: Any) -> list[tuple[Any, ...]]:
    """Start, end and tokens of the segments of transformers.

    Where a window has one segment, transformers takes its only time for the end, and the start of
    the window for the start; here this is corrected.
    """
    folder, reference = saved
    with torch.inference_mode():
        found = reference.generate(
            features(folder, samples), return_timestamps=True, return_segments=True, **options
        )
    windows = [id(segment["result"]) for segment in found["segments"][0]]
    seconds, segments = len(samples) / RATE, []
    for segment, window in zip(found["segments"][0], windows, strict=True):
        tokens = segment["tokens"].tolist()
        start, end = float(segment["start"]), float(segment["end"])
        if min(tokens[-2:]) >= FIRST_TIME:  # the last one starts the next segment
            tokens = tokens[:-1]
        elif windows.count(window) == 1:
            times = [0.02 * (token - FIRST_TIME) for token in tokens if token >= FIRST_TIME]
            end = end if len(times) > 1 else min(start + 1.0, seconds)
            start += times[0]
        ends = (pytest.approx(min(time, seconds), abs=1e-6) for time in (start, end))
        segments.append((*ends, tuple(tokens)))
    return segments


def rows(segments: Any) -> list[tuple[Any, ...]]:
    return [(segment.start, segment.end, segment.tokens) for segment in segments]


@pytest.mark.parametrize("seconds", [1.0, 2.74, 4.5])
@pytest.mark.parametrize(
    ("language", "translate"), [("en", False), ("de", False), (None, False), (None, True)]
)
def test_segments_are_those_of_transformers(
    saved: Saved, model: Seq2Seq, seconds: float, language: str | None, translate: bool
) -> None:
    samples = sound(seconds, seed=int(seconds))
    options = {"language": language, "task": "translate" if translate else "transcribe"}
    found = model.transcribe(samples, language=language, translate=translate)
    assert rows(found.segments) == expected(saved, samples, **options)
    assert len(found.segments) > 1
    assert found.language in (("en", "de") if language is None else (language,))


FORCED = [[1, EN], [2, TRANSLATE], [3, NO_TIMES]]

FORMS: dict[str, dict[str, Any]] = {
    "forced": {"forced_decoder_ids": FORCED},
    "a forced language": {"forced_decoder_ids": [[1, DE]]},
    "a forced task": {"forced_decoder_ids": [[1, None], [2, TRANSLATE]]},
    "the usual tokens": {"forced_decoder_ids": [[1, None], [2, TRANSCRIBE]]},
    "names": {"language": "German", "task": "translate"},
    "a code": {"language": "<|de|>"},
    "a task": {"task": "translate", "forced_decoder_ids": FORCED},
    "one language": {"is_multilingual": False, "forced_decoder_ids": [[1, NO_TIMES]]}
    | {"lang_to_id": None, "task_to_id": None},
    "an old file": {"forced_decoder_ids": FORCED}
    | dict.fromkeys(("lang_to_id", "task_to_id", "no_timestamps_token_id", "is_multilingual")),
}


@pytest.mark.slow
@pytest.mark.parametrize("form", FORMS)
def test_what_a_checkpoint_forces_is_that_of_transformers(form: str, tmp_path: Path) -> None:
    reference = write_whisper(tmp_path / "source", **FORMS[form])
    ortolan.export(tmp_path / "source", tmp_path / "bundle", options=QUICK)
    model = ortolan.load(tmp_path / "bundle", Seq2Seq, threads=1)
    samples = sound(1.0)
    if form != "an old file":
        found = rows(model.transcribe(samples).segments)
        assert found == expected((tmp_path, reference), samples)
        return
    with torch.inference_mode():
        tokens = reference.generate(features(tmp_path, samples))[0].tolist()
    (segment,) = model.transcribe(samples).segments
    written = tokens[tokens.index(NO_TIMES) + 1 :] if NO_TIMES in tokens[:5] else tokens
    assert list(segment.tokens) == [token for token in written if token != EOS]


def test_without_times_the_tokens_are_those_of_transformers(saved: Saved, model: Seq2Seq) -> None:
    folder, reference = saved
    samples = sound(1.0)
    with torch.inference_mode():
        tokens = reference.generate(features(folder, samples), language="de")[0].tolist()
    (segment,) = model.transcribe(samples, language="de", timestamps=False).segments
    written = tokens[tokens.index(TRANSCRIBE) + 2 :] if TRANSCRIBE in tokens else tokens
    assert list(segment.tokens) == written[: len(segment.tokens)]
    assert len(segment.tokens) > 5
    assert segment.start == 0
    assert segment.end == pytest.approx(1.0)
    assert segment.text == " ".join(f"w{token}" for token in segment.tokens if token < 60)


def test_a_sound_of_more_than_a_window_is_refused(
    model: Seq2Seq, snapshot: SnapshotAssertion
) -> None:
    assert refusal(lambda: model.transcribe(sound(1.5), timestamps=False)) == snapshot
    assert refusal(lambda: model.generate(sound(1.5))) == snapshot


def test_a_sound_is_heard_while_it_is_recorded(model: Seq2Seq) -> None:
    samples, taken = sound(3.3), list[int]()

    def blocks() -> Any:
        for start in range(0, len(samples), 1000):
            taken.append(start)
            yield samples[start : start + 1000]

    heard = model.listen(blocks(), language="en")
    assert taken == []
    first = next(heard)
    assert 1000 * len(taken) == WINDOW
    segments = [first, *heard]
    assert segments[-1].end == pytest.approx(3.3, abs=0.03)
    starts = [segment.start for segment in segments]
    assert starts == sorted(starts)
    # a window of a sound alone has the scale that it has here
    (alone, *_) = model.transcribe(samples[:WINDOW], language="en").segments
    assert rows([first]) == rows([alone])


def test_a_model_without_special_tokens_hears_window_by_window(tmp_path: Path) -> None:
    write_whisper(tmp_path / "source", no_timestamps_token_id=None)
    bundle = ortolan.export(tmp_path / "source", tmp_path / "bundle", options=QUICK)
    assert bundle.manifest.speech is None
    model = ortolan.load(tmp_path / "bundle", Seq2Seq)
    samples = sound(2.5)
    found = model.transcribe(samples)
    assert found.language is None
    assert [segment.start for segment in found.segments] == pytest.approx([0, 1, 2])
    assert [segment.end for segment in found.segments] == pytest.approx([1, 2, 2.5])
    alone = model.generate(samples[:WINDOW]).tokens
    assert found.segments[0].tokens == alone[: len(found.segments[0].tokens)]
    assert "knows only one" in refusal(lambda: model.transcribe(samples, language="en"))
    assert "not trained to" in refusal(lambda: model.transcribe(samples, translate=True))


@pytest.mark.slow
def test_attention_to_a_sound_has_its_seconds(saved: Saved, tmp_path: Path) -> None:
    options = ortolan.ExportOptions(attention_maps=True, proof="quick")
    ortolan.export(saved[0] / "source", tmp_path / "bundle", options=options)
    maps = attention_maps(tmp_path / "bundle", sound(0.8), target=[EN, TRANSCRIBE, 5])
    name = "decoder.1.cross"
    assert maps.maps[name].shape[1:] == (3, VECTORS)
    assert maps.keys[name][:3] == ("0.00", "0.02", "0.04")
    assert maps.queries[name] == ("<|en|>", "<|transcribe|>", "w5")
    assert maps.maps[name].sum(-1) == pytest.approx(1, abs=1e-5)

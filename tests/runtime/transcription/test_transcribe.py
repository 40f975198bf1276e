"""Transcriptions against transformers' `generate` for Whisper, and in every way that we offer."""

from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import soundfile
import torch
from numpy.typing import NDArray
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
from ortolan.runtime.errors import BundleKindError, InputError
from ortolan.runtime.seq2seq import Seq2Seq
from ortolan.runtime.transcription.timestamps import spans
from ortolan.runtime.transcription.transcript import Segment, Transcript

QUICK = ortolan.ExportOptions(proof="quick")

Saved = tuple[Path, Any]


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> Saved:
    folder = tmp_path_factory.mktemp("whisper")
    reference = write_whisper(folder / "source")
    ortolan.export(folder / "source", folder / "bundle", options=QUICK)
    return folder, reference


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


def test_the_tests_see_the_language_the_task_and_the_sound(model: Seq2Seq) -> None:
    samples, other = sound(2.0), sound(2.0, seed=5)
    found = [
        rows(model.transcribe(samples, language="en").segments),
        rows(model.transcribe(samples, language="de").segments),
        rows(model.transcribe(samples, language="en", translate=True).segments),
        rows(model.transcribe(other, language="en").segments),
    ]
    assert all(one != two for number, one in enumerate(found) for two in found[:number])


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
    with pytest.raises(InputError, match=r"at most 1 seconds \(got 1\.5\)"):
        model.transcribe(sound(1.5), timestamps=False)


def test_a_pace_is_for_models_of_waves(model: Seq2Seq) -> None:
    with pytest.raises(InputError, match="tokens_per_second is for models that read waves"):
        model.transcribe(sound(1.0), tokens_per_second=6.5)


def test_sounds_of_a_list_are_transcribed_as_each_is_alone(model: Seq2Seq) -> None:
    sounds = [sound(seconds, seed=number) for number, seconds in enumerate((0.3, 2.2, 3.1, 0.9))]
    assert model.transcribe(sounds) == [
        replace(alone, segments=tuple(alone.segments))
        for alone in [model.transcribe(own) for own in sounds]
    ]
    assert model.transcribe([]) == []


def test_files_and_other_rates_are_read(model: Seq2Seq, tmp_path: Path) -> None:
    path = tmp_path / "sound.wav"
    soundfile.write(path, sound(1.7), RATE, subtype="FLOAT")
    expected = model.transcribe(sound(1.7))
    assert model.transcribe(path) == model.transcribe(str(path)) == expected
    assert model.transcribe(path.read_bytes()) == expected
    doubled = np.repeat(sound(1.7), 2)
    assert len(model.transcribe(doubled, rate=2 * RATE).segments) > 1


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


def test_a_service_transcribes_several_sounds_at_once(model: Seq2Seq) -> None:
    sounds = [sound(seconds, seed=number) for number, seconds in enumerate((2.2, 0.7, 3.1))]
    with model.serve(slots=2, queue=3) as service, ThreadPoolExecutor(3) as threads:
        done = list(threads.map(service.transcribe, sounds))
        with pytest.raises(InputError, match="language"):
            service.transcribe(sounds[0], language="fr")
        assert service.stats().finished >= 8
    alone = [model.transcribe(own) for own in sounds]
    assert [own.text for own in done] == [own.text for own in alone]
    assert [rows(own.segments) for own in done] == [rows(own.segments) for own in alone]


def test_a_cancelled_transcription_keeps_what_it_has(model: Seq2Seq) -> None:
    polls = iter(range(10_000))
    whole = model.transcribe(sound(4.0), language="en")
    part = model.transcribe(sound(4.0), language="en", cancel=lambda: next(polls) > 40)
    assert 0 < len(part.segments) < len(whole.segments)
    assert whole.segments[: len(part.segments)] == part.segments
    assert model.transcribe(sound(1.0), cancel=lambda: True) == Transcript(segments=(), seconds=1.0)


def test_log_probabilities_are_those_of_the_tokens(model: Seq2Seq) -> None:
    for segment in model.transcribe(sound(2.0)).segments:
        assert -20 < segment.logprob < 0


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"language": "fr"}, r"one of de, en \(got 'fr'\)"),
        ({"translate": 1}, "translate"),
        ({"timestamps": "no"}, "timestamps"),
        ({"rate": 0}, "0 samples per second"),
        ({"beams": 4}, "beams"),
    ],
)
def test_wrong_options_are_rejected(model: Seq2Seq, options: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError, match=message):
        model.transcribe(sound(1.0), **options)


def test_a_model_without_special_tokens_hears_window_by_window(tmp_path: Path) -> None:
    write_whisper(tmp_path / "source", no_timestamps_token_id=None)
    bundle = ortolan.export(tmp_path / "source", tmp_path / "bundle", options=QUICK)
    assert bundle.manifest.transcription is None
    model = ortolan.load(tmp_path / "bundle", Seq2Seq)
    samples = sound(2.5)
    found = model.transcribe(samples)
    assert found.language is None
    assert [segment.start for segment in found.segments] == pytest.approx([0, 1, 2])
    assert [segment.end for segment in found.segments] == pytest.approx([1, 2, 2.5])
    alone = model.generate(samples[:WINDOW]).tokens
    assert found.segments[0].tokens == alone[: len(found.segments[0].tokens)]
    with pytest.raises(InputError, match="knows one language"):
        model.transcribe(samples, language="en")
    with pytest.raises(InputError, match="not trained to translate"):
        model.transcribe(samples, translate=True)


def test_a_model_of_one_language_has_no_languages_and_tasks(tmp_path: Path) -> None:
    reference = write_whisper(
        tmp_path / "source", is_multilingual=False, lang_to_id=None, task_to_id=None
    )
    bundle = ortolan.export(tmp_path / "source", tmp_path / "bundle", options=QUICK)
    assert bundle.manifest.transcription is not None
    assert bundle.manifest.transcription.languages == {}
    model = ortolan.load(tmp_path / "bundle", Seq2Seq)
    found = model.transcribe(sound(2.2))
    assert rows(found.segments) == expected((tmp_path, reference), sound(2.2))


@pytest.mark.slow
def test_other_bundles_do_not_transcribe(marian: Seq2Seq, model: Seq2Seq) -> None:
    with pytest.raises(BundleKindError, match="transcribe: expected a bundle that reads sounds"):
        marian.transcribe(sound(1.0))
    with pytest.raises(BundleKindError, match="transcribe"):
        marian.listen([sound(1.0)])
    with pytest.raises(ortolan.errors.OrtolanError, match=r"at most 1 seconds\. Split it"):
        model.generate(sound(1.5))


@pytest.fixture(scope="module")
def marian(tmp_path_factory: pytest.TempPathFactory) -> Seq2Seq:
    from tests.modeling.tiny_encoders import EncoderCase
    from tests.tiny.encoders import MARIAN

    folder = tmp_path_factory.mktemp("marian")
    EncoderCase("MarianMTModel", MARIAN).write(folder / "source")
    ortolan.export(folder / "source", folder / "bundle", options=QUICK)
    return ortolan.load(folder / "bundle", Seq2Seq)


def test_subtitles() -> None:
    segments = [
        Segment(start=0.5, end=2.25, text="One & <two>.", tokens=(1,), logprob=-0.1),
        Segment(start=3.0, end=3.0, text="", tokens=(FIRST_TIME + VECTORS,), logprob=-0.1),
        Segment(start=3725.9999, end=3727.0, text="Three.", tokens=(2,), logprob=-0.1),
    ]
    transcript = Transcript(segments=tuple(segments), seconds=3727.0, language="en")
    assert transcript.text == "One & <two>. Three."
    assert transcript.srt == (
        "1\n00:00:00,500 --> 00:00:02,250\nOne & <two>.\n\n"
        "2\n01:02:06,000 --> 01:02:07,000\nThree.\n"
    )
    assert transcript.vtt == (
        "WEBVTT\n\n00:00:00.500 --> 00:00:02.250\nOne &amp; &lt;two&gt;.\n\n"
        "01:02:06.000 --> 01:02:07.000\nThree.\n"
    )


@pytest.mark.parametrize(
    ("tokens", "expected", "moved"),
    [
        ([], [], 50),
        ([100], [(0, 50, 1)], 50),
        ([103, 1, 2], [(3, 50, 3)], 50),
        ([103, 1, 110], [(3, 10, 3)], 50),
        ([1, 2], [(0, 50, 2)], 50),
        ([103, 1, 110, 112], [(3, 10, 3)], 10),
        ([103, 1, 110, 112, 2], [(3, 10, 3)], 10),
        ([103, 1, 110, 110, 2, 120], [(3, 10, 3), (10, 20, 3)], 50),
        ([100, 1, 110, 111, 2, 120, 130], [(0, 10, 3), (11, 20, 3)], 20),
    ],
)
def test_pairs_of_times_split_the_text_of_a_window(
    tokens: list[int], expected: list[tuple[int, int, int]], moved: int
) -> None:
    found, end = spans(tokens, first_timestamp=100, length=50)
    sizes = [(span.start, span.end, span.part.stop - span.part.start) for span in found]
    assert (sizes, end) == (expected, moved)


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

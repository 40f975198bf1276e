"""Decoders that read sounds: bundles against transformers, and every way to compute a prompt."""

import base64
import io
import shutil
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import soundfile
import torch
from numpy.typing import NDArray
from tests.cli.conftest import run_here
from tests.export import tiny_llava, tiny_qwen3_asr
from tests.runtime.damaged_bundles import edit_json, put
from tests.tiny.media import (
    NEW,
    answer_of,
    assert_damage_is_found,
    assert_same_every_way,
    assert_verified,
    greedy,
)

import ortolan
from ortolan.export.errors import OptionError
from ortolan.runtime import (
    BundleError,
    BundleKindError,
    ChatError,
    Decoder,
    Encoder,
    InputError,
    load,
    open_bundle,
)

pytestmark = pytest.mark.slow

Samples = NDArray[np.float32]

SECONDS = [0.01, 0.3, 0.5, 0.995, 1.0, 1.003, 2.5, 3.0, 3.02, 6.5]
"""Lengths of sounds: shorter and longer than a chunk of one second and a window of three."""


@cache
def sound(seconds: float, seed: int = 0) -> Samples:
    generator = np.random.default_rng(seed)
    count = round(seconds * tiny_qwen3_asr.RATE)
    swell = 0.2 + 0.5 * np.abs(np.sin(np.arange(count) / 4000))
    return (swell * generator.standard_normal(count) / 4).clip(-1, 1).astype(np.float32)


FIRST, SECOND = sound(1.2, 1), sound(3.4, 2)

PROMPTS: dict[str, list[Any]] = {
    "a sound": [{"audio": FIRST}, "what is this"],
    "a long sound at the end": ["what is ", {"audio": SECOND}],
    "two sounds": ["a ", {"audio": FIRST}, " and ", {"audio": SECOND}, " say"],
    "a sound twice": [{"audio": FIRST}, {"audio": FIRST}, "say"],
}


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("asr") / "checkpoint"
    tiny_qwen3_asr.write(folder)
    return folder


@pytest.fixture(scope="module")
def folder(checkpoint: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("sounds") / "bundle"
    ortolan.export(checkpoint, out)
    return out


@pytest.fixture(scope="module")
def model(folder: Path) -> Decoder:
    return load(folder, Decoder)


@pytest.fixture(scope="module")
def reference(checkpoint: Path) -> tuple[Any, Any]:
    from transformers import Qwen3ASRFeatureExtractor, Qwen3ASRForConditionalGeneration

    extractor = Qwen3ASRFeatureExtractor.from_pretrained(checkpoint)
    return extractor, Qwen3ASRForConditionalGeneration.from_pretrained(checkpoint)


@pytest.fixture
def copied(folder: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(folder, tmp_path / "copy"))


def features(extractor: Any, samples: Samples) -> tuple[torch.Tensor, torch.Tensor]:
    options = {"sampling_rate": tiny_qwen3_asr.RATE, "return_attention_mask": True}
    given = extractor(samples, padding=True, **options)
    return given["input_features"], given["attention_mask"]


def vectors(reference: tuple[Any, Any], samples: Samples) -> torch.Tensor:
    extractor, model = reference
    with torch.inference_mode():
        out: torch.Tensor = model.get_audio_features(*features(extractor, samples)).pooler_output
    return out


def expected(model: Decoder, reference: tuple[Any, Any], parts: Sequence[Any]) -> list[int]:
    """Tokens that transformers generates where the vectors stand in place of placeholders."""
    assert model.tokenizer is not None
    read = model.manifest.features
    assert read is not None
    sounds = [vectors(reference, part["audio"]) for part in parts if not isinstance(part, str)]
    text = "".join(part if isinstance(part, str) else "<|audio_pad|>" for part in parts)
    left = iter(sounds)
    ids = [
        token
        for one in model.tokenizer.encode(text)
        for token in [one] * (len(next(left)) if one == read.token else 1)
    ]
    ids_BS = torch.tensor([ids])
    with torch.inference_mode():
        embedded = reference[1].get_input_embeddings()(ids_BS)
        embedded[ids_BS == read.token] = torch.cat(sounds)
    return answer_of(reference[1], {"input_ids": ids_BS, "inputs_embeds": embedded})


@pytest.mark.parametrize("seconds", SECONDS)
def test_vectors_are_those_of_transformers(
    seconds: float, model: Decoder, reference: tuple[Any, Any]
) -> None:
    assert isinstance(model._encoder, Encoder)
    samples = sound(seconds)
    parts = model._encoder.parts(samples)
    ours = np.concatenate([model._encoder.vectors(part) for part in parts])
    theirs = vectors(reference, samples).numpy()
    assert model._encoder.count(parts) == len(theirs)
    np.testing.assert_allclose(ours, theirs, atol=1e-4 * np.abs(theirs).max())


@pytest.mark.parametrize("seconds", SECONDS)
def test_spectrograms_are_those_of_transformers(
    seconds: float, model: Decoder, reference: tuple[Any, Any]
) -> None:
    assert isinstance(model._encoder, Encoder)
    ours = np.concatenate(model._encoder.parts(sound(seconds)), 1)
    theirs = features(reference[0], sound(seconds))[0][0].numpy()
    assert theirs.shape[1] - ours.shape[1] in range(100)
    np.testing.assert_allclose(ours, theirs[:, : ours.shape[1]], atol=1e-5)


@pytest.mark.parametrize("name", PROMPTS)
def test_tokens_are_those_of_transformers(
    name: str, model: Decoder, reference: tuple[Any, Any]
) -> None:
    completion = greedy(model, PROMPTS[name])
    assert list(completion.tokens) == expected(model, reference, PROMPTS[name])


def test_a_batch_a_stream_a_service_and_drafts_give_the_same(model: Decoder) -> None:
    prompts = list(PROMPTS.values())
    assert_same_every_way(model, prompts)


def wav(samples: Samples, rate: int = tiny_qwen3_asr.RATE) -> bytes:
    stream = io.BytesIO()
    soundfile.write(stream, samples, rate, format="WAV", subtype="FLOAT")
    return stream.getvalue()


def test_files_and_arrays_of_any_rate_are_read(model: Decoder, tmp_path: Path) -> None:
    (tmp_path / "sound.wav").write_bytes(wav(FIRST))
    tokens = greedy(model, PROMPTS["a sound"]).tokens
    for value in (wav(FIRST), tmp_path / "sound.wav", str(tmp_path / "sound.wav")):
        assert greedy(model, [{"audio": value}, "what is this"]).tokens == tokens
    low = sound(1.0)[::2]
    given = greedy(model, [{"audio": low, "rate": 8000}, "what is this"])
    filed = greedy(model, [{"audio": wav(low, 8000)}, "what is this"])
    assert given.tokens == filed.tokens


def question(part: dict[str, Any]) -> list[dict[str, Any]]:
    return [{"role": "user", "content": [part, {"type": "text", "text": "say"}]}]


def test_a_message_holds_a_sound(
    model: Decoder, reference: tuple[Any, Any], tmp_path: Path
) -> None:
    (tmp_path / "sound.wav").write_bytes(wav(FIRST))
    data = base64.b64encode(wav(FIRST)).decode()
    parts: list[dict[str, Any]] = [
        {"type": "input_audio", "input_audio": {"data": data, "format": "wav"}},
        {"type": "audio", "audio": FIRST},
        {"type": "audio", "audio": tmp_path / "sound.wav"},
    ]
    prompt = ["user:<|audio_start|>", {"audio": FIRST}, "<|audio_end|>say<|im_end|>assistant:"]
    tokens = expected(model, reference, prompt)
    for part in parts:
        reply = model.chat(question(part), max_new_tokens=NEW, ignore_eos=True)
        assert list(reply.completion.tokens) == tokens


@pytest.mark.parametrize(
    ("part", "message"),
    [
        ({"type": "input_audio", "input_audio": {"data": "???", "format": "wav"}}, "base64"),
        ({"type": "input_audio", "input_audio": {"format": "wav"}}, "expected base64"),
        ({"type": "input_audio", "input_audio": {"data": "", "path": "x"}}, "Leave it out"),
        ({"type": "input_audio"}, "expected an object"),
        ({"type": "audio", "audio": "/etc/passwd"}, "expected the bytes of a file"),
        ({"type": "video", "video": b""}, "text, images and sounds"),
    ],
)
def test_an_invalid_part_of_a_message_is_refused(
    part: dict[str, Any], message: str, model: Decoder
) -> None:
    with pytest.raises(ChatError, match=message):
        model.chat(question(part))


@pytest.mark.parametrize(
    ("prompt", "message"),
    [
        ([{"audio": b"no sound"}], "no sound file"),
        ([{"audio": np.full(16_000, np.nan, np.float32)}], "must be finite"),
        ([{"audio": np.zeros(0, np.float32)}], "no samples"),
        ([{"audio": FIRST, "rate": "8000"}], "rate must be"),
        ([{"audio": FIRST, "format": "wav"}], "must be a text or"),
        ([{"audio": FIRST}, "<|audio_pad|>"], "1 sounds and 2 placeholders"),
        ([{"audio": np.zeros(16_000 * 640, np.float32)}], "more than 8192. Split it"),
    ],
)
def test_an_invalid_sound_is_refused(prompt: Any, message: str, model: Decoder) -> None:
    with pytest.raises(InputError, match=message):
        model.generate(prompt)


HEARD: list[Any] = ["user:<|audio_start|>", {"audio": SECOND}, "<|audio_end|><|im_end|>assistant:"]


@pytest.mark.parametrize("language", [None, "de"])
def test_a_transcript_is_the_answer_of_transformers(
    language: str | None, model: Decoder, reference: tuple[Any, Any]
) -> None:
    start = "" if language is None else "language German<asr_text>"
    tokens = expected(model, reference, [*HEARD[:2], HEARD[2] + start])
    transcript = model.transcribe(SECOND, language=language)
    (segment,) = transcript.segments
    assert list(segment.tokens[:NEW]) == tokens
    assert len(segment.tokens) <= round(12 * 3.4) + 32
    assert segment.start == 0
    assert segment.end == pytest.approx(3.4)
    assert transcript.language == language
    assert segment.logprob < 0


def test_a_transcript_needs_a_language_that_the_model_knows(model: Decoder) -> None:
    with pytest.raises(InputError, match="language must be one of ar, cs"):
        model.transcribe(FIRST, language="xx")
    with pytest.raises(InputError, match="translate"):
        model.transcribe(FIRST, translate=True)  # type: ignore[call-arg]
    with pytest.raises(InputError, match="no sound file"):
        model.transcribe(b"no sound")


def test_images_and_sounds_are_told_apart(model: Decoder, tmp_path: Path) -> None:
    with pytest.raises(BundleKindError, match="reads sounds and text, so it takes no images"):
        model.generate([{"image": np.zeros((8, 8, 3), np.uint8)}])
    tiny_llava.write(tmp_path)
    ortolan.export(tmp_path, tmp_path / "bundle")
    other = load(tmp_path / "bundle", Decoder)
    with pytest.raises(BundleKindError, match="turns sounds into text"):
        other.transcribe(FIRST)
    with pytest.raises(BundleKindError, match="reads images and text, so it takes no sounds"):
        other.generate([{"audio": FIRST}])
    with pytest.raises(BundleKindError, match="takes no sounds"):
        other.chat(question({"type": "audio", "audio": FIRST}))


def test_the_encoder_alone_reads_one_window(folder: Path, model: Decoder) -> None:
    encoder = load(folder / "sound", Encoder)
    (states,) = encoder.states([FIRST])
    assert isinstance(model._encoder, Encoder)
    (part,) = model._encoder.parts(FIRST)
    np.testing.assert_allclose(states, model._encoder.vectors(part), atol=1e-5)
    with pytest.raises(InputError, match="at most 3 seconds"):
        encoder.states([SECOND])


def test_verification_covers_the_encoder(folder: Path) -> None:
    assert_verified(folder)


@pytest.mark.parametrize("part", ["sound", "."])
def test_a_damaged_weight_is_found(part: str, copied: Path) -> None:
    assert_damage_is_found(copied, part, "conv2.weight", "expected the encoder of sounds")


@pytest.mark.parametrize(
    "edit",
    [
        put("source", "frames", value=250),
        put("source", "stride", value=4),
        put("source", "chunk", value=0),
    ],
)
def test_chunks_that_do_not_fit_are_refused(edit: Any, copied: Path) -> None:
    edit_json(copied / "sound", "manifest.json", edit)
    with pytest.raises(BundleError):
        open_bundle(copied / "sound")


@pytest.mark.parametrize(
    ("keys", "message"),
    [
        ({"feature_size": 12}, "expected 10 mel bins"),
        ({"n_window": 40}, "chunks of 100 frames"),
        ({"dither": 0.1}, "dither 0 or false"),
        ({"gain": 2}, "got gain"),
        ({"hop_length": 0}, "hop"),
    ],
)
def test_an_extractor_of_another_model_is_refused(
    keys: dict[str, Any], message: str, tmp_path: Path
) -> None:
    tiny_qwen3_asr.write(tmp_path, **keys)
    with pytest.raises(OptionError, match=message):
        ortolan.export(tmp_path, tmp_path / "bundle")


def test_low_bits_read_sounds_too(checkpoint: Path, tmp_path: Path) -> None:
    done = run_here("export", checkpoint, tmp_path / "bundle", "--precision", "int8")
    (line,) = [row for row in done.stdout.decode().splitlines() if row.startswith("sounds")]
    assert "sounds of at most 3 seconds, 39 vectors each" in line
    other = load(tmp_path / "bundle", Decoder)
    assert open_bundle(tmp_path / "bundle" / "sound").manifest.precision == "int8"
    first, second = PROMPTS["a sound"], PROMPTS["a long sound at the end"]
    assert greedy(other, first).tokens != greedy(other, second).tokens

"""Encoders and decoders of images and sounds, whose bundles transformers reads as we do."""

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.cases import contrast, image_encoders, images, sounds, tiles
from tests.export.witness.findings import BUNDLE, SOURCE, agreed, differing, misread
from tests.runtime.transcription.tiny_moonshine import write_moonshine
from tests.runtime.transcription.tiny_wav2vec2 import write_wav2vec2
from tests.runtime.transcription.tiny_whisper import DE, write_whisper

import ortolan
from ortolan.export.witness import media
from ortolan.runtime.inputs import audio
from ortolan.runtime.inputs import images as pixels

PREPROCESSOR, PROCESSOR = "preprocessor_config.json", "processor_config.json"
CONFIG, GENERATION, TOKENIZER = "config.json", "generation_config.json", "tokenizer_config.json"

PLAIN = {"tokenizer_class": "PreTrainedTokenizerFast"}

CASES = {case.name: case for room in (image_encoders, contrast, images, tiles, sounds)
         for case in (*room.CASES, *getattr(room, "MORE", ()))}  # fmt: skip


def _case(name: str, **files: Mapping[str, Any]) -> Callable[[Path], None]:
    """Write the checkpoint of a case, and the files that users have with it."""

    def write(folder: Path) -> None:
        CASES[name].write(folder)
        for file, content in files.items():
            (folder / f"{file}.json").write_text(json.dumps(content))

    return write


def _named(**tokens: str) -> dict[str, Any]:
    """A tokenizer_config.json that names tokens."""
    return PLAIN | {"extra_special_tokens": tokens, "pad_token": "<unk>"}


def _write_old_whisper(folder: Path) -> None:
    """Tokens are forced, and have no names."""
    names: Any = dict.fromkeys(("lang_to_id", "task_to_id", "no_timestamps_token_id"))
    forced = [[1, DE], [2, DE + 2], [3, DE + 3]]
    write_whisper(folder, forced_decoder_ids=forced, **names)


LLAVA = {"patch_size": 2, "vision_feature_select_strategy": "default"} | {
    "image_token": "<image>",
    "num_additional_image_tokens": 1,
}

OF_BOTH = {"logits": 4, "completions": 2, "media prompts": 3}

OF_SOUNDS, OF_IMAGES = (
    {"sound inputs": 2, "media vectors": 2} | OF_BOTH,
    {"image inputs": 6, "media vectors": 8} | OF_BOTH,
)
"""Answers about decoders that read sounds or images."""

SAVED: dict[str, tuple[Callable[[Path], Any], dict[str, int]]] = {
    "image labels": (_case("image labels"), {"image inputs": 6, "images": 3}),
    "whisper": (write_whisper, {"sound inputs": 2, "logits": 3, "transcripts": 2}),
    "moonshine": (write_moonshine, {"sound inputs": 2, "logits": 4, "transcripts": 2}),
    "wav2vec2": (write_wav2vec2, {"sound inputs": 2, "sounds": 2, "transcripts": 2}),
    **{
        name: (_case(name), {"image inputs": 6, "images": 3})
        for name in (
            *("image deit", "image dinov2 8", "image register labels 12", "image clip projected"),
            *("image siglip", "siglip2, any size"),
        )
    },
    "clip": (
        _case("clip", tokenizer_config=PLAIN | {"pad_token": "<pad>"}),
        {"image inputs": 6, "images": 4},
    ),
    "siglip": (
        _case(
            "siglip",
            tokenizer_config=PLAIN | {"pad_token": "<pad>", "model_input_names": ["input_ids"]},
        ),
        {"image inputs": 6, "images": 4},
    ),
    "llava": (
        _case("llava", processor_config=LLAVA, tokenizer_config=_named(image_token="<image>")),
        OF_IMAGES,
    ),
    "an old llava": (_case("llava", tokenizer_config=PLAIN), OF_IMAGES),
    "an old whisper": (_write_old_whisper, {"sound inputs": 2, "logits": 3, "transcripts": 2}),
    "idefics3": (
        _case("idefics3", processor_config={"image_seq_len": 4}, tokenizer_config=PLAIN),
        OF_IMAGES,
    ),
    "gemma3, all tokens kept": (
        _case(
            "gemma3, all tokens kept",
            processor_config={"image_seq_length": 16},
            tokenizer_config=_named(
                boi_token="<start_of_image>",
                eoi_token="<end_of_image>",
                image_token="<image_soft_token>",
            ),
        ),
        OF_IMAGES,
    ),
    "qwen3_asr": (
        _case(
            "qwen3_asr",
            tokenizer_config=_named(
                audio_token="<|audio_pad|>",
                audio_bos_token="<|audio_start|>",
                audio_eos_token="<|audio_end|>",
            ),
        ),
        OF_SOUNDS,
    ),
}
"""How a checkpoint is saved, and the number of answers by topic."""

QUICK = ("image labels", "whisper")


@pytest.fixture(autouse=True)
def _short_sounds(monkeypatch: pytest.MonkeyPatch) -> None:
    """Windows of the tiny Whisper have one second."""
    monkeypatch.setattr(media, "SECONDS", {"half a second": 0.5, "3 seconds": 3.0})


@pytest.fixture(scope="module")
def exported(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., Path]:
    """The folder of a checkpoint and its bundle, which is exported once."""
    folders: dict[str, Path] = {}

    def export(name: str, precision: Any = "fp32") -> Path:
        if name not in folders:
            folders[name] = tmp_path_factory.mktemp("media")
            (folders[name] / SOURCE).mkdir()
            SAVED[name][0](folders[name] / SOURCE)
        bundle = folders[name] / (BUNDLE if precision == "fp32" else precision)
        if not bundle.exists():
            options = ortolan.ExportOptions(allow_poor=True)
            ortolan.export(folders[name] / SOURCE, bundle, precision=precision, options=options)
        return folders[name]

    return export


@pytest.mark.parametrize(
    "name",
    [name if name in QUICK else pytest.param(name, marks=pytest.mark.slow) for name in SAVED],
)
def test_transformers_agrees(exported: Callable[..., Path], name: str) -> None:
    wanted = SAVED[name][1]
    assert agreed(exported(name), *wanted) == wanted


def _scaled(file: str, key: str, factor: float) -> Callable[[Path], dict[str, Any]]:
    def change(folder: Path) -> dict[str, Any]:
        return {key: [factor * own for own in json.loads((folder / file).read_text())[key]]}

    return change


def _values(**values: Any) -> Callable[[Path], dict[str, Any]]:
    return lambda _: values


MISREAD: dict[str, tuple[str, str, Callable[[Path], dict[str, Any]], list[str]]] = {
    "mean": (
        *("image labels", PREPROCESSOR, _scaled(PREPROCESSOR, "image_mean", 1.02)),
        ["image inputs", "images"],
    ),
    "std": (
        *("image labels", PREPROCESSOR, _scaled(PREPROCESSOR, "image_std", 1.02)),
        ["image inputs", "images"],
    ),
    "scale": (
        *("image labels", PREPROCESSOR, _values(rescale_factor=1 / 256)),
        ["image inputs", "images"],
    ),
    "filter": (
        *("image labels", PREPROCESSOR, _values(resample=2)),
        ["image inputs", "images"],
    ),
    "swapped labels": (
        *("image labels", CONFIG, _values(id2label={0: "spam", 1: "ham", 2: "eggs"})),
        ["images"],
    ),
    "rate": ("whisper", PREPROCESSOR, _values(sampling_rate=8000), ["sound inputs"]),
    "hop": ("whisper", PREPROCESSOR, _values(hop_length=158), ["sound inputs"]),
    "forced language": (
        *("whisper", GENERATION, _values(forced_decoder_ids=[[1, DE - 1], [2, DE + 1]])),
        ["transcripts"],
    ),
    "suppressed": ("whisper", GENERATION, _values(suppress_tokens=[28]), ["special tokens"]),
    "first time": (
        *("whisper", GENERATION, _values(max_initial_timestamp_index=0)),
        ["transcripts"],
    ),
}
"""A checkpoint, a file and its other values, and topics that differ."""


@pytest.mark.parametrize("fault", MISREAD)
def test_misread_values_are_found(exported: Callable[..., Path], fault: str) -> None:
    name, file, change, topics = MISREAD[fault]
    folder = exported(name)
    with misread(folder / SOURCE / file, **change(folder / SOURCE)):
        found = differing(folder)
    assert [topic for topic in topics if topic in found] == topics


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "file", "key", "topics"),
    [
        ("image labels", PREPROCESSOR, "image_mean", ["image inputs", "images"]),
        ("clip", PREPROCESSOR, "image_std", ["image inputs", "images"]),
    ],
)
def test_inputs_and_references_are_compared_where_weights_are_rounded(
    exported: Callable[..., Path], name: str, file: str, key: str, topics: list[str]
) -> None:
    folder = exported(name, "int8")
    with_texts = 4 if name == "clip" else 0
    assert agreed(folder, *topics, bundle="int8") == {"image inputs": 6, "images": 8 + with_texts}
    values = {key: [0.5, 0.5, 0.49]}
    with misread(folder / SOURCE / file, **values):
        assert list(differing(folder, "int8")) == topics


@pytest.mark.slow
@pytest.mark.parametrize("name", ["whisper", "moonshine", "wav2vec2"])
def test_sounds_of_rounded_weights(exported: Callable[..., Path], name: str) -> None:
    topics = "sound inputs", "sounds" if name == "wav2vec2" else "logits", "transcripts"
    found = agreed(exported(name, "int8"), *topics, bundle="int8")
    assert list(found) == [*topics[:2]]
    assert min(found.values()) >= 2


MISREAD_TOWERS = {
    "llava": ("vision_config", "hidden_act"),
    "qwen3_asr": ("audio_config", "activation_function"),
}
"""Part of a config, and its key of an activation."""


@pytest.mark.slow
@pytest.mark.parametrize("name", MISREAD_TOWERS)
@pytest.mark.parametrize("precision", ["fp32", "int8"])
def test_a_misread_encoder_of_a_decoder_is_found(
    exported: Callable[..., Path], name: str, precision: str
) -> None:
    folder, (part, key) = exported(name, precision), MISREAD_TOWERS[name]
    bundle = BUNDLE if precision == "fp32" else precision
    topics = [*("media vectors", "logits"), *(["media prompts"] if precision == "fp32" else [])]
    assert set(agreed(folder, *topics, bundle=bundle)) == {*topics}
    config = folder / SOURCE / CONFIG
    values = json.loads(config.read_text())[part]
    with misread(config, **{part: values | {key: "relu"}}):
        found = differing(folder, bundle)
    assert [name for name in topics if name in found] == [own for own in topics if own != "logits"]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "key"), [("llava", "image_token_index"), ("qwen3_asr", "audio_token_id")]
)
def test_another_placeholder_is_found(exported: Callable[..., Path], name: str, key: str) -> None:
    folder = exported(name)
    with misread(folder / SOURCE / CONFIG, **{key: 6}):
        found = differing(folder)
    assert "placeholder of images or sounds" in found["special tokens"]


def test_wrong_mel_filters_are_found(
    exported: Callable[..., Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    filters = audio.mel_filters
    monkeypatch.setattr(audio, "mel_filters", lambda source: np.roll(filters(source), 1, axis=1))
    found = differing(exported("whisper"))
    assert "values" in found["sound inputs"]


def test_a_wrong_crop_is_found(
    exported: Callable[..., Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    resized = pixels.resized
    monkeypatch.setattr(pixels, "resized", lambda own, *rest: np.roll(resized(own, *rest), 1, 0))
    assert list(differing(exported("image labels"))) == ["image inputs", "images"]
